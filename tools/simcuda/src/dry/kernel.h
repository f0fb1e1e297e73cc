// SPDX-License-Identifier: Apache-2.0
// An operator on the dry device: it computes nothing. Its kernel for Meta says what its results
// look like, torch's allocator gives them memory, and they cost the time that they would.
#pragma once

#include <torch/library.h>

#include "../kernels/operands.h"
#include "cost.h"
#include "plan.h"
#include "uses.h"
#include "workspace.h"

namespace simcuda::dry {

class DryKernel : public c10::OperatorKernel {
 public:
  explicit DryKernel(const c10::FunctionSchema& schema);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  bool has_empty_out(const torch::jit::Stack& stack) const;
  void touch(const c10::IValue* values) const;
  PlanPtr plan_of(const c10::OperatorHandle& op, const c10::IValue* values);
  PlanPtr infer(const c10::OperatorHandle& op, const c10::IValue* values, bool& lasts) const;
  void call_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;
  void note(void* stream, c10::Device device, const c10::IValue* values,
            const std::vector<c10::IValue>& results) const;

  Uses uses_of(const c10::IValue* values, const std::vector<c10::IValue>& results) const;

  Operands operands_;
  std::vector<bool> written_;
  std::vector<bool> out_;      // written without having been read: `out=`
  std::vector<int> returned_;  // for each result, the argument that it is by the schema; -1: none
  bool makes_nothing_;         // every result is an argument
  bool reads_;                 // the host gets a value
  KeyMaker keys_;
  Cost cost_;
  Workspaces workspaces_;
  Plans plans_;
};

// copy_: by torch's own code where that copies, else a kernel.
void register_copy(torch::Library& cuda);

}  // namespace simcuda::dry
