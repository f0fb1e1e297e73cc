// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "../runtime/order.h"

namespace simcuda::library {
namespace {

std::map<std::string, uint64_t>& unmodelled() {
  static auto* calls = new std::map<std::string, uint64_t>;
  return *calls;
}

double rate_of(Precision precision, Work work) {
  const SimcudaProfile& p = state().profile;
  double rate = p.tf32;  // which TensorFlow allows unless it is told not to
  if (precision == Precision::kDouble) rate = p.fp64;
  if (precision == Precision::kHalf) rate = p.half;
  return rate * (work == Work::kConvolution ? p.convolution : p.matmul);
}

}  // namespace

Precision precision_of(size_t element_bytes) {
  if (element_bytes >= 8) return Precision::kDouble;
  return element_bytes <= 2 ? Precision::kHalf : Precision::kSingle;
}

size_t convolution_workspace() {
  return static_cast<size_t>(state().profile.convolution_workspace);
}

int compute(const char* name, cudaStream_t handle, const std::vector<Operand>& operands, Work work,
            double operations, Precision precision) {
  Lock lock(state().mutex);
  auto& g = state();
  Stream& stream = resolve(handle);
  double bytes = 0;
  std::shared_ptr<simcuda::Work> touched;
  if (order_on()) touched = std::make_shared<simcuda::Work>(simcuda::Work{name, {}});
  for (const Operand& operand : operands) {
    bytes += operand.bytes;
    if (operand.written) g.values.computed(operand.at, static_cast<size_t>(operand.bytes));
    if (!touched || operand.at == nullptr || operand.bytes < 1) continue;
    const auto at = reinterpret_cast<uintptr_t>(operand.at);
    touched->uses.push_back(
        {order::Region(at, static_cast<size_t>(operand.bytes)), operand.written});
  }
  if (touched) {
    if (cudaError_t error = order_note(stream, *touched)) return static_cast<int>(error);
  }
  const auto time =
      clock::time_of_both(bytes, g.profile.bandwidth, operations, rate_of(precision, work));
  g.counters.ops++;
  push(lock, stream,
       {nullptr, nullptr, nullptr, nullptr, nullptr, clock::Unit::kCompute, g.profile.kernel + time,
        name, static_cast<size_t>(bytes)});
  return 0;
}

}  // namespace simcuda::library

using namespace simcuda;

// For the generated functions of cuBLAS and cuDNN, whose first argument is a handle.
extern "C" __attribute__((visibility("hidden"))) int simcuda_library_called(const char* name,
                                                                            void* handle) {
  {
    Lock lock(state().mutex);
    library::unmodelled()[name]++;
  }
  return library::compute(name, static_cast<library::Handle*>(handle)->stream, {});
}

// Names and numbers of calls, a line each.
extern "C" const char* simcuda_unmodelled_calls() {
  thread_local std::string text;
  Lock lock(state().mutex);
  text.clear();
  for (const auto& [name, count] : library::unmodelled()) {
    text += name + ' ' + std::to_string(count) + '\n';
  }
  return text.c_str();
}
