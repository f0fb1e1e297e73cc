// SPDX-License-Identifier: Apache-2.0
// Which storages an operator uses, for the trace.
#pragma once

#include <ATen/core/Tensor.h>
#include <simcuda.h>

#include <vector>

namespace simcuda::dry {

enum Access { kRead, kWrite, kMake };

class Uses {
 public:
  // A storage that is used in more than one way is written.
  void add(const at::Tensor& tensor, Access access);
  const SimcudaUse* data() const { return uses_.data(); }
  size_t size() const { return uses_.size(); }

 private:
  std::vector<SimcudaUse> uses_;
};

// What this thread copies until the end of the scope is what the operator does.
class TracedCopies {
 public:
  TracedCopies(void* stream, c10::Device device, const std::string& op, const Uses& uses);
  ~TracedCopies();
  TracedCopies(const TracedCopies&) = delete;
  TracedCopies& operator=(const TracedCopies&) = delete;
};

}  // namespace simcuda::dry
