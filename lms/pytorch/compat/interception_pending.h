// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

// For the implementations of interception.h: operators from when the dispatcher tells of them until
// they are intercepted.
namespace torch::lms {

class PendingOps {
 public:
  // Asked by each call that is intercepted, without a lock.
  bool any() const noexcept { return any_.load(std::memory_order_relaxed); }

  // The lock is a leaf: the dispatcher tells of an operator under its own.
  void add(c10::OperatorName name) {
    std::lock_guard<std::mutex> lock(mutex_);
    names_.push_back(std::move(name));
    any_ = true;
  }

  // `listen` is called once: it tells of every operator that there is, and later ones. Returns for
  // how many `intercept(name)` was true.
  template <class Listen, class Intercept>
  size_t install(const Listen& listen, const Intercept& intercept) {
    std::lock_guard<std::mutex> installing(installing_);
    if (installed_) {
      return 0;
    }
    installed_ = true;
    listen();
    return intercept_all(intercept);
  }

  template <class Intercept>
  size_t install_pending(const Intercept& intercept) {
    // Another thread that is at it, or this one further up the stack, does it.
    std::unique_lock<std::mutex> installing(installing_, std::try_to_lock);
    return installing.owns_lock() && installed_ ? intercept_all(intercept) : 0;
  }

 private:
  // No lock is held but the one of who installs: to intercept is to call the dispatcher.
  template <class Intercept>
  size_t intercept_all(const Intercept& intercept) {
    std::vector<c10::OperatorName> names;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      names.swap(names_);
      any_ = false;
    }
    return static_cast<size_t>(std::count_if(names.begin(), names.end(), intercept));
  }

  std::mutex mutex_;
  std::vector<c10::OperatorName> names_;
  std::atomic<bool> any_{false};

  std::mutex installing_;
  bool installed_ = false;
};

// Leaked: more may be registered at the very end.
inline PendingOps& pending() {
  static auto* pending = new PendingOps;
  return *pending;
}

}  // namespace torch::lms
