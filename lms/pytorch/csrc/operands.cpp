// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/operands.h>

namespace torch::lms {
namespace {

using c10::cuda::lms::Access;

// Every byte of the storage is written, and the operator cannot fail after the old bytes are lost.
bool overwrites(const at::Tensor& self, const at::Tensor* source) {
  const auto& storage = *self.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (!self.is_non_overlapping_and_dense() || self.storage_offset() != 0 || self.is_conj() ||
      self.is_neg() || self.nbytes() != c10::cuda::lms::nbytes_of(storage)) {
    return false;
  }
  return source == nullptr ||
         (source->dtype() == self.dtype() && source->sizes() == self.sizes() &&
          source->is_contiguous() && self.is_contiguous() && source->layout() == at::kStrided &&
          !source->is_conj() && !source->is_neg());
}

}  // namespace

Access access_to(const at::Tensor& tensor, Access announced, const at::Tensor* source) {
  return announced == Access::kOverwrite && !overwrites(tensor, source) ? Access::kWrite
                                                                        : announced;
}

}  // namespace torch::lms
