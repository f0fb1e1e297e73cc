// SPDX-License-Identifier: Apache-2.0
#include "workspace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <simcuda.h>

// Of ATen/cuda/CUDAContextLight.h, which includes cuBLAS's headers. Weak, since a torch has the
// first alone or, from 2.15 on, the second.
struct cublasContext;
namespace at::cuda {
[[gnu::weak]] cublasContext* getCurrentCUDABlasHandle();
[[gnu::weak]] size_t getChosenWorkspaceSize();
}  // namespace at::cuda

namespace simcuda::dry {

Workspace::Workspace(const Cost& of) {
  const SimcudaProfile& profile = *simcuda_dry();
  if (!profile.workspaces) return;
  size_t bytes = 0;
  if (of.is_convolution()) bytes = static_cast<size_t>(profile.convolution_workspace);
  if (of.is_product()) {
    if (at::cuda::getCurrentCUDABlasHandle)
      at::cuda::getCurrentCUDABlasHandle();  // which makes the workspace
    else
      bytes = at::cuda::getChosenWorkspaceSize();
  }
  if (bytes > 0) memory_ = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}

}  // namespace simcuda::dry
