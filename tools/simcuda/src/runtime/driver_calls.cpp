// SPDX-License-Identifier: Apache-2.0
// Functions of the driver that are the runtime's under another name: devices, memory, copies,
// streams and events as TensorFlow asks for them.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "refuse.h"
#include "state.h"

using namespace simcuda;

namespace simcuda {
cudaError_t fill_words(void* to, unsigned value, size_t words, cudaStream_t stream);
}

namespace {

// Only the runtime keeps a thread's last error. The numbers of the common errors are the same.
template <class Call>
CUresult driver(Call call) {
  cudaError_t before = cudaPeekAtLastError();
  cudaError_t error = call();
  cudaGetLastError();
  fail(before);
  return static_cast<CUresult>(error);
}

cudaStream_t runtime(CUstream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t runtime(CUevent event) { return reinterpret_cast<cudaEvent_t>(event); }
void* at(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

CUresult copy(void* to, const void* from, size_t bytes) {
  return driver([=] { return cudaMemcpy(to, from, bytes, cudaMemcpyDefault); });
}
CUresult copy(void* to, const void* from, size_t bytes, CUstream stream) {
  return driver(
      [=] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, runtime(stream)); });
}

}  // namespace

// ---- devices and contexts

SIMCUDA_CUDA CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  cudaDeviceProp properties;
  properties_of(&properties, device);
  snprintf(name, static_cast<size_t>(length), "%s", properties.name);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return driver([=] { return cudaDeviceGetPCIBusId(text, length, device); });
}
SIMCUDA_CUDA CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = simcuda_capacity(device);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceGetProperties(CUdevprop* out, CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  cudaDeviceProp p;
  properties_of(&p, device);
  *out = {};
  out->maxThreadsPerBlock = p.maxThreadsPerBlock;
  memcpy(out->maxThreadsDim, p.maxThreadsDim, sizeof out->maxThreadsDim);
  memcpy(out->maxGridSize, p.maxGridSize, sizeof out->maxGridSize);
  out->sharedMemPerBlock = static_cast<int>(p.sharedMemPerBlock);
  out->SIMDWidth = p.warpSize;
  out->memPitch = static_cast<int>(p.memPitch);
  out->regsPerBlock = p.regsPerBlock;
  out->textureAlign = static_cast<int>(p.textureAlignment);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return driver([=] { return cudaDeviceCanAccessPeer(can, device, peer); });
}
SIMCUDA_CUDA CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
SIMCUDA_CUDA CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) { return CUDA_SUCCESS; }
SIMCUDA_CUDA CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuCtxSynchronize() { return driver(cudaDeviceSynchronize); }
SIMCUDA_CUDA CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }
SIMCUDA_CUDA CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return driver([=] { return cudaDeviceGetStreamPriorityRange(least, greatest); });
}
SIMCUDA_CUDA CUresult cuCtxGetSharedMemConfig(CUsharedconfig* banks) {
  *banks = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuCtxSetSharedMemConfig(CUsharedconfig) { return CUDA_SUCCESS; }

// ---- memory

SIMCUDA_CUDA CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  return driver([=] { return cudaMemGetInfo(free_bytes, total); });
}
SIMCUDA_CUDA CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return driver([=] { return cudaMalloc(reinterpret_cast<void**>(out), bytes); });
}
SIMCUDA_CUDA CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return driver([=] { return cudaFree(at(pointer)); });
}
SIMCUDA_CUDA CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return driver([=] { return cudaHostAlloc(out, bytes, flags); });
}
SIMCUDA_CUDA CUresult cuMemFreeHost(void* pointer) {
  return driver([=] { return cudaFreeHost(pointer); });
}
SIMCUDA_CUDA CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return driver([=] { return cudaHostRegister(pointer, bytes, flags); });
}
SIMCUDA_CUDA CUresult cuMemHostUnregister(void* pointer) {
  return driver([=] { return cudaHostUnregister(pointer); });
}
SIMCUDA_CUDA CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                              CUdeviceptr pointer) {
  Lock lock(state().mutex);
  uintptr_t begin = 0;
  Allocation* allocation = find_allocation(at(pointer), &begin);
  if (allocation == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = begin;
  if (bytes) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute,
                                            CUdeviceptr pointer) {
  Lock lock(state().mutex);
  Allocation* allocation = find_allocation(at(pointer));
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return cuDevicePrimaryCtxRetain(static_cast<CUcontext*>(out), allocation->device);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(out) =
          allocation->on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(out) = allocation->device;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// ---- copies and memsets

SIMCUDA_CUDA CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(at(to), from, bytes);
}
SIMCUDA_CUDA CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy(to, at(from), bytes);
}
SIMCUDA_CUDA CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(at(to), at(from), bytes);
}
SIMCUDA_CUDA CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                           CUstream stream) {
  return copy(at(to), from, bytes, stream);
}
SIMCUDA_CUDA CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes,
                                           CUstream stream) {
  return copy(to, at(from), bytes, stream);
}
SIMCUDA_CUDA CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                           CUstream stream) {
  return copy(at(to), at(from), bytes, stream);
}
SIMCUDA_CUDA CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                   size_t bytes) {
  return copy(at(to), at(from), bytes);
}
SIMCUDA_CUDA CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                        size_t bytes, CUstream stream) {
  return copy(at(to), at(from), bytes, stream);
}
SIMCUDA_CUDA CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                                      CUstream stream) {
  return driver([=] { return cudaMemsetAsync(at(to), value, bytes, runtime(stream)); });
}
SIMCUDA_CUDA CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
  return driver([=] { return cudaMemset(at(to), value, bytes); });
}
SIMCUDA_CUDA CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t words) {
  return driver([=] { return fill_words(at(to), value, words, nullptr); });
}

