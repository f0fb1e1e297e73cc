// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <ATen/core/jit_type.h>
#include <c10/core/DefaultDtype.h>

#include <cstring>

namespace simcuda::dry {
namespace {

// Of one operator. A program whose sizes change all the time begins anew now and then.
constexpr size_t kMostPlans = 1024;

using at::Tensor;
using c10::IValue;

// What begins the part of a value, so that no two values have one key.
enum Tag : int64_t { kUndefined = 1, kTensor, kNumber, kInt, kDouble, kBool, kList, kText, kOther };

void add_tensor(const Tensor& t, Key& key) {
  if (!t.defined()) return key.push_back(kUndefined);
  key.push_back(kTensor);
  key.push_back(static_cast<int64_t>(t.scalar_type()) | (int64_t{t.is_cuda()} << 8) |
                (int64_t{t.unsafeGetTensorImpl()->is_wrapped_number()} << 9) |
                (int64_t{t.is_conj()} << 10) | (int64_t{t.is_neg()} << 11) | (t.dim() << 16));
  key.insert(key.end(), t.sizes().begin(), t.sizes().end());
  if (t.layout() == c10::kStrided) key.insert(key.end(), t.strides().begin(), t.strides().end());
}

int64_t bits(double number) {
  int64_t same;
  memcpy(&same, &number, sizeof same);
  return same;
}

void add(const IValue& value, bool counts, Key& key) {
  if (value.isTensor()) {
    add_tensor(value.toTensor(), key);
  } else if (value.isBool()) {
    key.insert(key.end(), {kBool, value.toBool()});
  } else if (value.isInt()) {
    key.insert(key.end(), {kInt, counts ? value.toInt() : 0});
  } else if (value.isDouble()) {
    key.insert(key.end(), {kDouble, counts ? bits(value.toDouble()) : 0});
  } else if (value.isList()) {
    auto list = value.toListRef();
    key.insert(key.end(), {kList, static_cast<int64_t>(list.size())});
    for (const IValue& item : list) add(item, true, key);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.insert(key.end(), {kText, static_cast<int64_t>(text.size())});
    key.insert(key.end(), text.begin(), text.end());
  } else if (value.isDevice()) {
    key.insert(key.end(), {kNumber, value.toDevice().index()});
  } else {
    key.insert(key.end(), {kOther, value.isNone() ? 0 : value.isComplexDouble() ? 1 : 2});
  }
}

bool holds_tensors(const c10::TypePtr& type) {
  if (type->isSubtypeOf(*c10::TensorType::get())) return true;
  if (auto optional = type->cast<c10::OptionalType>()) {
    return holds_tensors(optional->getElementType());
  }
  auto list = type->cast<c10::ListType>();
  return list && holds_tensors(list->getElementType());
}

bool is_scalar(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return is_scalar(optional->getElementType());
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

}  // namespace

KeyMaker::KeyMaker(const c10::FunctionSchema& schema) {
  bool of_tensors = false;
  for (const auto& argument : schema.arguments()) {
    of_tensors |= holds_tensors(argument.real_type()) && argument.name() != "out";
  }
  for (const auto& argument : schema.arguments()) {
    counts_.push_back(!of_tensors || !is_scalar(argument.real_type()));
  }
}

Key KeyMaker::of(const IValue* values) const {
  Key key;
  key.reserve(64);
  key.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t i = 0; i < counts_.size(); i++) add(values[i], counts_[i], key);
  return key;
}

size_t Plans::Hash::operator()(const Key& key) const {
  uint64_t hash = 1469598103934665603ull;
  for (int64_t part : key) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 1099511628211ull;
    hash ^= hash >> 29;
  }
  return hash;
}

PlanPtr Plans::find(const Key& key) const {
  std::lock_guard<std::mutex> guard(mutex_);
  auto it = plans_.find(key);
  return it == plans_.end() ? nullptr : it->second;
}

void Plans::keep(Key key, PlanPtr plan) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (plans_.size() >= kMostPlans) plans_.clear();
  plans_.emplace(std::move(key), std::move(plan));
}

}  // namespace simcuda::dry
