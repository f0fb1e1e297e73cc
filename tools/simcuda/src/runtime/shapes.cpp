// SPDX-License-Identifier: Apache-2.0
#include "shapes.h"

#include <cstring>

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

}  // namespace

// DynamicStitchKernel<int>(slice size, output size, for each slice which of the inputs it is, the
// inputs, output)
bool compute_shape(const char* kernel, void** arguments, Values& values) {
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
