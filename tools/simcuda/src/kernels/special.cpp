// SPDX-License-Identifier: Apache-2.0
// Operators whose CUDA form has no CPU kernel, or not one that gives the CPU's numbers.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>

#include "kernels.h"
#include "launch.h"
#include "random.h"
#include "versions.h"

namespace simcuda {

bool is_plain_copy(const Tensor& to, const Tensor& from) {
  if (!to.is_cuda() || !from.is_cuda() || to.device() != from.device()) return true;
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.is_contiguous() &&
         from.is_contiguous() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

namespace {

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  if (is_plain_copy(to, from)) return at::native::copy_(to, from, non_blocking);
  c10::cuda::CUDAGuard guard(to.device());
  static const std::string kName = "aten::copy_";
  Launch launch(to.device(), kName);
  launch.will_write(to);
  Tensor target = launch.to_cpu(to, true), source = launch.to_cpu(from, false);
  launch.begin();
  target.copy_(source);
  launch.end();
  launch.write_back();
  launch.finish();
  if (launch.capturing()) {
    launch.record([target, source]() mutable {
      target.copy_(source);
      return std::vector<Tensor>{};
    });
  }
  return to;
}

// ---- dropout: the CPU's way of it, mask and result from one draw

std::vector<Tensor> dropout(const Tensor& x, double p, bool train, const at::Generator& random) {
  if (!train) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  if (p == 1) return {at::zeros_like(x), at::zeros_like(x, x.options().dtype(at::kBool))};
  Tensor noise = noise_for(x).bernoulli_(1 - p, random);
  Tensor mask = noise.to(at::kBool);
  return {x * noise.div_(1 - p), mask};
}

Tensor dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  Tensor noise = mask.to(grad.scalar_type());
  return grad * (scale == 0 ? noise : noise.div_(1 / scale));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, Optional<bool> train) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::cuda::CUDAGuard guard(input.device());
  static const std::string kName = "aten::native_dropout";
  Launch launch(input.device(), kName);
  Tensor x = launch.to_cpu(input, false);
  RandomSequence random(std::nullopt, input.device());
  launch.begin();
  auto results = dropout(x, p, train.value_or(true), random.cpu());
  launch.end();
  Tensor result = launch.to_device(results[0]), mask = launch.to_device(results[1]);
  launch.finish();
  if (launch.capturing()) {
    launch.record([x, p, train, state = random.state()] {
      RandomSequence random(state);
      return dropout(x, p, train.value_or(true), random.cpu());
    });
  }
  return {result, mask};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::cuda::CUDAGuard guard(grad.device());
  static const std::string kName = "aten::native_dropout_backward";
  Launch launch(grad.device(), kName);
  Tensor g = launch.to_cpu(grad, false), m = launch.to_cpu(mask, false);
  launch.begin();
  Tensor result = dropout_backward(g, m, scale);
  launch.end();
  result = launch.to_device(result);
  launch.finish();
  if (launch.capturing()) {
    launch.record([g, m, scale] { return std::vector<Tensor>{dropout_backward(g, m, scale)}; });
  }
  return result;
}

}  // namespace

void register_copy(torch::Library& cuda) { cuda.impl("copy_", TORCH_FN(copy_)); }

void register_dropout(torch::Library& cuda) {
  cuda.impl("native_dropout", TORCH_FN(native_dropout));
  cuda.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
}

}  // namespace simcuda
