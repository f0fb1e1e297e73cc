// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace simcuda {

// boxed.cpp: runs the CPU kernel of any operator on the arguments' memory.
template <c10::DispatchKey CpuKey>
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

// boxed.cpp: fails by the operator's name.
void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*);

// Hand-written kernels: copy_, dropout, recurrent cells.
void register_copy(torch::Library& cuda);
void register_dropout(torch::Library& cuda);
void register_recurrent(torch::Library& library);

}  // namespace simcuda
