// SPDX-License-Identifier: Apache-2.0
#include "workspace.h"

#include <ATen/WrapDimUtils.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <simcuda.h>

// Of ATen/cuda/CUDAContextLight.h, which includes cuBLAS's headers. Weak, since a torch has one of
// the first two, and the others from 2.15 on.
struct cublasContext;
namespace at::cuda {
[[gnu::weak]] cublasContext* getCurrentCUDABlasHandle();
[[gnu::weak]] cublasContext* getCurrentCUDABlasHandle(bool setup);
[[gnu::weak]] bool isCUDABlasWorkspaceCachingEnabled();
[[gnu::weak]] size_t getChosenWorkspaceSize();
}  // namespace at::cuda

namespace simcuda::dry {
namespace {

constexpr size_t kIndex = sizeof(int64_t);
constexpr int64_t kSortedInPlace = 4096;     // rows of up to so many elements need nothing
constexpr int64_t kSortedAlone = 1'000'000;  // rows that are sorted one after the other
constexpr int64_t kFewRows = 128;            // rows below which all are sorted as one

// Whether a stream keeps the workspace of its first product.
bool keeps_of_products() {
  return !at::cuda::isCUDABlasWorkspaceCachingEnabled ||
         at::cuda::isCUDABlasWorkspaceCachingEnabled();
}

void make_handle() {
  cublasContext* (*const before)() = at::cuda::getCurrentCUDABlasHandle;
  cublasContext* (*const since)(bool) = at::cuda::getCurrentCUDABlasHandle;
  if (before != nullptr) {
    before();
  } else if (since != nullptr) {
    since(true);
  }
}

}  // namespace

size_t bytes_to_sort(const at::Tensor& x, int64_t dim) {
  if (x.dim() == 0 || x.numel() == 0) return 0;
  dim = c10::maybe_wrap_dim(dim, x.dim());
  const int64_t row = x.size(dim), rows = x.numel() / row;
  if (row <= kSortedInPlace) return 0;
  const auto count = static_cast<size_t>(x.numel()), key = static_cast<size_t>(x.element_size());
  // Keys, values and indices once more, where rows do not lie together.
  const size_t turned =
      x.stride(dim) == 1 && x.is_non_overlapping_and_dense() ? 0 : count * (2 * key + kIndex);
  // cub sorts pairs from one buffer to another and back; the indices to sort are made for it.
  const size_t pair = key + kIndex;
  if (rows == 1 || row >= kSortedAlone) return turned + static_cast<size_t>(row) * (kIndex + pair);
  if (rows < kFewRows) return turned + count * (2 * kIndex + key + pair);
  return turned + count * (kIndex + pair);
}

Workspaces::Workspaces(const c10::FunctionSchema& schema, const Cost& cost)
    : product_(cost.is_product()),
      convolution_(cost.is_convolution()),
      sort_(schema.name() == "aten::sort") {
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    if (schema.arguments()[i].name() == "dim") dim_ = i;
  }
}

size_t Workspaces::bytes_of(const c10::IValue* values) const {
  if (convolution_) return static_cast<size_t>(simcuda_dry()->convolution_workspace);
  if (sort_) return bytes_to_sort(values[0].toTensor(), values[dim_].toInt());
  if (product_ && !keeps_of_products()) return at::cuda::getChosenWorkspaceSize();
  return 0;
}

c10::DataPtr Workspaces::take(const c10::IValue* values) const {
  if (!simcuda_dry()->workspaces) return {};
  if (product_ && keeps_of_products()) make_handle();  // which has the workspace
  const size_t bytes = bytes_of(values);
  if (bytes == 0) return {};
  return c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}

}  // namespace simcuda::dry
