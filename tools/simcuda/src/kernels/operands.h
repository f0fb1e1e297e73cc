// SPDX-License-Identifier: Apache-2.0
// What the schema of an operator says of its arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "versions.h"

namespace simcuda {

// Visits the tensors in a value.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorList()) visit(t);
  } else if (value.isOptionalTensorList()) {
    for (const Optional<at::Tensor>& t : value.toOptionalTensorList()) {
      if (t) visit(*t);
    }
  }
}

// The value with other tensors in it.
template <typename Change>
void replace_tensors(c10::IValue& value, Change change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorList()) list.push_back(change(t));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<Optional<at::Tensor>> list;
    for (const Optional<at::Tensor>& t : value.toOptionalTensorList()) {
      list.push_back(t ? Optional<at::Tensor>(change(*t)) : nothing);
    }
    value = list;
  }
}

class Operands {
 public:
  struct Argument {
    std::string name;
    bool written, silently;  // the latter where the schema does not say so
  };
  explicit Operands(const c10::FunctionSchema& schema);

  const std::string& op() const { return op_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  size_t results() const { return results_; }

  // The device of the first CUDA tensor, else that of a device argument. Different devices are an
  // error as they are in torch, except for CPU scalars.
  c10::Device device_of(const c10::IValue* values) const;
  // Whether it takes lists of tensors of several devices: torch has one operator per tensor then.
  bool split_by_device(const c10::IValue* values) const;

 private:
  std::string op_;
  std::vector<Argument> arguments_;
  size_t results_;
  bool is_foreach_;
  bool mixes_devices_;
};

}  // namespace simcuda
