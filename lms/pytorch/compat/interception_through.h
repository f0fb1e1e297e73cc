// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels of the dispatcher in PyTorch 1.1 and 1.2, which are called boxed, and have no object but
// one that is made for each call. Included by the versions' headers.

#include <torch/csrc/lms/compat/interception_call.h>

#include <memory>
#include <utility>

namespace torch::lms {

// What is made for each call of a kernel: it tells which kernel it is.
class Through final : public c10::KernelCache {
 public:
  Through(std::shared_ptr<const Hook> hook, c10::KernelFunction* kernel,
          std::unique_ptr<c10::KernelCache> own)
      : hook_(std::move(hook)), kernel_(kernel), own_(std::move(own)) {}

  static void call(Stack* stack, c10::KernelCache* made) {
    auto* through = static_cast<Through*>(made);
    BoxedCall call(
        *through->hook_, [&] { (*through->kernel_)(stack, through->own_.get()); }, stack);
    at_boundary_of(call);
  }

 private:
  const std::shared_ptr<const Hook> hook_;
  c10::KernelFunction* const kernel_;
  const std::unique_ptr<c10::KernelCache> own_;
};

inline void hook_kernel(c10::DispatchTableEntry& entry, const std::shared_ptr<const Hook>& hook) {
  if (entry.kernel_func == &Through::call) {
    return;
  }
  entry.cache_creator_func = [hook, kernel = entry.kernel_func, own = entry.cache_creator_func] {
    return std::make_unique<Through>(hook, kernel, own());
  };
  entry.kernel_func = &Through::call;
}

}  // namespace torch::lms
