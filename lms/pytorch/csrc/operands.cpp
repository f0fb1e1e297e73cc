// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/compat/tensors.h>
#include <torch/csrc/lms/operands.h>

#include <algorithm>

namespace torch::lms {
namespace {

using c10::cuda::lms::Access;

// Below it an op finds room somewhere, unless there is hardly any. Less copies the arguments of
// more ops, to run them again; with more an op fails whose room is just too small.
constexpr size_t kSmall = size_t{1} << 20;

// Whether who writes every element of the tensor writes every byte of its storage.
bool covers_its_storage(const at::Tensor& self) {
  return is_dense(self) && self.storage_offset() == 0 &&
         self.nbytes() == c10::cuda::lms::nbytes_of(*storage_of(self));
}

}  // namespace

// Of one that does not read, nor write parts.
Access unusual_access_to(const at::Tensor& tensor, Access announced) {
  // Kernels look at the pointers of what they do not access, which chaos mode refuses.
  if (C10_UNLIKELY(announced == Access::kHold && c10::cuda::lms::chaos())) {
    return Access::kWrite;
  }
  return announced == Access::kOverwrite && !covers_its_storage(tensor) ? Access::kWrite
                                                                        : announced;
}

bool may_lack_room(const Operands& operands) {
  return !operands.empty() && (c10::cuda::lms::under_pressure() ||
                               std::any_of(operands.begin(), operands.end(), [](const auto& use) {
                                 return c10::cuda::lms::nbytes_of(*storage_of(use)) >= kSmall;
                               }));
}

}  // namespace torch::lms
