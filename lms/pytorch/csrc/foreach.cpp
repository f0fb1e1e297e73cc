// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/List.h>
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/foreach.h>
#include <torch/csrc/lms/storages.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace torch::lms {
namespace {

using torch::jit::Stack;

bool is_tensor_list(const c10::IValue& value) { return value.isTensorList(); }

// One number per tensor, in a CPU tensor (the `scalars` overloads).
bool is_scalar_tensor(const c10::Argument& argument, const c10::IValue& value) {
  return argument.name() == "scalars" && value.isTensor() && value.toTensor().defined() &&
         value.toTensor().dim() == 1;
}

// Whether there is a number per tensor, where there is one for each, and the operator takes a part
// of them if it takes them all. Else it says so itself.
bool matches(const c10::Argument& argument, const c10::IValue& value, size_t length) {
  if (is_scalar_tensor(argument, value)) {
    return static_cast<size_t>(value.toTensor().numel()) == length &&
           value.toTensor().is_contiguous();
  }
  return argument.name() != "scalars" || !value.isList() || value.toListRef().size() == length;
}

// Whether an operator would take a part of a list if it takes the list. Those of `_foreach_*` look
// at each tensor by itself where they are not alike. Others refuse such lists, as a whole.
bool takes_parts(const c10::FunctionSchema& schema, const c10::IValue& list) {
  const std::string& name = schema.name();
  const bool types = name.compare(0, 12, "aten::_fused") == 0;
  if (name.compare(0, 14, "aten::_foreach") == 0) {
    return true;
  }
  const auto items = list.toListRef();
  return std::all_of(items.begin(), items.end(), [&](const c10::IValue& item) {
    const at::Tensor& one = item.toTensor();
    return one.defined() && one.device() == items[0].toTensor().device() &&
           (!types || one.scalar_type() == items[0].toTensor().scalar_type());
  });
}

c10::IValue slice(const c10::Argument& argument, const c10::IValue& value, size_t length,
                  size_t begin, size_t end) {
  if (value.isList() && value.toListRef().size() == length) {
    const auto whole = value.toList();
    c10::impl::GenericList part(whole.elementType());
    part.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) {
      part.push_back(whole.get(i));
    }
    return part;
  }
  if (is_scalar_tensor(argument, value)) {
    return value.toTensor().narrow(0, static_cast<int64_t>(begin),
                                   static_cast<int64_t>(end - begin));
  }
  return value;
}

}  // namespace

size_t bytes_of_unusual_item(const at::Tensor& tensor) {
  size_t bytes = 0;
  each_storage(tensor, [&bytes](const at::Tensor&, c10::StorageImpl* storage) {
    bytes += c10::cuda::lms::nbytes_of(*storage);
  });
  return bytes;
}

bool run_in_parts(const c10::FunctionSchema& schema, size_t part_bytes, Stack* stack,
                  const std::function<bool(Stack*, Room)>& run) {
  const auto& parameters = schema.arguments();
  const size_t first = stack->size() - parameters.size();

  size_t length = 0;
  for (size_t i = first; i < stack->size(); ++i) {
    if (is_tensor_list((*stack)[i])) {
      length = std::max(length, (*stack)[i].toListRef().size());
    }
  }
  if (length < 2) {
    return false;
  }
  std::vector<size_t> bytes(length, 0);
  for (size_t i = first; i < stack->size(); ++i) {
    if (!matches(parameters[i - first], (*stack)[i], length)) {
      return false;
    }
    if (!is_tensor_list((*stack)[i])) {
      continue;
    }
    const auto items = (*stack)[i].toListRef();
    if (!items.empty() && items.size() != length) {
      return false;  // lists that do not match: the operator says so itself
    }
    for (size_t k = 0; k < items.size(); ++k) {
      bytes[k] += bytes_of_item(items[k].toTensor());
    }
  }
  size_t total = 0;
  for (size_t b : bytes) {
    total += b;
  }
  if (total <= part_bytes) {
    return false;
  }
  for (size_t i = first; i < stack->size(); ++i) {
    if (is_tensor_list((*stack)[i]) && !takes_parts(schema, (*stack)[i])) {
      return false;
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    if (!result.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      return false;
    }
  }

  const std::vector<c10::IValue> arguments(stack->begin() + static_cast<std::ptrdiff_t>(first),
                                           stack->end());
  stack->resize(first);
  std::vector<c10::List<at::Tensor>> results(schema.returns().size());
  Stack part;
  for (size_t begin = 0; begin < length;) {
    size_t end = begin, sum = 0;
    while (end < length && (end == begin || sum + bytes[end] <= part_bytes)) {
      sum += bytes[end++];
    }
    part.clear();
    for (size_t i = 0; i < arguments.size(); ++i) {
      part.push_back(slice(parameters[i], arguments[i], length, begin, end));
    }
    if (!run(&part, end - begin > 1 ? Room::kTell : Room::kThrow)) {
      part_bytes = sum / 2;
      continue;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      for (const c10::IValue& item : part[i].toListRef()) {
        results[i].push_back(item.toTensor());
      }
    }
    begin = end;
  }
  for (auto& list : results) {
    stack->emplace_back(std::move(list));
  }
  return true;
}

}  // namespace torch::lms
