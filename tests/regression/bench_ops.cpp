// SPDX-License-Identifier: Apache-2.0
// Operators that do nothing, called in a loop: what is left is dispatch and Large Model Support.
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

namespace {

void two(const at::Tensor&, const at::Tensor&) {}
at::Tensor one_of(const at::Tensor& a, const at::Tensor&) { return a; }
void list(at::TensorList) {}

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Nanoseconds a call: the least of seven runs.
template <class Call>
double least(const Call& call, int64_t calls) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 7; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / static_cast<double>(calls));
  }
  return best;
}

// Of each kind of operator, on tensors of a device and, at last, on one of the CPU.
std::vector<double> costs(const at::Tensor& a, const at::Tensor& b, const at::Tensor& cpu,
                          int64_t calls) {
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  static const auto call_two = op<void(const at::Tensor&, const at::Tensor&)>("lms_bench::two");
  static const auto call_one =
      op<at::Tensor(const at::Tensor&, const at::Tensor&)>("lms_bench::one_of");
  static const auto call_list = op<void(at::TensorList)>("lms_bench::list");
  const auto list_of = [&](int count) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(i % 2 ? a : b);
    return tensors;
  };
  const std::vector<at::Tensor> many = list_of(64), most = list_of(1024);
  std::vector<double> nanoseconds;
  nanoseconds.push_back(least([&] { call_two.call(a, b); }, calls));
  nanoseconds.push_back(least([&] { call_one.call(a, b); }, calls));
  nanoseconds.push_back(least([&] { call_list.call(many); }, calls / 20));
  nanoseconds.push_back(least([&] { call_list.call(most); }, calls / 200));
  nanoseconds.push_back(least([&] { a.view(-1); }, calls));
  nanoseconds.push_back(least([&] { call_two.call(cpu, cpu); }, calls));
  return nanoseconds;
}

}  // namespace

TORCH_LIBRARY(lms_bench, library) {
  library.def("two(Tensor a, Tensor b) -> ()");
  library.def("one_of(Tensor a, Tensor b) -> Tensor");
  library.def("list(Tensor[] tensors) -> ()");
  library.def("costs(Tensor a, Tensor b, Tensor cpu, int calls) -> float[]", &costs);
}

TORCH_LIBRARY_IMPL(lms_bench, CUDA, library) {
  library.impl("two", two);
  library.impl("one_of", one_of);
  library.impl("list", list);
}

TORCH_LIBRARY_IMPL(lms_bench, CPU, library) { library.impl("two", two); }
