// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <simcuda.h>

#include <unordered_set>

#include "kernels.h"
#include "launch.h"
#include "random.h"

namespace simcuda {
namespace {

using c10::IValue;

// Written although the schema does not say so: running statistics.
bool written_silently(const std::string& op, const std::string& argument) {
  static const std::unordered_set<std::string> ops = {
      "aten::native_batch_norm",
      "aten::cudnn_batch_norm",
      "aten::batch_norm_update_stats",
      "aten::batch_norm_gather_stats",
      "aten::batch_norm_gather_stats_with_counts",
      "aten::rrelu_with_noise",
  };
  return ops.count(op) &&
         (argument == "running_mean" || argument == "running_var" || argument == "noise");
}

// Operators that take CPU tensors beside CUDA ones.
bool mixes_devices(const std::string& op) {
  static const std::unordered_set<std::string> ops = {
      "aten::index",           "aten::_unsafe_index",      "aten::index_put",
      "aten::index_put_",      "aten::_index_put_impl_",   "aten::_unsafe_index_put",
      "aten::_ctc_loss",       "aten::_ctc_loss_backward", "aten::_pack_padded_sequence",
      "aten::_fused_adam_",    "aten::_fused_adamw_",      "aten::_fused_sgd_",
      "aten::_fused_adagrad_", "aten::_embedding_bag",     "aten::copy_",
      "aten::_foreach_copy_",  "aten::_foreach_copy",      "aten::_convert_weight_to_int4pack",
  };
  return ops.count(op) > 0;
}

template <typename Change>
void replace_tensors(IValue& value, Change change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorList()) list.push_back(change(t));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& t : value.toOptionalTensorList()) {
      list.push_back(t ? std::optional<Tensor>(change(*t)) : std::nullopt);
    }
    value = list;
  }
}

}  // namespace

CpuKernel::CpuKernel(const c10::FunctionSchema& schema, c10::DispatchKey cpu_key)
    : op_(schema.name()),
      cpu_key_(cpu_key),
      results_(schema.returns().size()),
      is_foreach_(op_.rfind("aten::_foreach_", 0) == 0),
      mixes_devices_(mixes_devices(op_)) {
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    arguments_.push_back(
        {argument.name(), (alias && alias->isWrite()) || written_silently(op_, argument.name())});
  }
}

bool CpuKernel::on_several_devices(const IValue* values) const {
  std::optional<c10::Device> first;
  bool several = false;
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (!values[i].isTensorList()) continue;
    for_each_tensor(values[i], [&](const Tensor& t) {
      if (!first) first = t.device();
      several |= t.device() != *first;
    });
  }
  return several;
}

// The device of the first CUDA tensor, else that of a device argument. Different devices are an
// error as they are in torch, except for CPU scalars.
c10::Device CpuKernel::device_of(const IValue* values) const {
  std::optional<c10::Device> device, stated;
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (values[i].isDevice() && values[i].toDevice().is_cuda()) stated = values[i].toDevice();
    for_each_tensor(values[i], [&](const Tensor& t) {
      if (t.defined() && t.is_cuda() && !device) device = t.device();
    });
  }
  if (device && mixes_devices_ && values[0].isTensor() && values[0].toTensor().is_cpu()) {
    TORCH_CHECK_INDEX(false,
                      "indices should be either on cpu or on the same device as the indexed "
                      "tensor (cpu)");
  }
  if (device && !mixes_devices_ && !is_foreach_) {
    for (size_t i = 0; i < arguments_.size(); i++) {
      for_each_tensor(values[i], [&](const Tensor& t) {
        if (!t.defined() || t.device() == *device || (t.is_cpu() && t.dim() == 0)) return;
        TORCH_CHECK(false,
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    *device, " and ", t.device(), "! (when checking argument for argument ",
                    arguments_[i].name, " in method wrapper_CUDA_", op_.substr(op_.find("::") + 2),
                    ")");
      });
    }
  }
  if (!device) device = stated;
  if (device && device->has_index()) return *device;
  return c10::Device(c10::kCUDA, c10::cuda::current_device());
}

void CpuKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  IValue* values = stack->data() + (stack->size() - arguments_.size());
  at::AutoDispatchBelowADInplaceOrView below;
  if (is_foreach_ && on_several_devices(values)) {  // as torch: one operator per tensor
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  c10::Device device = device_of(values);
  c10::cuda::CUDAGuard guard(device);
  Launch launch(device, op_);

  for (size_t i = 0; i < arguments_.size(); i++) {
    if (!arguments_[i].written) continue;
    for_each_tensor(values[i], [&](const Tensor& t) { launch.will_write(t); });
  }
  // Written ones first, so that a storage that is read as well gets its late-write shadow.
  for (bool written : {true, false}) {
    for (size_t i = 0; i < arguments_.size(); i++) {
      if (arguments_[i].written != written) continue;
      replace_tensors(values[i], [&](const Tensor& t) { return launch.to_cpu(t, written); });
    }
  }
  std::optional<RandomSequence> random;
  size_t random_at = 0;
  for (size_t i = 0; i < arguments_.size(); i++) {
    IValue& value = values[i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::kCPU);
    } else if (arguments_[i].name == "generator") {
      random.emplace(value.isNone() ? std::nullopt : std::optional(value.toGenerator()), device);
      value = random->cpu();
      random_at = i;
    } else if (arguments_[i].name == "pin_memory" && value.isBool()) {
      value = false;
    }
  }
  torch::jit::Stack inputs;
  if (launch.capturing()) inputs.assign(values, values + arguments_.size());
  launch.begin();
  op.redispatchBoxed(c10::DispatchKeySet(cpu_key_), stack);
  launch.end();
  launch.write_back();
  for (size_t i = stack->size() - results_; i < stack->size(); i++) {
    replace_tensors((*stack)[i], [&](const Tensor& t) { return launch.to_device(t); });
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
