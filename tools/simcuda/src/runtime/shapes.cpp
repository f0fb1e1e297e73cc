// SPDX-License-Identifier: Apache-2.0
#include "shapes.h"

#include <algorithm>
#include <cstdlib>
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

// Of whole numbers along the first axis: GatherOpKernel(from, indices, out, size of the axis,
// number of indices, slice size, output size), sizes in vectors of so many numbers, one in old
// releases.
bool gather(const char* kernel, void** arguments, Values& values) {
  constexpr char kVector[] = "INS_13AlignedVectorIiLi", kPlain[] = "Ii";
  char* rest = const_cast<char*>(kernel + strlen("GatherOpKernel"));
  size_t bytes = sizeof(int32_t);
  if (strncmp(rest, kVector, strlen(kVector)) == 0) {
    bytes *= strtoul(rest + strlen(kVector), &rest, 10);
    if (strncmp(rest, "EEE", 3) != 0) return false;
    rest += 3;
  } else if (strncmp(rest, kPlain, strlen(kPlain)) == 0) {
    rest += strlen(kPlain);
  } else {
    return false;
  }
  const bool wide = *rest == 'l';
  if ((!wide && *rest != 'i') || strncmp(rest + 1, "Lb1", 3) != 0) return false;
  const auto* from = *static_cast<const char**>(arguments[0]);
  const auto* indices = *static_cast<const char**>(arguments[1]);
  auto* out = *static_cast<char**>(arguments[2]);
  const int64_t axis = *static_cast<int64_t*>(arguments[3]);
  const int64_t slice = *static_cast<int64_t*>(arguments[5]);
  const int64_t count = *static_cast<int64_t*>(arguments[6]);
  if (!values.knows(from) || !values.knows(indices) || slice < 1) return false;
  if (count < 1 || count > static_cast<int64_t>(Values::kMost / bytes)) return false;
  const size_t width = wide ? sizeof(int64_t) : sizeof(int32_t);
  std::vector<char> result(static_cast<size_t>(count) * bytes);
  for (int64_t i = 0; i < count; i++) {
    int64_t index = 0;  // its lower bytes come first
    values.get(&index, indices + static_cast<size_t>(i / slice) * width, width);
    if (index < 0 || index >= axis) continue;
    const auto at = static_cast<size_t>(index * slice + i % slice);
    values.get(result.data() + static_cast<size_t>(i) * bytes, from + at * bytes, bytes);
  }
  values.put(out, result.data(), result.size());
  return true;
}

// BlockReduceKernel(in, out, count, operator, first value)
bool multiply(void** arguments, Values& values) {
  const auto* in = *static_cast<const int32_t**>(arguments[0]);
  auto* out = *static_cast<int32_t**>(arguments[1]);
  const int count = *static_cast<int*>(arguments[2]);
  if (!values.knows(in)) return false;
  uint32_t product = 1;
  for (int i = 0; i < count; i++) {
    uint32_t factor = 0;
    values.get(&factor, in + i, sizeof factor);
    product *= factor;
  }
  values.put(out, &product, sizeof product);
  return true;
}

}  // namespace

// DynamicStitchKernel<int>(slice size, output size, for each slice which of the inputs it is, the
// inputs, output)
bool compute_known(const char* kernel, void** arguments, Values& values) {
  if (strstr(kernel, "15EigenMetaKernel") && strstr(kernel, "S0_21scalar_boolean_not_opIbE")) {
    return negate(arguments, values);
  }
  if (const char* found = strstr(kernel, "GatherOpKernel")) return gather(found, arguments, values);
  if (strstr(kernel, "BlockReduceKernelIPi") && strstr(kernel, "4ProdIiE")) {
    return multiply(arguments, values);
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
