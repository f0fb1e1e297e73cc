// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/foreach.h>
#include <torch/csrc/lms/op_facts.h>
#include <torch/csrc/lms/storages.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace torch::lms {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::cuda::lms::Access;
using c10::cuda::lms::OpGuard;
using c10::cuda::lms::Use;
using torch::jit::Stack;

std::atomic<size_t> g_part_bytes{0};
std::atomic<bool> g_pending{false};

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
    current_.store(kept_.back().get(), std::memory_order_release);
    return *kept_.back();
  }

  std::atomic<const OpFacts*> current_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<OpFacts>> kept_;  // another thread may still be reading an old one
};

// Every byte of the storage is written, and the operator cannot fail after the old bytes are lost.
bool overwrites(const at::Tensor& self, const c10::IValue* arguments, size_t count) {
  const auto& storage = self.unsafeGetTensorImpl()->unsafe_storage();
  if (!self.is_non_overlapping_and_dense() || self.storage_offset() != 0 || self.is_conj() ||
      self.is_neg() || self.nbytes() != storage.nbytes()) {
    return false;
  }
  if (count == 1) {
    return true;  // zero_
  }
  const at::Tensor& source = arguments[1].toTensor();  // copy_
  return source.dtype() == self.dtype() && source.sizes() == self.sizes() &&
         source.is_contiguous() && self.is_contiguous() && source.layout() == at::kStrided &&
         !source.is_conj() && !source.is_neg();
}

// Keeps the storages of a collective on the device until it is done, in whatever thread that is.
class InFlight {
 public:
  explicit InFlight(const c10::SmallVectorImpl<Use>& uses) {
    storages_.reserve(uses.size());
    for (const Use& use : uses) {
      storages_.push_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(use.storage));
      pin_last();
    }
  }
  ~InFlight() {
    for (const auto& storage : storages_) {
      c10::cuda::lms::unpin(storage.get());
    }
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Notes the current streams, which come after the collective, as users.
  void follow() const {
    for (const auto& storage : storages_) {
      c10::cuda::lms::pin(storage.get());
      c10::cuda::lms::unpin(storage.get());
    }
  }

 private:
  void pin_last() {
    try {
      c10::cuda::lms::pin(storages_.back().get());
    } catch (...) {
      storages_.pop_back();
      throw;
    }
  }

  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
};

c10::intrusive_ptr<c10d::Work> work_of(const Stack& stack, size_t results) {
  for (size_t i = stack.size() - results; i < stack.size(); ++i) {
    if (stack[i].isCustomClass()) {
      return stack[i].toCustomClass<c10d::Work>();
    }
  }
  return nullptr;
}

// A collective may run on when its operator has returned, on streams unknown here: what it uses
// stays until its work is done, or for good when that cannot be known.
void run_collective(const c10::OperatorHandle& op, const c10::SmallVectorImpl<Use>& uses,
                    DispatchKeySet keys, Stack* stack) {
  const auto held = std::make_shared<InFlight>(uses);
  op.redispatchBoxed(keys, stack);
  try {
    if (const auto work = work_of(*stack, op.schema().returns().size())) {
      work->getFuture()->addCallback([held](c10::ivalue::Future&) { held->follow(); });
      return;
    }
  } catch (const c10::Error&) {  // this backend has no futures
  }
  for (const Use& use : uses) {
    c10::cuda::lms::expose(use.storage);
  }
}

void run_pinned(const c10::OperatorHandle& op, const OpFacts& facts, DispatchKeySet keys,
                Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const c10::IValue* arguments = stack->data() + (stack->size() - count);
  c10::SmallVector<Use, 16> uses;
  for (const auto& argument : facts.tensors) {
    each_storage(arguments[argument.index],
                 [&](const at::Tensor& tensor, c10::StorageImpl* storage) {
                   Access access = argument.written ? Access::kWrite : Access::kRead;
                   if (argument.overwritten && overwrites(tensor, arguments, count)) {
                     access = Access::kOverwrite;
                   }
                   // copy_ from a view of itself reads what it writes.
                   for (Use& use : uses) {
                     if (use.storage == storage && use.access == Access::kOverwrite) {
                       use.access = Access::kWrite;
                     }
                   }
                   uses.push_back({storage, access});
                 });
  }

  OpGuard guard;
  if (!uses.empty()) {
    guard.enter(uses.data(), uses.size());
  }
  if (C10_UNLIKELY(facts.kind == OpFacts::Kind::kCollective) && !uses.empty()) {
    run_collective(op, uses, keys, stack);
  } else {
    op.redispatchBoxed(keys, stack);
  }
  if (facts.has_results) {
    c10::SmallVector<c10::StorageImpl*, 4> results;
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
      each_storage((*stack)[i], [&](const at::Tensor&, c10::StorageImpl* storage) {
        results.push_back(storage);
      });
    }
    if (!results.empty()) {
      guard.results(results.data(), results.size());
    }
  }
}

