// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_boxed.h>
#include <torch/csrc/lms/compat/interception_pending.h>
#include <torch/csrc/lms/compat/interception_unboxed.h>
#include <torch/csrc/lms/compat/optional.h>
#include <torch/csrc/lms/compat/silence.h>
#include <torch/csrc/lms/storages.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// By the dispatcher: a boxed kernel on the BackendSelect key of every operator that can reach CUDA
// memory. That key is in every thread's default set and below autograd, so the kernel sees each
// operator call just before its backend kernel; where that runs in the place of autograd's, it is
// there. Operators registered later are hooked by the next call of a hooked one.
namespace torch::lms {
namespace {

using c10::DispatchKey;

// The facts of one hooked operator. An operator can be taken away and defined anew with another
// schema under the same name, and keeps this kernel.
class Facts {
 public:
  const OpFacts& of(const c10::OperatorHandle& op) {
    const OpFacts* facts = current_.load(std::memory_order_acquire);
    return C10_LIKELY(facts != nullptr) ? *facts : compute(op);
  }
  void invalidate() { current_.store(nullptr, std::memory_order_release); }

 private:
  const OpFacts& compute(const c10::OperatorHandle& op) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(std::make_unique<OpFacts>(facts_of(op.schema())));
    kept_.back()->random = op.hasTag(at::Tag::nondeterministic_seeded);
    current_.store(kept_.back().get(), std::memory_order_release);
    return *kept_.back();
  }

  std::atomic<const OpFacts*> current_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<OpFacts>> kept_;  // another thread may still be reading an old one
};

// On the key `place`.
class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(std::shared_ptr<Facts> facts, DispatchKey place)
      : facts_(std::move(facts)), in_place_of_autograd_(place == DispatchKey::AutogradCUDA) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    (void)kernels_made.load(std::memory_order_acquire);
    const DispatchKeySet below(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    // Where a composite operator has the kernel that it would have run here.
    const DispatchKeySet composite(DispatchKey::CUDA);
    BoxedCall call(op, in_place_of_autograd_ ? composite : keys & below, stack, facts_->of(op));
    at_boundary(call);
  }

 private:
  std::shared_ptr<Facts> facts_;
  const bool in_place_of_autograd_;
};

// Leaked, as what is pending. The lock is a leaf for the listener, which is called under the
// dispatcher's, and is not held while kernels are registered.
struct Registry {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, std::shared_ptr<Facts>> hooked;

  // Of who installs.
  std::unordered_map<std::string, std::unique_ptr<torch::Library>> libraries;  // by namespace
  c10::RegistrationHandleRAII listener{nullptr};
};

Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    std::lock_guard<std::mutex> lock(registry().mutex);
    const auto hooked = registry().hooked.find(op.operator_name());
    if (hooked != registry().hooked.end()) {
      hooked->second->invalidate();
    } else {
      pending().add(op.operator_name());
    }
  }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::lock_guard<std::mutex> lock(registry().mutex);
    const auto hooked = registry().hooked.find(op.operator_name());
    if (hooked != registry().hooked.end()) {
      hooked->second->invalidate();
    }
  }
};

// Factories of empty tensors, by which all others make theirs, have a kernel of their own on this
// key, because no argument tells the device. These do as it does, and make the result known.
template <class Make>
at::Tensor noted(DispatchKey key, const Make& make) {
  return key == DispatchKey::CUDA ? make_known(make) : make();
}

at::Tensor empty(c10::SymIntArrayRef size, Optional<at::ScalarType> dtype,
                 Optional<at::Layout> layout, Optional<at::Device> device, Optional<bool> pin,
                 Optional<at::MemoryFormat> format) {
  const DispatchKey key = c10::computeDispatchKey(dtype, layout, device);
  return noted(key, [&] {
    return at::_ops::empty_memory_format::redispatch(DispatchKeySet(key), size, dtype, layout,
                                                     device, pin, format);
  });
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         Optional<at::ScalarType> dtype, Optional<at::Layout> layout,
                         Optional<at::Device> device, Optional<bool> pin) {
  const DispatchKey key = c10::computeDispatchKey(dtype, layout, device);
  return noted(key, [&] {
    return at::_ops::empty_strided::redispatch(DispatchKeySet(key), size, stride, dtype, layout,
                                               device, pin);
  });
}

