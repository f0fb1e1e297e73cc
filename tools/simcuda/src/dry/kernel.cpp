// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <simcuda.h>

#include "../clock/clock.h"
#include "../kernels/kernels.h"
#include "assume.h"
#include "metas.h"
#include "uses.h"
#include "values.h"

namespace simcuda::dry {
namespace {

using at::Tensor;
using c10::IValue;

bool is_dense_cuda(const Tensor& t) {
  return t.defined() && t.is_cuda() && t.layout() == c10::kStrided && t.has_storage();
}

void check_addressable(const Tensor& t, const std::string& op) {
  auto* storage = t.storage().unsafeGetStorageImpl();
  const void* data = storage->data();
  if (storage->nbytes() == 0 || simcuda_addressable(data, storage->nbytes())) return;
  std::string what = "an illegal memory access by " + op;
  simcuda_refuse(what.c_str());
  TORCH_CHECK(false, "CUDA error: the simulated device refuses: ", what, " at ", data, ", ",
              storage->nbytes(), " bytes: neither device memory nor pinned host memory");
}

SimcudaView view_of(const Tensor& t, bool written) {
  auto* base = static_cast<const char*>(t.storage().unsafeGetStorageImpl()->data());
  return {base + t.storage_offset() * static_cast<int64_t>(t.element_size()),
          static_cast<size_t>(t.element_size()),
          static_cast<int>(t.dim()),
          t.sizes().data(),
          t.strides().data(),
          written};
}

void note_views(void* stream, c10::Device device, const std::string& op,
                const std::vector<SimcudaView>& views) {
  SimcudaWork work{op.c_str(), views.data(), views.size()};
  TORCH_CHECK(simcuda_order_note(stream, device.index(), &work) == 0,
              "CUDA error: ", simcuda_last_refusal());
}

}  // namespace

DryKernel::DryKernel(const c10::FunctionSchema& schema)
    : operands_(schema), keys_(schema), cost_(schema), workspaces_(schema, cost_) {
  for (const auto& argument : operands_.arguments()) written_.push_back(argument.written);
  for (const auto& argument : schema.arguments()) out_.push_back(argument.is_out());
  reads_ = schema.name() == "aten::equal";
  makes_nothing_ = true;
  for (const auto& result : schema.returns()) {
    int at = -1;
    for (size_t i = 0; i < schema.arguments().size() && result.alias_info(); i++) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias && alias->beforeSets() == result.alias_info()->beforeSets()) {
        at = static_cast<int>(i);
      }
    }
    returned_.push_back(at);
    makes_nothing_ &= at >= 0;
  }
}

// Whether an `out=` is to get the size that the result has.
bool DryKernel::has_empty_out(const torch::jit::Stack& stack) const {
  for (size_t i = 0; i < out_.size(); i++) {
    bool empty = false;
    for_each_tensor(stack[i], [&](const Tensor& t) { empty |= t.numel() == 0; });
    if (out_[i] && empty) return true;
  }
  return false;
}

// Written storages first: those that are copied on write become their tensor's own.
void DryKernel::touch(const IValue* values) const {
  for (bool written : {true, false}) {
    for (size_t i = 0; i < written_.size(); i++) {
      if (written_[i] != written) continue;
      for_each_tensor(values[i], [&](const Tensor& t) {
        if (!is_dense_cuda(t)) return;
        if (written) writable_data_of(t.storage());
        check_addressable(t, operands_.op());
      });
    }
  }
}

void DryKernel::call_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  if (infer_assumed(op.schema(), stack)) return;
  assume_masks(op.schema(), stack);
  using Key = c10::DispatchKey;
  for (Key key : {Key::Meta, Key::CompositeExplicitAutograd,
                  Key::CompositeExplicitAutogradNonFunctional, Key::CompositeImplicitAutograd}) {
    // Some torch's kernel for Meta says so in words of its own.
    if (has_empty_out(stack) && depends_on_data(op.schema())) break;
    if (!op.hasKernelForDispatchKey(key)) continue;
    op.redispatchBoxed(c10::DispatchKeySet(Key::Meta), &stack);
    return;
  }
  if (makes_nothing_ && !has_empty_out(stack)) {  // what it writes keeps its size
    torch::jit::Stack results;
    for (int at : returned_) results.push_back(stack[at]);
    stack = std::move(results);
    return;
  }
  std::string name = toString(op.operator_name());
  simcuda_refuse(("operator " + name).c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the dry device refuses: operator ", name,
                              ", because it has no kernel for Meta that says the shape of its "
                              "result; register one with torch.library.impl(\"",
                              name, "\", \"Meta\")");
}

