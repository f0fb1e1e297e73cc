// SPDX-License-Identifier: Apache-2.0
// What differs between the CUDA versions that a wheel is built for: new entry points, and old ones
// with another signature. Everything else is written against the headers of the wheel's version.
#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "capture.h"
#include "state.h"

using namespace simcuda;

// ---- descriptions: those of CUDA 10 lack fields in the middle, and have some that went later;
// those of CUDA 9.0 lack some more

#if SIMCUDA_CUDA_VERSION < 11000
static_assert(CUDART_VERSION / 1000 == 11, "give the headers of CUDA 11.8");

namespace {
struct Properties {  // cudaDeviceProp
  char name[sizeof cudaDeviceProp::name];
#if SIMCUDA_CUDA_VERSION >= 10000
  char identities[offsetof(cudaDeviceProp, totalGlobalMem) - sizeof cudaDeviceProp::name];
#endif
  char begin[offsetof(cudaDeviceProp, persistingL2CacheMaxSize) -
             offsetof(cudaDeviceProp, totalGlobalMem)];
  int threads_per_multiprocessor, stream_priorities, global_cache, local_cache;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, others[11];
  size_t shared_per_block;
#if SIMCUDA_CUDA_VERSION >= 9020
  int host_page_tables, managed_from_host;
#endif
};
struct Attributes {  // cudaPointerAttributes
  cudaMemoryType before;
#if SIMCUDA_CUDA_VERSION >= 10000
  cudaMemoryType type;
#endif
  int device;
  void *device_pointer, *host_pointer;
  int managed;
};
}  // namespace

SIMCUDA_CUDA cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  cudaDeviceProp now;
  if (cudaError_t error = properties_of(&now, device)) return error;
  auto* then = new (out) Properties{};
  memcpy(then->name, now.name, sizeof then->name);
#if SIMCUDA_CUDA_VERSION >= 10000
  memcpy(then->identities, &now.uuid, sizeof then->identities);
#endif
  memcpy(then->begin, &now.totalGlobalMem, sizeof then->begin);
  then->threads_per_multiprocessor = now.maxThreadsPerMultiProcessor;
  then->stream_priorities = now.streamPrioritiesSupported;
  then->shared_per_multiprocessor = now.sharedMemPerMultiprocessor;
  then->registers_per_multiprocessor = now.regsPerMultiprocessor;
  then->shared_per_block = now.sharedMemPerBlockOptin;
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  cudaPointerAttributes now;
  if (cudaError_t error = attributes_of(&now, pointer)) return error;
  auto* then = new (out) Attributes{};
  then->before = now.type;
#if SIMCUDA_CUDA_VERSION >= 10000
  then->type = now.type;
#endif
  then->device = now.device;
  then->device_pointer = now.devicePointer;
  then->host_pointer = now.hostPointer;
  return cudaSuccess;
}
#else
// A macro for the _v2 name in CUDA 12, and its own name elsewhere.
SIMCUDA_CUDA cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  return properties_of(out, device);
}
SIMCUDA_CUDA cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  return attributes_of(out, pointer);
}
#endif

// ---- launches: in three steps or more up to CUDA 9.1; with attributes since 11.8; CUDA 13's
// compiler makes a handle of the kernel first

#if SIMCUDA_CUDA_VERSION < 9020
namespace {
struct Configured {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  std::vector<std::string> arguments;  // their bytes, in the order of the kernel's parameters
};
std::vector<Configured>& configured() {
  thread_local std::vector<Configured> all;
  return all;
}
}  // namespace

SIMCUDA_CUDA cudaError_t cudaConfigureCall(dim3 grid, dim3 block, size_t shared,
                                           cudaStream_t stream) {
  configured().push_back({grid, block, shared, stream, {}});
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaSetupArgument(const void* argument, size_t size, size_t) {
  if (configured().empty()) return fail(cudaErrorMissingConfiguration);
  configured().back().arguments.emplace_back(static_cast<const char*>(argument), size);
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaLaunch(const void* function) {
  if (configured().empty()) return fail(cudaErrorMissingConfiguration);
  Configured call = std::move(configured().back());
  configured().pop_back();
  std::vector<void*> arguments;
  for (std::string& argument : call.arguments) arguments.push_back(argument.data());
  return cudaLaunchKernel(function, call.grid, call.block, arguments.data(), call.shared,
                          call.stream);
}
#endif
#if CUDART_VERSION >= 11080
SIMCUDA_CUDA cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                             void** arguments) {
  return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments,
                          config->dynamicSmemBytes, config->stream);
}
#endif
#if CUDART_VERSION >= 13000
SIMCUDA_CUDA cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                            void** arguments, size_t shared, cudaStream_t stream) {
  auto* function = reinterpret_cast<const void*>(kernel);
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
#endif

// ---- the driver's functions: by dlsym of libcuda.so.1, by name, or by name and version

static bool entry_point(const char* name, void** out) {
  *out = nullptr;
  // A later version of a function has a suffix; a program that asks by name gets the last one.
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    *out = dlsym(RTLD_DEFAULT, (std::string(name) + suffix).c_str());
    if (*out != nullptr) break;
  }
  return *out != nullptr;
}

#if CUDART_VERSION < 12000
SIMCUDA_CUDA cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long) {
  return entry_point(name, out) ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
#else
static cudaError_t entry_point(const char* name, void** out,
                               cudaDriverEntryPointQueryResult* status) {
  bool found = entry_point(name, out);
  if (status) *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* status) {
  return entry_point(name, out, status);
}
#endif
#if CUDART_VERSION >= 12050
SIMCUDA_CUDA cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned,
                                                          unsigned long long,
                                                          cudaDriverEntryPointQueryResult* status) {
  return entry_point(name, out, status);
}
#endif

// ---- logs: since CUDA 12.9 the driver offers to report errors in words; it has none to report

#if CUDART_VERSION >= 12090
SIMCUDA_CUDA CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  if (handle) *handle = nullptr;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }
#endif

// ---- graphs

#if CUDART_VERSION < 12000
SIMCUDA_CUDA cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph,
                                              cudaGraphNode_t*, char*, size_t) {
  return cudaGraphInstantiateWithFlags(out, graph, 0);
}
#else
SIMCUDA_CUDA cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph,
                                              unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
#endif

// ---- capture: the second version came with CUDA 12.0 and became the only one, with edge data, in
// 13

#if CUDART_VERSION >= 13000
SIMCUDA_CUDA cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                  cudaStreamCaptureStatus* status,
                                                  unsigned long long* id, cudaGraph_t* graph,
                                                  const cudaGraphNode_t** dependencies,
                                                  const cudaGraphEdgeData** edges, size_t* count) {
  if (edges) *edges = nullptr;
#else
SIMCUDA_CUDA cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status,
                                                     unsigned long long* id, cudaGraph_t* graph,
                                                     const cudaGraphNode_t** dependencies,
                                                     size_t* count) {
#endif
  if (dependencies) *dependencies = nullptr;
  if (count) *count = 0;
  return capture_info(stream, status, id, graph);
}

#if CUDART_VERSION < 12000
SIMCUDA_CUDA cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                  cudaStreamCaptureStatus* status,
                                                  unsigned long long* id) {
  return capture_info(stream, status, id, nullptr);
}
#endif