// ---- streams and events

SIMCUDA_CUDA CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return driver([=] {
    return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(out), flags, priority);
  });
}
SIMCUDA_CUDA CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}
SIMCUDA_CUDA CUresult cuStreamDestroy_v2(CUstream stream) {
  return driver([=] { return cudaStreamDestroy(runtime(stream)); });
}
SIMCUDA_CUDA CUresult cuStreamQuery(CUstream stream) {
  return driver([=] { return cudaStreamQuery(runtime(stream)); });
}
SIMCUDA_CUDA CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  // A status is a number in either interface.
  auto same = reinterpret_cast<cudaStreamCaptureStatus*>(status);
  return driver([=] { return cudaStreamIsCapturing(runtime(stream), same); });
}
SIMCUDA_CUDA CUresult cuStreamSynchronize(CUstream stream) {
  return driver([=] { return cudaStreamSynchronize(runtime(stream)); });
}
SIMCUDA_CUDA CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return driver([=] { return cudaStreamWaitEvent(runtime(stream), runtime(event), flags); });
}
SIMCUDA_CUDA CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* data,
                                          unsigned flags) {
  // A result is a number in either interface.
  auto same = reinterpret_cast<cudaStreamCallback_t>(function);
  return driver([=] { return cudaStreamAddCallback(runtime(stream), same, data, flags); });
}
SIMCUDA_CUDA CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return driver([=] { return cudaLaunchHostFunc(runtime(stream), function, data); });
}
SIMCUDA_CUDA CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return driver(
      [=] { return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(out), flags); });
}
SIMCUDA_CUDA CUresult cuEventDestroy_v2(CUevent event) {
  return driver([=] { return cudaEventDestroy(runtime(event)); });
}
SIMCUDA_CUDA CUresult cuEventRecord(CUevent event, CUstream stream) {
  return driver([=] { return cudaEventRecord(runtime(event), runtime(stream)); });
}
SIMCUDA_CUDA CUresult cuEventQuery(CUevent event) {
  return driver([=] { return cudaEventQuery(runtime(event)); });
}
SIMCUDA_CUDA CUresult cuEventSynchronize(CUevent event) {
  return driver([=] { return cudaEventSynchronize(runtime(event)); });
}
SIMCUDA_CUDA CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return driver([=] { return cudaEventElapsedTime(milliseconds, runtime(start), runtime(end)); });
}
