// SPDX-License-Identifier: Apache-2.0
// How long an operator would take: the longer of its arithmetic and its traffic to memory, at what
// the profile's device reaches, and the time of a launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace simcuda::dry {

// What of a tensor lies in the device's memory: an expanded dimension is there once.
double bytes_of(const at::Tensor& tensor);

class Cost {
 public:
  explicit Cost(const c10::FunctionSchema& schema);

  bool is_product() const { return kind_ == Kind::kProduct; }
  bool is_convolution() const;

  // What is set for the whole process and changes the time: whether fp32 is computed as TF32. Asked
  // only where torch's own kernel asks, because mixed settings are an error then.
  bool tf32() const;

  // Nanoseconds of a call. `inputs` and `results` need not have memory; `written` says which inputs
  // are.
  int64_t of(const std::vector<c10::IValue>& inputs, const std::vector<bool>& written,
             const torch::jit::Stack& results) const;

  // The multiplications and additions among it; 0 if it only moves data.
  double operations(const std::vector<c10::IValue>& inputs, const torch::jit::Stack& results) const;

 private:
  enum class Kind {
    kTraffic,  // moves data
    kPicks,    // moves what it picks from its first tensor
    kConvolution,
    kConvolutionBackward,
    kProduct,  // of the tensors `at_` and the next
    kAttention,
    kAttentionBackward,
  };
  size_t index_of(const c10::FunctionSchema& schema, const char* argument) const;

  Kind kind_ = Kind::kTraffic;
  bool in_place_;    // reads what it writes
  size_t at_ = 0;    // the first of the tensors that are multiplied
  size_t flag_ = 0;  // transposed, or is_causal; 0: none
};

}  // namespace simcuda::dry
