// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/cuda/CUDAStream.h>
#include <simcuda.h>

#include <atomic>

#include "uses.h"

namespace simcuda::dry {
namespace {

using Listener = int (*)(const char* op);
std::atomic<Listener> listener{nullptr};

at::Scalar read(const at::Tensor& tensor) {
  static const std::string kName = "aten::_local_scalar_dense";
  note_read(kName);
  Uses uses;
  if (simcuda_tracing()) uses.add(tensor, kRead);
  void* stream = c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
  TracedCopies copies(stream, tensor.device(), kName, uses);
  return at::native::_local_scalar_dense_cuda(tensor);
}

}  // namespace

void note_read(const std::string& op) {
  Listener listen = listener;
  if (listen == nullptr || listen(op.c_str()) == 0) return;
  TORCH_CHECK_NOT_IMPLEMENTED(false, simcuda_last_refusal());
}

void register_reads(torch::Library& cuda) { cuda.impl("_local_scalar_dense", TORCH_FN(read)); }

}  // namespace simcuda::dry

// Not 0: what it last refused (`simcuda_refuse`) is an error.
extern "C" __attribute__((visibility("default"))) void simcuda_on_read(int (*listen)(const char*)) {
  simcuda::dry::listener = listen;
}
