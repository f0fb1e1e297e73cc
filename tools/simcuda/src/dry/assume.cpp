// SPDX-License-Identifier: Apache-2.0
#include "assume.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <simcuda.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "../kernels/versions.h"

namespace simcuda::dry {
namespace {

using at::Tensor;
using c10::IValue;
using Sizes = std::vector<int64_t>;

std::mutex& mutex() {
  static auto* instance = new std::mutex;
  return *instance;
}

std::map<std::string, double>& declared() {
  static auto* all = new std::map<std::string, double>;
  return *all;
}

double assumed(const char* what, const std::string& op) {
  {
    std::lock_guard<std::mutex> guard(mutex());
    auto it = declared().find(what);
    if (it != declared().end()) return it->second;
  }
  simcuda_refuse(("the size of what " + op + " makes, which depends on data").c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the dry device refuses: ", op,
                              ", because the size of its result depends on data; declare one "
                              "with --assume ",
                              what, "=...");
}

int64_t share(double part, int64_t of) {
  return std::min<int64_t>(std::llround(part * static_cast<double>(of)), of);
}

Tensor made(const Sizes& sizes, c10::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(c10::kMeta));
}

Tensor nonzero(const Tensor& x, double part) {
  int64_t count = share(part, x.numel());
  // As on a GPU: a coordinate's numbers lie together.
  return at::empty_strided({count, x.dim()}, {1, std::max<int64_t>(count, 1)},
                           at::TensorOptions().dtype(c10::kLong).device(c10::kMeta));
}

// The values, where each of `places` went, and how often each came.
void push_unique(torch::jit::Stack& stack, const Sizes& values, c10::ScalarType type,
                 const Sizes& places, bool inverse, bool counts, int64_t count) {
  stack.emplace_back(made(values, type));
  stack.emplace_back(made(inverse ? places : Sizes{0}, c10::kLong));
  stack.emplace_back(made(counts ? Sizes{count} : Sizes{0}, c10::kLong));
}

void unique_of(torch::jit::Stack& stack, const Tensor& x, double part, bool inverse, bool counts) {
  int64_t count = share(part, x.numel());
  push_unique(stack, {count}, x.scalar_type(), x.sizes().vec(), inverse, counts, count);
}

void unique_along(torch::jit::Stack& stack, const Tensor& x, int64_t dim, double part, bool inverse,
                  bool counts) {
  dim = c10::maybe_wrap_dim(dim, x.dim());
  int64_t count = share(part, x.size(dim));
  Sizes values = x.sizes().vec();
  values[dim] = count;
  push_unique(stack, values, x.scalar_type(), {x.size(dim)}, inverse, counts, count);
}

using Make = std::function<void(torch::jit::Stack& results, const torch::jit::Stack& in, double)>;
struct Rule {
  const char* what;
  Make make;
};

const std::map<std::string, Rule>& rules() {
  using Stack = torch::jit::Stack;
  static const auto* all = new std::map<std::string, Rule>{
      {"aten::nonzero",
       {"nonzero", [](Stack& out, const Stack& in,
                      double part) { out.emplace_back(nonzero(in[0].toTensor(), part)); }}},
      {"aten::masked_select",
       {"nonzero",
        [](Stack& out, const Stack& in, double part) {
          Tensor x = in[0].toTensor();
          auto sizes = at::infer_size(x.sizes(), in[1].toTensor().sizes());
          out.emplace_back(made({share(part, c10::multiply_integers(sizes))}, x.scalar_type()));
        }}},
      {"aten::_unique",
       {"unique",
        [](Stack& out, const Stack& in, double part) {
          unique_of(out, in[0].toTensor(), part, in[2].toBool(), false);
          out.pop_back();
        }}},
      {"aten::_unique2",
       {"unique",
        [](Stack& out, const Stack& in, double part) {
          unique_of(out, in[0].toTensor(), part, in[2].toBool(), in[3].toBool());
        }}},
      {"aten::unique_consecutive",
       {"unique",
        [](Stack& out, const Stack& in, double part) {
          bool inverse = in[1].toBool(), counts = in[2].toBool();
          if (in[3].isNone()) {
            unique_of(out, in[0].toTensor(), part, inverse, counts);
          } else {
            unique_along(out, in[0].toTensor(), in[3].toInt(), part, inverse, counts);
          }
        }}},
      {"aten::unique_dim",
       {"unique",
        [](Stack& out, const Stack& in, double part) {
          unique_along(out, in[0].toTensor(), in[1].toInt(), part, in[3].toBool(), in[4].toBool());
        }}},
      {"aten::unique_dim_consecutive",
       {"unique",
        [](Stack& out, const Stack& in, double part) {
          unique_along(out, in[0].toTensor(), in[1].toInt(), part, in[2].toBool(), in[3].toBool());
        }}},
      {"aten::bincount",
       {"bincount",
        [](Stack& out, const Stack& in, double bins) {
          c10::ScalarType type = c10::kLong;
          if (in[1].isTensor() && in[1].toTensor().defined()) {
            bool single = in[1].toTensor().scalar_type() == c10::kFloat;
            type = single ? c10::kFloat : c10::kDouble;
          }
          out.emplace_back(made({std::max<int64_t>(in[2].toInt(), std::llround(bins))}, type));
        }}},
      {"aten::repeat_interleave",
       {"repeat_interleave",
        [](Stack& out, const Stack& in, double times) {
          double count = static_cast<double>(in[0].toTensor().numel());
          out.emplace_back(made({std::llround(times * count)}, in[0].toTensor().scalar_type()));
        }}},
  };
  return *all;
}

bool is_mask(const Tensor& t) {
  return t.defined() && (t.scalar_type() == c10::kBool || t.scalar_type() == c10::kByte);
}

}  // namespace

void assume(const std::string& what, double value) {
  std::lock_guard<std::mutex> guard(mutex());
  declared()[what] = value;
}

bool infer_assumed(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  if (schema.name() == "aten::equal") {  // a value, and every value is 0
    stack = {IValue(false)};
    return true;
  }
  auto it = rules().find(schema.name());
  if (it == rules().end() || schema.overload_name().find("out") != std::string::npos) return false;
  bool interleave = schema.name() == "aten::repeat_interleave";
  if (interleave && schema.overload_name() != "Tensor") return false;
  torch::jit::Stack results;
  if (interleave && !stack[1].isNone()) {
    results.emplace_back(made({stack[1].toInt()}, stack[0].toTensor().scalar_type()));
  } else {
    it->second.make(results, stack, assumed(it->second.what, schema.name()));
  }
  stack = std::move(results);
  return true;
}

bool depends_on_data(const c10::FunctionSchema& schema) {
  return rules().find(schema.name()) != rules().end();
}

void assume_masks(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  if (schema.name() != "aten::index" && schema.name() != "aten::_unsafe_index") return;
  auto indices = stack[1].toOptionalTensorList();
  bool any = false;
  c10::List<Optional<Tensor>> changed;
  for (const Optional<Tensor>& index : indices) {
    if (!index || !is_mask(*index)) {
      changed.push_back(index);
      continue;
    }
    any = true;
    int64_t count = share(assumed("nonzero", schema.name() + " with a mask"), index->numel());
    for (int64_t d = 0; d < std::max<int64_t>(index->dim(), 1); d++) {
      changed.push_back(made({count}, c10::kLong));
    }
  }
  if (any) stack[1] = changed;
}

}  // namespace simcuda::dry
