// SPDX-License-Identifier: Apache-2.0
#include "shapes.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace simcuda {
namespace {

constexpr int kInline = 8;

// GpuDeviceArrayStruct: more than the first eight lie in device memory.
template <class T>
struct Array {
  int32_t size;
  T values[kInline];
  T* outside;
};

// EigenMetaKernel(evaluator, count) of out = !in. The evaluator's first word is the output, and one
// of the next is the input; the others are sizes, and pointers of the host's.
bool negate(void** arguments, Values& values) {
  constexpr int kWords = 6;
  const auto* words = static_cast<char* const*>(arguments[0]);
  const int count = *static_cast<int32_t*>(arguments[1]);
  if (count < 1 || static_cast<size_t>(count) > Values::kMost) return false;
  const auto known = [&](const char* word) { return word != words[0] && values.knows(word); };
  const auto* in = std::find_if(words + 1, words + kWords, known);
  if (in == words + kWords) return false;
  std::vector<char> result(static_cast<size_t>(count));
  values.get(result.data(), *in, result.size());
  for (char& each : result) each = each == 0;
  values.put(words[0], result.data(), result.size());
  return true;
}

}  // namespace

// DynamicStitchKernel<int>(slice size, output size, for each slice which of the inputs it is, the
// inputs, output)
bool compute_known(const char* kernel, void** arguments, Values& values) {
  if (strstr(kernel, "15EigenMetaKernel") && strstr(kernel, "S0_21scalar_boolean_not_opIbE")) {
    return negate(arguments, values);
  }
  if (strstr(kernel, "DynamicStitchKernelIiEEvii") == nullptr) return false;
  const int slice = *static_cast<int32_t*>(arguments[0]);
  const int count = *static_cast<int32_t*>(arguments[1]);
  const auto& indices = *static_cast<Array<int32_t>*>(arguments[2]);
  const auto& inputs = *static_cast<Array<const int32_t*>*>(arguments[3]);
  auto* output = *static_cast<int32_t**>(arguments[4]);
  if (slice < 1 || indices.size > kInline || inputs.size > kInline) return false;
  for (int i = 0; i < count; i++) {
    const int from = i / slice < indices.size ? indices.values[i / slice] : -1;
    if (from < 0 || from >= inputs.size) continue;
    values.copy(output + i, inputs.values[from] + i % slice, sizeof(int32_t));
  }
  return true;
}

}  // namespace simcuda
