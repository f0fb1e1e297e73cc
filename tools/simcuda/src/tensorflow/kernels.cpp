// SPDX-License-Identifier: Apache-2.0
// Kernels of modules, which TensorFlow loads for what it has generated. A function is its name.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "../runtime/refuse.h"
#include "../runtime/state.h"

using namespace simcuda;

namespace {

// Names live as long as the process, as those of registered kernels do.
CUfunction function_of(const char* name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::set<std::string>;
  std::lock_guard<std::mutex> guard(*mutex);
  return reinterpret_cast<CUfunction>(const_cast<char*>(names->insert(name).first->c_str()));
}

CUresult module(CUmodule* out) {
  *out = reinterpret_cast<CUmodule>(new char);
  return CUDA_SUCCESS;
}

// Of a module's variable nothing but the name is known, so all of one name share this much.
constexpr size_t kGlobal = size_t{1} << 20;

CUresult global_of(const char* name, CUdeviceptr* out) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<std::string, CUdeviceptr>;
  std::lock_guard<std::mutex> guard(*mutex);
  CUdeviceptr& at = (*known)[name];
  CUresult error = at ? CUDA_SUCCESS : cuMemAlloc(&at, kGlobal);
  if (out) *out = at;
  return error;
}

constexpr int kThreads = 2048;  // of a multiprocessor

}  // namespace

SIMCUDA_CUDA CUresult cuModuleLoadData(CUmodule* out, const void*) { return module(out); }
SIMCUDA_CUDA CUresult cuModuleLoadDataEx(CUmodule* out, const void*, unsigned, CUjit_option*,
                                         void**) {
  return module(out);
}
SIMCUDA_CUDA CUresult cuModuleLoadFatBinary(CUmodule* out, const void*) { return module(out); }
SIMCUDA_CUDA CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<char*>(module);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuModuleGetFunction(CUfunction* out, CUmodule, const char* name) {
  *out = function_of(name);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuModuleGetGlobal_v2(CUdeviceptr* out, size_t* bytes, CUmodule,
                                           const char* name) {
  if (bytes) *bytes = kGlobal;
  return global_of(name, out);
}
SIMCUDA_CUDA CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
SIMCUDA_CUDA CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction,
                                                                  int threads, size_t) {
  *blocks = std::max(1, kThreads / std::max(1, threads));
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction,
                                                       CUoccupancyB2DSize, size_t, int limit) {
  *block = limit > 0 ? std::min(limit, 1024) : 1024;
  cudaDeviceGetAttribute(grid, cudaDevAttrMultiProcessorCount, current_device());
  *grid *= kThreads / *block;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, unsigned, unsigned, CUstream stream,
                                     void** arguments, void**) {
  launch_unseen(reinterpret_cast<const char*>(function), arguments,
                reinterpret_cast<cudaStream_t>(stream));
  return CUDA_SUCCESS;
}
#if CUDA_VERSION >= 11080
SIMCUDA_CUDA CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                       void** arguments, void**) {
  launch_unseen(reinterpret_cast<const char*>(function), arguments,
                reinterpret_cast<cudaStream_t>(config->hStream));
  return CUDA_SUCCESS;
}
#endif
