// SPDX-License-Identifier: Apache-2.0
// Operators that do nothing, called in a loop: what is left is dispatch and Large Model Support.
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

namespace {

at::Tensor one_of(const at::Tensor& a, const at::Tensor&) { return a; }
void list(at::TensorList) {}
at::Tensor& written(at::Tensor& a, const at::Tensor&) { return a; }

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Nanoseconds a call: the least of seven runs. Meanwhile a thread of its own calls `beside`, if
// there is one.
template <class Call>
double least(const Call& call, int64_t calls, const std::function<void()>& beside = nullptr) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 7; ++run) {
    std::atomic<bool> begun{false}, over{false};
    std::thread other;
    if (beside) {
      other = std::thread([&] {
        const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
        for (; !over; begun = true) beside();
      });
      while (!begun) std::this_thread::yield();
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    over = true;
    if (other.joinable()) other.join();
    best = std::min(best, took.count() / static_cast<double>(calls));
  }
  return best;
}

}  // namespace

// Of an operator on these tensors: of aten two (`T`), two with a `R`esult, or a `L`ist, which are
// called by their signatures; of a library two with a `r`esult or a `l`ist, which are called boxed;
// or `v`iew; or of two tensors of aten, `B`eside a thread that does so with the next two. No
// operator itself: those that it calls would be parts of it, whose pins end with it.
extern "C" double lms_bench_cost(char kind, c10::TensorImpl** pointers, int64_t count,
                                 int64_t calls) {
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  static const auto call_one =
      op<at::Tensor(const at::Tensor&, const at::Tensor&)>("lms_bench::one_of");
  static const auto call_list = op<void(at::TensorList)>("lms_bench::list");
  static const auto call_foreach = op<void(at::TensorList)>("aten::_foreach_lgamma_");
  static const auto call_written = op<at::Tensor&(at::Tensor&, const at::Tensor&)>("aten::hypot_");
  static const auto call_made = op<at::Tensor(const at::Tensor&, const at::Tensor&)>("aten::hypot");
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < count; ++i) {
    tensors.emplace_back(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(pointers[i]));
  }
  switch (kind) {
    case 'T':
      return least([&] { call_written.call(tensors[0], tensors[1]); }, calls);
    case 'B':
      return least([&] { call_written.call(tensors[0], tensors[1]); }, calls,
                   [&] { call_written.call(tensors[2], tensors[3]); });
    case 'R':
      return least([&] { call_made.call(tensors[0], tensors[1]); }, calls);
    case 'r':
      return least([&] { call_one.call(tensors[0], tensors[1]); }, calls);
    case 'L':
      return least([&] { call_foreach.call(tensors); }, calls);
    case 'l':
      return least([&] { call_list.call(tensors); }, calls);
    default:
      return least([&] { tensors[0].view(-1); }, calls);
  }
}

TORCH_LIBRARY(lms_bench, library) {
  library.def("one_of(Tensor a, Tensor b) -> Tensor");
  library.def("list(Tensor[] tensors) -> ()");
}

TORCH_LIBRARY_IMPL(lms_bench, CUDA, library) {
  library.impl("one_of", one_of);
  library.impl("list", list);
}

// Some that nothing else needs.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("hypot_", written);
  library.impl("hypot", one_of);
  library.impl("_foreach_lgamma_", list);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) { library.impl("hypot_", written); }
