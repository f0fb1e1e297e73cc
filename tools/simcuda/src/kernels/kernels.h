// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace simcuda {

// Runs the CPU kernel of an operator on the memory of its CUDA arguments.
class CpuKernel : public c10::OperatorKernel {
 public:
  CpuKernel(const c10::FunctionSchema& schema, c10::DispatchKey cpu_key);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  struct Argument {
    std::string name;
    bool written;
  };
  bool on_several_devices(const c10::IValue* values) const;
  c10::Device device_of(const c10::IValue* values) const;

  std::string op_;
  c10::DispatchKey cpu_key_;
  std::vector<Argument> arguments_;
  size_t results_;
  bool is_foreach_;
  bool mixes_devices_;
};

// Visits the tensors in a value.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorList()) visit(t);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList()) {
      if (t) visit(*t);
    }
  }
}

// Whether it only gives its arguments' memory another shape.
bool is_view(const c10::FunctionSchema& schema);

// Fails by the operator's name.
void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*);

// Hand-written kernels: copy_, dropout, recurrent layers.
void register_copy(torch::Library& cuda);
void register_dropout(torch::Library& cuda);
void register_recurrent_cells(torch::Library& library);
void register_recurrent_layers(torch::Library& library);

// Tells the order checker what the CPU's own operators do, from now on.
void observe_host_use();

}  // namespace simcuda
