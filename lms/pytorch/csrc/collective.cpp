// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/storage.h>
#include <torch/csrc/lms/collective.h>
#include <torch/csrc/lms/compat/optional.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace torch::lms {
namespace {

using Held = std::vector<std::shared_ptr<InFlight>>;

struct Group {
  int depth = 0;
  Held held;
};

Group& this_group() {
  thread_local Group group;
  return group;
}

Held end_this_group() {
  Group& group = this_group();
  return group.depth > 0 && --group.depth > 0 ? Held() : std::exchange(group.held, {});
}

// What works use that have no future: held until somebody waits for them. A leaf among locks.
class Pending {
 public:
  void add(const Work& work, Held held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back({work, std::move(held)});
  }

  // What was held for those that `matches`.
  template <class Matches>
  std::vector<std::pair<Work, Held>> take(const Matches& matches) {
    std::vector<std::pair<Work, Held>> taken;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto kept = std::stable_partition(
        entries_.begin(), entries_.end(), [&](const auto& entry) { return !matches(entry.first); });
    std::move(kept, entries_.end(), std::back_inserter(taken));
    entries_.erase(kept, entries_.end());
    return taken;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Work, Held>> entries_;
};

// Leaked, as the engine is.
Pending& pending() {
  static auto* pending = new Pending;
  return *pending;
}

void follow(const Held& held) {
  for (const auto& each : held) {
    each->follow();
  }
}

void expose(const Held& held) {
  for (const auto& each : held) {
    each->expose();
  }
}

// Who let go of a work cannot wait for it: what it used stays for good.
void sweep() {
  for (const auto& forgotten : pending().take([](const Work& w) { return w.use_count() == 1; })) {
    expose(forgotten.second);
  }
}

// Null when the work tells nothing by itself.
c10::intrusive_ptr<c10::ivalue::Future> future_of(const Work& work) {
  try {
    return work->getFuture();
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

// By way of another constructor, so that the destructor undoes what was done when a pin throws.
InFlight::InFlight(const Operands& operands) : InFlight() {
  storages_.reserve(operands.size());
  for (const auto& use : operands) {
    storages_.push_back(c10::cuda::lms::reference_to(storage_of(use)));
    pin_last();
  }
}

InFlight::~InFlight() {
  for (const auto& storage : storages_) {
    c10::cuda::lms::unpin(storage.get());
  }
}

void InFlight::follow() const {
  for (const auto& storage : storages_) {
    c10::cuda::lms::pin(storage.get());
    c10::cuda::lms::unpin(storage.get());
  }
}

void InFlight::expose() const {
  for (const auto& storage : storages_) {
    c10::cuda::lms::expose(storage.get());
  }
}

void InFlight::pin_last() {
  try {
    c10::cuda::lms::pin(storages_.back().get());
  } catch (...) {
    storages_.pop_back();
    throw;
  }
}

void hold_until_done(const std::shared_ptr<InFlight>& held, c10::function_ref<Work()> work) {
  Group& group = this_group();
  if (group.depth > 0) {
    group.held.push_back(held);
  }
  sweep();
  const Work running = work();
  if (running == nullptr) {
    if (group.depth == 0) {
      held->expose();
    }
  } else if (const auto future = future_of(running)) {
    future->addCallback([held](c10::ivalue::Future&) { held->follow(); });
  } else {
    pending().add(running, {held});
  }
}

void begin_group() { ++this_group().depth; }

void end_group(const Work& work) {
  Held held = end_this_group();
  sweep();
  if (work == nullptr) {
    expose(held);  // of groups within it, launched with it
  } else if (!held.empty()) {
    pending().add(work, std::move(held));
  }
}

void abandon_group() { expose(end_this_group()); }

void waited_for(const Work& work) {
  for (const auto& each : pending().take([&](const Work& w) { return w == work; })) {
    follow(each.second);
  }
}

void define_collectives(Definitions& definitions) {
  definitions.def("begin_group() -> ()", &begin_group);
  definitions.def("end_group(__torch__.torch.classes.c10d.Work? work) -> ()",
                  [](const Optional<Work>& work) { end_group(work.value_or(Work())); });
  definitions.def("abandon_group() -> ()", &abandon_group);
  definitions.def("waited_for(__torch__.torch.classes.c10d.Work work) -> ()", &waited_for);
}

}  // namespace torch::lms