namespace {

// Kernels for Meta leave the layout of a convolution's results to whoever knows the device.
void lay_out_as_cudnn(const Tensor& image, const Tensor& weight, IValue& result) {
  if (!result.isTensor() || !result.toTensor().defined() || result.toTensor().dim() < 4) return;
  for (const Tensor& t : {image, weight}) {
    const c10::MemoryFormat format = t.suggest_memory_format();
    if (format == c10::MemoryFormat::Contiguous) continue;
    const Tensor made = result.toTensor();
    result = at::empty(made.sizes(), made.options().memory_format(format));
    return;
  }
}

}  // namespace

PlanPtr DryKernel::infer(const c10::OperatorHandle& op, const IValue* values, bool& lasts) const {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Metas metas(operands_.op());
  torch::jit::Stack stack(values, values + written_.size());
  for (size_t i = 0; i < stack.size(); i++) {
    const std::string& name = operands_.arguments()[i].name;
    if (stack[i].isDevice()) {
      stack[i] = c10::Device(c10::kMeta);
    } else if (name == "generator") {
      stack[i] = IValue();
    } else if (name == "pin_memory" && stack[i].isBool()) {
      stack[i] = false;
    } else if (name == "scalars" && stack[i].isTensor() && stack[i].toTensor().is_cpu()) {
      // Its kernel for Meta reads them.
    } else {
      replace_tensors(stack[i], [&](const Tensor& t) { return metas.of(t, written_[i]); });
    }
  }
  std::vector<IValue> inputs(stack.begin(), stack.end());
  call_meta(op, stack);
  const bool backward = operands_.op() == "aten::convolution_backward";
  if (backward || operands_.op() == "aten::convolution") {
    const size_t image = backward ? 1 : 0;  // after the gradient of the result
    for (IValue& result : stack) {
      lay_out_as_cudnn(inputs[image].toTensor(), inputs[image + 1].toTensor(), result);
    }
  }
  lasts = !metas.resize_written();

  auto plan = std::make_shared<Plan>();
  plan->nanoseconds = cost_.of(inputs, written_, stack);
  auto describe = [&](const Tensor& t, size_t result) {
    Plan::Made made;
    if (returned_[result] >= 0) {
      made.kind = Plan::Made::kArgument;
      made.argument = static_cast<size_t>(returned_[result]);
    } else if (t.defined()) {
      made.kind = Plan::Made::kNew;
      made.sizes = t.sizes().vec();
      made.strides = t.strides().vec();
      made.type = t.scalar_type();
      made.conjugate = t.is_conj();
      made.negative = t.is_neg();
    }
    return made;
  };
  for (size_t i = 0; i < operands_.results(); i++) {
    Plan::Result result;
    const IValue& value = stack[stack.size() - operands_.results() + i];
    if (value.isTensor()) {
      result.tensors.push_back(describe(value.toTensor(), i));
    } else if (value.isTensorList()) {
      result.list = true;
      for (const Tensor& t : value.toTensorList()) result.tensors.push_back(describe(t, i));
    } else {
      result.value = value;
    }
    plan->results.push_back(std::move(result));
  }
  return plan;
}

PlanPtr DryKernel::plan_of(const c10::OperatorHandle& op, const IValue* values) {
  Key key = keys_.of(values);
  key.push_back(cost_.tf32());
  if (PlanPtr known = plans_.find(key)) return known;
  bool lasts = true;
  PlanPtr plan = infer(op, values, lasts);
  if (lasts) plans_.keep(std::move(key), plan);
  return plan;
}

void DryKernel::note(void* stream, c10::Device device, const IValue* values,
                     const std::vector<IValue>& results) const {
  std::vector<SimcudaView> views;
  auto add = [&](const Tensor& t, bool written) {
    if (is_dense_cuda(t) && t.numel() > 0) views.push_back(view_of(t, written));
  };
  for (size_t i = 0; i < written_.size(); i++) {
    for_each_tensor(values[i], [&](const Tensor& t) { add(t, written_[i]); });
  }
  for (size_t i = 0; i < results.size(); i++) {
    if (returned_[i] >= 0) continue;
    for_each_tensor(results[i], [&](const Tensor& t) { add(t, true); });
  }
  note_views(stream, device, operands_.op(), views);
}

