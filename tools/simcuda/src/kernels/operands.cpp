// SPDX-License-Identifier: Apache-2.0
#include "operands.h"

#include <c10/cuda/CUDAFunctions.h>

#include <optional>
#include <unordered_set>

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

}  // namespace

Operands::Operands(const c10::FunctionSchema& schema)
    : op_(schema.name()),
      results_(schema.returns().size()),
      is_foreach_(op_.rfind("aten::_foreach_", 0) == 0),
      mixes_devices_(mixes_devices(op_)) {
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    const bool silently = written_silently(op_, argument.name());
    arguments_.push_back({argument.name(), (alias && alias->isWrite()) || silently, silently});
  }
}

bool Operands::split_by_device(const IValue* values) const {
  if (!is_foreach_) return false;
  std::optional<c10::Device> first;
  bool several = false;
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (!values[i].isTensorList()) continue;
    for_each_tensor(values[i], [&](const at::Tensor& t) {
      if (!first) first = t.device();
      several |= t.device() != *first;
    });
  }
  return several;
}

c10::Device Operands::device_of(const IValue* values) const {
  std::optional<c10::Device> device, stated;
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (values[i].isDevice() && values[i].toDevice().is_cuda()) stated = values[i].toDevice();
    for_each_tensor(values[i], [&](const at::Tensor& t) {
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
      for_each_tensor(values[i], [&](const at::Tensor& t) {
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

}  // namespace simcuda