void hook_factories() {
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten",
                                                  DispatchKey::BackendSelect, __FILE__, __LINE__);
  silently([] {  // to replace a kernel is worth a warning
    library->impl("empty.memory_format", TORCH_FN(empty));
    library->impl("empty_strided", TORCH_FN(empty_strided));
  });
}

// Whether an operator that is composite only calls others.
bool calls_others_alone(const c10::OperatorName& name, const std::string& space) {
  if (name.name == "aten::nanmean" && name.overload_name == "out") {
    return false;  // it calls what nansum.out runs, and not the operator
  }
  return space == "aten" || space == "prims" || space == "lms";
}

// The keys to hook an operator on. Composite ones of PyTorch call others, which are hooked
// themselves; those of an extension may follow pointers, and run as soon as autograd's turn comes.
// Factories have a kernel of their own on BackendSelect and take no tensor of the device.
std::vector<DispatchKey> places_of(const c10::OperatorHandle& op, const std::string& space) {
  if (!op.hasSchema() || op.hasKernelForDispatchKey(DispatchKey::BackendSelect)) {
    return {};
  }
  const OpFacts facts = facts_of(op.schema());
  if (facts.touches_nothing() && !facts.has_results) {  // as views
    return {};
  }
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
      op.hasKernelForDispatchKey(DispatchKey::CUDA)) {
    return {DispatchKey::BackendSelect};
  }
  if (calls_others_alone(op.operator_name(), space)) {
    return {};
  }
  if (op.hasKernelForDispatchKey(DispatchKey::Autograd) ||
      op.hasKernelForDispatchKey(DispatchKey::AutogradCUDA)) {
    return {DispatchKey::BackendSelect};
  }
  return {DispatchKey::AutogradCUDA, DispatchKey::BackendSelect};
}

// Of PyTorch's own. A program may define more in the same namespace, take them away, and define
// them anew with another signature.
bool has_one_signature(const c10::OperatorHandle& op) {
  return op.debug().find("RegisterSchema.cpp") != std::string::npos;
}

torch::CppFunction kernel_of(const c10::OperatorHandle& op, const std::string& space,
                             const std::shared_ptr<Facts>& facts, DispatchKey place) {
  if (space == "aten" && place == DispatchKey::BackendSelect && has_one_signature(op)) {
    if (auto kernel = unboxed_kernel(op, facts->of(op))) {
      return std::move(*kernel);
    }
  }
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(facts, place));
}

bool hook(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  const auto colons = name.name.find("::");
  const std::string space = name.name.substr(0, colons);
  const auto places = op ? places_of(*op, space) : std::vector<DispatchKey>();
  if (places.empty()) {
    return false;
  }
  auto facts = std::make_shared<Facts>();
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    if (!registry().hooked.emplace(name, facts).second) {
      return false;
    }
  }
  auto& library = registry().libraries[space];
  if (!library) {
    library = std::make_unique<torch::Library>(torch::Library::IMPL, space, Optional<DispatchKey>(),
                                               __FILE__, __LINE__);
  }
  std::string qualified = name.name.substr(colons + 2);
  if (!name.overload_name.empty()) {
    qualified += "." + name.overload_name;
  }
  for (const DispatchKey place : places) {
    auto kernel = torch::dispatch(place, kernel_of(*op, space, facts, place));
    kernels_made.store(true, std::memory_order_release);
    library->impl(qualified.c_str(), std::move(kernel));
  }
  return true;
}

}  // namespace

size_t install() {
  return pending().install(
      [] {
        hook_factories();
        registry().listener =
            c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>());
      },
      hook);
}

size_t install_pending() { return pending().install_pending(hook); }

}  // namespace torch::lms