Uses DryKernel::uses_of(const IValue* values, const std::vector<IValue>& results) const {
  Uses uses;
  for (size_t i = 0; i < written_.size(); i++) {
    Access access = out_[i] ? kMake : written_[i] ? kWrite : kRead;
    for_each_tensor(values[i], [&](const Tensor& t) { uses.add(t, access); });
  }
  for (size_t i = 0; i < results.size(); i++) {
    if (returned_[i] >= 0) continue;
    for_each_tensor(results[i], [&](const Tensor& t) { uses.add(t, kMake); });
  }
  return uses;
}

void DryKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  IValue* values = stack->data() + (stack->size() - written_.size());
  at::AutoDispatchBelowADInplaceOrView below;
  if (operands_.split_by_device(values)) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  c10::Device device = operands_.device_of(values);
  c10::cuda::CUDAGuard guard(device);
  void* stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
  touch(values);
  if (reads_) note_read(operands_.op());
  PlanPtr plan = plan_of(op, values);
  auto make = [&](const Plan::Made& made) -> Tensor {
    if (made.kind == Plan::Made::kUndefined) return {};
    if (made.kind == Plan::Made::kArgument) return values[made.argument].toTensor();
    Tensor t = at::empty_strided(made.sizes, made.strides,
                                 at::TensorOptions().dtype(made.type).device(device));
    if (made.conjugate) t._set_conj(true);
    if (made.negative) t._set_neg(true);
    return t;
  };
  std::vector<IValue> results;
  for (const auto& result : plan->results) {
    if (result.list) {
      c10::List<Tensor> list;
      for (const auto& made : result.tensors) list.push_back(make(made));
      results.emplace_back(list);
    } else {
      results.push_back(result.tensors.empty() ? result.value : make(result.tensors[0]));
    }
  }
  const c10::DataPtr workspace = workspaces_.take(values);
  if (simcuda_order_on()) note(stream, device, values, results);
  Uses uses;
  if (simcuda_tracing()) uses = uses_of(values, results);
  simcuda_dry_op(stream, device.index(), operands_.op().c_str(), plan->nanoseconds, uses.data(),
                 uses.size());
  torch::jit::drop(*stack, written_.size());
  for (auto& result : results) stack->push_back(std::move(result));
}

namespace {

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const std::string kName = "aten::copy_";
  c10::Device device = to.is_cuda() ? to.device() : from.device();
  c10::cuda::CUDAGuard guard(device);
  void* stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
  Uses uses;
  if (simcuda_tracing()) {
    uses.add(to, kWrite);
    uses.add(from, kRead);
  }
  if (is_plain_copy(to, from)) {
    // One number that the host waits for is one that the program goes by.
    if (to.is_cpu() && to.numel() == 1 && !non_blocking) note_read(kName);
    TracedCopies copies(stream, device, kName, uses);
    return at::native::copy_(to, from, non_blocking);
  }
  TORCH_CHECK(is_dense_cuda(to) && is_dense_cuda(from),
              "the dry device refuses: copy_ of a tensor that is not dense");
  Tensor source = from.expand_as(to);
  writable_data_of(to.storage());
  check_addressable(to, kName);
  check_addressable(source, kName);
  if (simcuda_order_on() && to.numel() > 0) {
    note_views(stream, to.device(), kName, {view_of(to, true), view_of(source, false)});
  }
  const SimcudaProfile& p = *simcuda_dry();
  simcuda_dry_op(stream, device.index(), kName.c_str(),
                 p.kernel + clock::time_of(bytes_of(to) + bytes_of(from), p.bandwidth), uses.data(),
                 uses.size());
  return to;
}

}  // namespace

void register_copy(torch::Library& cuda) { cuda.impl("copy_", TORCH_FN(copy_)); }

}  // namespace simcuda::dry

extern "C" __attribute__((visibility("default"))) void simcuda_assume(const char* what,
                                                                      double value) {
  simcuda::dry::assume(what, value);
}
