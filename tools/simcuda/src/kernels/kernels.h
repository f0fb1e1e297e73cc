// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "operands.h"

namespace simcuda {

// Runs the CPU kernel of an operator on the memory of its CUDA arguments.
class CpuKernel : public c10::OperatorKernel {
 public:
  CpuKernel(const c10::FunctionSchema& schema, c10::DispatchKey cpu_key);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  Operands operands_;
  c10::DispatchKey cpu_key_;
};

// Whether it only gives its arguments' memory another shape.
bool is_view(const c10::FunctionSchema& schema);

// Fails by the operator's name.
void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*);

// What torch itself does by cudaMemcpyAsync, on the stream; its other copies are kernels.
bool is_plain_copy(const at::Tensor& to, const at::Tensor& from);

// Hand-written kernels: copy_, dropout, recurrent layers.
void register_copy(torch::Library& cuda);
void register_dropout(torch::Library& cuda);
void register_recurrent_cells(torch::Library& library);
void register_recurrent_layers(torch::Library& library);

// Tells the order checker what the CPU's own operators do, from now on.
void observe_host_use();

}  // namespace simcuda
