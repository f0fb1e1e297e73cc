// SPDX-License-Identifier: Apache-2.0
#include "workspace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <simcuda.h>

// Of ATen/cuda/CUDAContextLight.h, which includes cuBLAS's headers.
struct cublasContext;
namespace at::cuda {
cublasContext* getCurrentCUDABlasHandle();
}

namespace simcuda::dry {

Workspace::Workspace(const Cost& of) {
  const SimcudaProfile& profile = *simcuda_dry();
  if (!profile.workspaces) return;
  if (of.is_product()) at::cuda::getCurrentCUDABlasHandle();
  if (of.is_convolution() && profile.convolution_workspace > 0) {
    memory_ = c10::cuda::CUDACachingAllocator::get()->allocate(
        static_cast<size_t>(profile.convolution_workspace));
  }
}

}  // namespace simcuda::dry
