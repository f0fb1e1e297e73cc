// SPDX-License-Identifier: Apache-2.0
// Which operators are simulated: all of aten that have a CUDA kernel of their own.
#include <simcuda.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "../dry/kernel.h"
#include "../dry/values.h"
#include "kernels.h"
#include "versions.h"

namespace simcuda {
namespace {

using c10::DispatchKey;
using torch::CppFunction;

// Memory, metadata and copies: torch's own code runs, on the simulated runtime.
const std::unordered_set<std::string>& kept() {
  static const std::unordered_set<std::string> ops = {
      "empty",
      "empty_strided",
      "resize_",
      "set_",
      "copy_",
      "copy_sparse_to_sparse_",
      "_local_scalar_dense",
      "_use_cudnn_ctc_loss",
      "record_stream",
      "_fused_sdp_choice",
      "_pin_memory",
      "is_pinned",
      "_efficientzerotensor",
      "_coalesced_",
      "_indices",
      "_values",
      "_nnz",
      "is_coalesced",
      "_dimI",
      "_dimV",
      "dense_dim",
      "sparse_dim",
      "sparse_resize_",
      "sparse_resize_and_clear_",
      "_sparse_coo_tensor_with_dims",
      "_sparse_coo_tensor_with_dims_and_tensors",
      "crow_indices",
      "col_indices",
      "ccol_indices",
      "row_indices",
      "values",
      "indices",
      "resize_as_sparse_",
      "_nested_tensor_size",
      "_nested_tensor_strides",
      "_nested_tensor_storage_offsets",
      "view",
      "_reshape_alias",
  };
  return ops;
}

// Composite, but on the CPU with numerics of their own (oneDNN).
const std::unordered_set<std::string>& composites() {
  static const std::unordered_set<std::string> ops = {
      "convolution",
      "_convolution",
      "convolution_backward",
      "convolution_overrideable",
      "convolution_backward_overrideable",
  };
  return ops;
}

bool has_cpu(const c10::OperatorHandle& op, DispatchKey cpu) {
  return op.hasKernelForDispatchKey(cpu) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* all = new std::vector<std::unique_ptr<torch::Library>>;
  return *all;
}

torch::Library& library(DispatchKey key) {
  libraries().push_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
  return *libraries().back();
}

CppFunction kernel_for(const c10::OperatorHandle& op, DispatchKey cpu, bool dry) {
  if (dry) return CppFunction::makeFromBoxedFunctor(std::make_unique<dry::DryKernel>(op.schema()));
  if (!has_cpu(op, cpu)) return CppFunction::makeFromBoxedFunction<&refuse_operator>();
  return CppFunction::makeFromBoxedFunctor(std::make_unique<CpuKernel>(op.schema(), cpu));
}

int install_key(DispatchKey cuda, DispatchKey cpu, bool dry) {
  auto& target = library(cuda);
  auto& dispatcher = c10::Dispatcher::singleton();
  int installed = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || is_view(op->schema())) continue;
    std::string base = name.name.substr(6);
    if (kept().count(base)) continue;
    bool dense = cuda == DispatchKey::CUDA;
    bool own = op->hasKernelForDispatchKey(cuda) || (dense && op->hasKernelForDispatchKey(cpu)) ||
               (dense && composites().count(base));
    if (!own) continue;
    std::string full = name.overload_name.empty() ? base : base + "." + name.overload_name;
    target.impl(full.c_str(), kernel_for(*op, cpu, dry));
    installed++;
  }
  return installed;
}

}  // namespace

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

namespace {

int install(bool dry) {
  int installed = install_key(DispatchKey::CUDA, DispatchKey::CPU, dry);
  installed += install_key(DispatchKey::SparseCUDA, DispatchKey::SparseCPU, dry);
  installed += install_key(DispatchKey::SparseCsrCUDA, DispatchKey::SparseCsrCPU, dry);
  auto& special = library(DispatchKey::CUDA);
  if (dry) {
    dry::register_copy(special);
    dry::register_reads(special);
  } else {
    register_copy(special);
    register_dropout(special);
  }
  register_recurrent_cells(special);
  auto& autograd = library(DispatchKey::AutogradCUDA);
  register_recurrent_cells(autograd);  // composed of differentiable operators
  register_recurrent_layers(special);
  register_recurrent_layers(autograd);
  if (simcuda_order_on()) observe_host_use();
  return installed;
}

}  // namespace

}  // namespace simcuda

// Returns the number of operators that run on the simulated device from now on.
extern "C" __attribute__((visibility("default"))) int simcuda_install_kernels(int dry) {
  // Overriding torch's kernels is the point here; its warning about it is not wanted.
  return simcuda::silently([dry] { return simcuda::install(dry); });
}
