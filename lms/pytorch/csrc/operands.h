// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace torch::lms {

c10::cuda::lms::Access unusual_access_to(const at::Tensor& tensor,
                                         c10::cuda::lms::Access announced);

// How an op uses the storage of `tensor`, of which its facts say `announced`.
inline c10::cuda::lms::Access access_to(const at::Tensor& tensor,
                                        c10::cuda::lms::Access announced) {
  using c10::cuda::lms::Access;
  return C10_LIKELY(announced == Access::kRead || announced == Access::kWrite)
             ? announced
             : unusual_access_to(tensor, announced);
}

inline c10::StorageImpl* storage_of(const c10::cuda::lms::Use& use) {
  return static_cast<c10::StorageImpl*>(use.key);
}

// The storages that one call reaches through its arguments, and how it uses each.
class Operands {
 public:
  using Use = c10::cuda::lms::Use;
  using Access = c10::cuda::lms::Access;

  C10_ALWAYS_INLINE void add(c10::StorageImpl* storage, Access access) {
    if (C10_UNLIKELY(overwrites_)) {
      read_what_is_overwritten(storage);
    }
    if (C10_UNLIKELY(access == Access::kOverwrite)) {
      overwrites_ = true;
    }
    const int device = c10::cuda::lms::glance_at_device(*storage).index();
    if (C10_UNLIKELY(device != device_)) {
      several_devices_ = !empty();
      device_ = device;
    }
    uses_.emplace_back();  // field by field: a copy of the whole waits for its parts
    Use& use = uses_.back();
    use.key = storage;
    use.access = access;
  }
  // So many will be added.
  void reserve(size_t count) { uses_.reserve(count); }

  bool empty() const { return uses_.empty(); }
  size_t size() const { return uses_.size(); }
  c10::Device device() const { return c10::cuda::lms::glance_at_device(*storage_of(uses_[0])); }
  // That all are of, or -1.
  int one_device() const { return several_devices_ ? -1 : device_; }
  Use* data() { return uses_.data(); }
  const Use* begin() const { return uses_.begin(); }
  const Use* end() const { return uses_.end(); }

 private:
  // As by a copy_ from a view of itself.
  void read_what_is_overwritten(const c10::StorageImpl* storage) {
    for (Use& use : uses_) {
      if (use.key == storage && use.access == Access::kOverwrite) {
        use.access = Access::kWrite;
      }
    }
  }

  c10::SmallVector<Use, 16> uses_;
  bool overwrites_ = false;  // one of them is kOverwrite
  bool several_devices_ = false;
  int device_ = -1;  // of the last one
};

// Adds each storage that it is called with, of a tensor of which the op's facts say `announced`. No
// lambda: those need not be inlined, and every operand comes by here.
struct AddOperand {
  C10_ALWAYS_INLINE void operator()(const at::Tensor& tensor, c10::StorageImpl* storage) const {
    operands->add(storage, access_to(tensor, announced));
  }

  Operands* operands;
  c10::cuda::lms::Access announced;
};

// Whether the kernel of an op may lack room for its results. A wrong no costs an error where it
// could have run again; a wrong yes, some nanoseconds.
bool may_lack_room(const Operands& operands);

}  // namespace torch::lms