class Boundary final : public c10::OperatorKernel {
 public:
  explicit Boundary(std::shared_ptr<Facts> facts) : facts_(std::move(facts)) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    keys = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::BackendSelect);
    if (!c10::cuda::lms::active()) {
      const c10::cuda::lms::UnpinnedOp unpinned;
      if (!c10::cuda::lms::active()) {
        op.redispatchBoxed(keys, stack);
        return;
      }
    }
    if (C10_UNLIKELY(g_pending.load(std::memory_order_relaxed))) {
      install_pending();
    }
    const OpFacts& facts = facts_->of(op);
    if (facts.kind == OpFacts::Kind::kNoAccess || (facts.tensors.empty() && !facts.has_results)) {
      op.redispatchBoxed(keys, stack);
      return;
    }
    const size_t part = g_part_bytes.load(std::memory_order_relaxed);
    if (facts.kind == OpFacts::Kind::kForeach && part > 0 &&
        run_in_parts(op, part, stack,
                     [&](Stack* arguments) { run_pinned(op, facts, keys, arguments); })) {
      return;
    }
    run_pinned(op, facts, keys, stack);
  }

 private:
  std::shared_ptr<Facts> facts_;
};

// Leaked: operators may be deregistered after static destructors ran. The lock is a leaf for the
// listener, which is called under the dispatcher's, and is not held while kernels are registered.
struct Registry {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, std::shared_ptr<Facts>> hooked;
  std::vector<c10::OperatorName> pending;

  std::mutex installing;
  std::unordered_map<std::string, std::unique_ptr<torch::Library>> libraries;  // by namespace
  bool installed = false;
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
      registry().pending.push_back(op.operator_name());
      g_pending = true;
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

// Composite operators only call others, which are hooked themselves; factories have a kernel of
// their own on this key and take no tensor of the device.
bool wants_hook(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || op.hasKernelForDispatchKey(DispatchKey::BackendSelect)) {
    return false;
  }
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(DispatchKey::CUDA)) {
    return false;
  }
  const OpFacts facts = facts_of(op.schema());
  return !facts.tensors.empty() || facts.has_results;
}

bool hook(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!op || !wants_hook(*op)) {
    return false;
  }
  auto facts = std::make_shared<Facts>();
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    if (!registry().hooked.emplace(name, facts).second) {
      return false;
    }
  }
  const auto colons = name.name.find("::");
  const std::string space = name.name.substr(0, colons);
  auto& library = registry().libraries[space];
  if (!library) {
    library = std::make_unique<torch::Library>(torch::Library::IMPL, space,
                                               DispatchKey::BackendSelect, __FILE__, __LINE__);
  }
  std::string qualified = name.name.substr(colons + 2);
  if (!name.overload_name.empty()) {
    qualified += "." + name.overload_name;
  }
  library->impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                       std::make_unique<Boundary>(std::move(facts))));
  return true;
}

// With `installing` held.
size_t hook_pending() {
  std::vector<c10::OperatorName> names;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    names.swap(registry().pending);
    g_pending = false;
  }
  return static_cast<size_t>(std::count_if(names.begin(), names.end(), hook));
}

}  // namespace

size_t install() {
  std::lock_guard<std::mutex> installing(registry().installing);
  if (registry().installed) {
    return 0;
  }
  registry().installed = true;
  auto& dispatcher = c10::Dispatcher::singleton();
  // Calls back at once for every operator there is: all become pending.
  registry().listener = dispatcher.addRegistrationListener(std::make_unique<Listener>());
  return hook_pending();
}

size_t install_pending() {
  // Another thread that is at it, or this one further up the stack, does it.
  std::unique_lock<std::mutex> installing(registry().installing, std::try_to_lock);
  if (!installing.owns_lock() || !registry().installed) {
    return 0;
  }
  return hook_pending();
}

void set_part_bytes(size_t bytes) { g_part_bytes = bytes; }

size_t part_bytes() { return g_part_bytes; }

}  // namespace torch::lms
