// SPDX-License-Identifier: Apache-2.0
// The arguments of one call as tensors without memory, for kernels that only say shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace simcuda::dry {

class Metas {
 public:
  explicit Metas(const std::string& op) : op_(op) {}

  // The counterpart of a tensor; tensors that share memory have counterparts that do. Numbers that
  // are tensors of the CPU stay what they are, as kernels for Meta expect it.
  at::Tensor of(const at::Tensor& tensor, bool written);

  // Gives written tensors the size that the kernel gave to their counterparts, if it did. Whether
  // any has changed.
  bool resize_written() const;

  // The tensor with this counterpart; undefined if there is none.
  at::Tensor real(const at::Tensor& meta) const;
  // A tensor whose memory this one would share; undefined if there is none.
  at::Tensor base(const at::Tensor& meta) const;

 private:
  struct Pair {
    at::Tensor real, meta;
    bool written;
  };
  const c10::Storage& storage_of(const at::Tensor& tensor);

  const std::string& op_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace simcuda::dry
