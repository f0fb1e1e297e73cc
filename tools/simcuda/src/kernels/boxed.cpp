// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <simcuda.h>

#include "kernels.h"
#include "launch.h"
#include "random.h"

namespace simcuda {
using c10::IValue;

CpuKernel::CpuKernel(const c10::FunctionSchema& schema, c10::DispatchKey cpu_key)
    : operands_(schema), cpu_key_(cpu_key) {}

void CpuKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  const auto& arguments = operands_.arguments();
  IValue* values = stack->data() + (stack->size() - arguments.size());
  at::AutoDispatchBelowADInplaceOrView below;
  if (operands_.split_by_device(values)) {  // as torch: one operator per tensor
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  c10::Device device = operands_.device_of(values);
  c10::cuda::CUDAGuard guard(device);
  Launch launch(device, operands_.op());

  for (size_t i = 0; i < arguments.size(); i++) {
    if (!arguments[i].written) continue;
    for_each_tensor(values[i], [&](const Tensor& t) { launch.will_write(t); });
  }
  // Written ones first, so that a storage that is read as well gets its late-write shadow.
  for (bool written : {true, false}) {
    for (size_t i = 0; i < arguments.size(); i++) {
      if (arguments[i].written != written) continue;
      replace_tensors(values[i], [&](const Tensor& t) { return launch.to_cpu(t, written); });
    }
  }
  std::optional<RandomSequence> random;
  size_t random_at = 0;
  for (size_t i = 0; i < arguments.size(); i++) {
    IValue& value = values[i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::kCPU);
    } else if (arguments[i].name == "generator") {
      random.emplace(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), device);
      value = random->cpu();
      random_at = i;
    } else if (arguments[i].name == "pin_memory" && value.isBool()) {
      value = false;
    }
  }
  torch::jit::Stack inputs;
  if (launch.capturing()) inputs.assign(values, values + arguments.size());
  launch.begin();
  for (size_t i = 0; i < arguments.size(); i++) {
    if (!arguments[i].silently) continue;
    for_each_tensor(values[i], [&](const Tensor& t) { launch.keep(t); });
  }
  op.redispatchBoxed(c10::DispatchKeySet(cpu_key_), stack);
  launch.end();
  launch.write_back();
  try {
    for (size_t i = stack->size() - operands_.results(); i < stack->size(); i++) {
      replace_tensors((*stack)[i], [&](const Tensor& t) { return launch.to_device(t); });
    }
  } catch (...) {
    launch.put_back();
    throw;
  }
  launch.finish();
  if (!launch.capturing()) return;
  std::optional<at::PhiloxCudaState> philox;
  if (random) philox = random->state();
  launch.record([op, key = cpu_key_, inputs, random_at, philox] {
    auto values = inputs;
    std::optional<RandomSequence> random;
    if (philox) values[random_at] = random.emplace(*philox).cpu();
    op.redispatchBoxed(c10::DispatchKeySet(key), &values);
    std::vector<Tensor> results;
    for (const auto& value : values) {
      for_each_tensor(value, [&](const Tensor& t) { results.push_back(t); });
    }
    return results;
  });
}

void refuse_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  std::string name = toString(op.operator_name());
  simcuda_refuse(("operator " + name).c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated device refuses: operator ", name,
                              ": it has no CPU kernel");
}

}  // namespace simcuda
