// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace torch::lms {

// How an op uses the storage of `tensor`, of which its facts say `announced`.
c10::cuda::lms::Access access_to(const at::Tensor& tensor, c10::cuda::lms::Access announced);

// The storages that one call reaches through its arguments, and how it uses each.
class Operands {
 public:
  using Use = c10::cuda::lms::Use;
  using Access = c10::cuda::lms::Access;

  void add(c10::StorageImpl* storage, Access access) {
    if (overwrites_) {  // copy_ from a view of itself reads what it writes
      for (Use& use : uses_) {
        if (use.storage == storage && use.access == Access::kOverwrite) {
          use.access = Access::kWrite;
        }
      }
    }
    overwrites_ = overwrites_ || access == Access::kOverwrite;
    uses_.push_back({storage, access});
  }

  bool empty() const { return uses_.empty(); }
  size_t size() const { return uses_.size(); }
  c10::Device device() const { return c10::cuda::lms::glance(*uses_[0].storage).device(); }
  const Use* data() const { return uses_.data(); }
  const Use* begin() const { return uses_.begin(); }
  const Use* end() const { return uses_.end(); }

 private:
  c10::SmallVector<Use, 16> uses_;
  bool overwrites_ = false;  // one of them is kOverwrite
};

// Whether the kernel of an op may lack room for its results. A wrong no costs an error where it
// could have run again; a wrong yes, some nanoseconds.
bool may_lack_room(const Operands& operands);

}  // namespace torch::lms
