// SPDX-License-Identifier: Apache-2.0
// What a call makes, so that it is inferred once for all calls that look alike.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace simcuda::dry {

// All that the shapes of the results can depend on: sizes, strides and types of tensors, integers,
// and the default type.
using Key = std::vector<int64_t>;

class KeyMaker {
 public:
  explicit KeyMaker(const c10::FunctionSchema& schema);
  Key of(const c10::IValue* values) const;

 private:
  // Whether the value of a number counts, or its type alone: a factor changes at each step and no
  // shape does, but the end of a range is one.
  std::vector<bool> counts_;
};

struct Plan {
  struct Made {
    enum { kUndefined, kArgument, kNew } kind = kUndefined;
    size_t argument = 0;
    std::vector<int64_t> sizes, strides;
    c10::ScalarType type = c10::kFloat;
    bool conjugate = false, negative = false;
  };
  struct Result {
    bool list = false;
    std::vector<Made> tensors;
    c10::IValue value;  // what is no tensor
  };
  std::vector<Result> results;
  int64_t nanoseconds = 0;
};
using PlanPtr = std::shared_ptr<const Plan>;

class Plans {
 public:
  PlanPtr find(const Key& key) const;
  void keep(Key key, PlanPtr plan);

 private:
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  mutable std::mutex mutex_;
  std::unordered_map<Key, PlanPtr, Hash> plans_;
};

}  // namespace simcuda::dry
