// SPDX-License-Identifier: Apache-2.0
// What the device says of itself: an imaginary compute capability 8.0 card, or a profile's.
#include <cstdio>
#include <cstring>

#include "refuse.h"
#include "state.h"

using namespace simcuda;

namespace {

// As which GPU it presents itself: that of the profile, if it has one.
struct Gpu {
  int major = 8, minor = 0, multiprocessors = 108;
};

Gpu gpu() {
  auto* p = simcuda_dry();
  return p ? Gpu{p->major, p->minor, p->multiprocessors} : Gpu{};
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed",
     "mapping of buffer object failed"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

}  // namespace

SIMCUDA_CUDA const char* cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorInvalidDeviceFunction) return "cudaErrorInvalidDeviceFunction";
  if (error == cudaErrorNotSupported) return "cudaErrorNotSupported";
  for (const auto& e : kErrors) {
    if (e.error == error) return e.name;
  }
  return "cudaError (simulated device)";
}

SIMCUDA_CUDA const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorInvalidDeviceFunction || error == cudaErrorNotSupported) {
    return last_refusal();  // names the kernel or the function
  }
  for (const auto& e : kErrors) {
    if (e.error == error) return e.text;
  }
  return "error of the simulated device";
}

SIMCUDA_CUDA cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(state().devices.size());
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDriverGetVersion(int* version) {
  *version = kCuda;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kCuda;
  return cudaSuccess;
}

cudaError_t simcuda::properties_of(cudaDeviceProp* p, int device) {
  if (!valid_device(device)) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "simcuda: simulated CUDA device");
  for (int i = 0; i < 16; i++) p->uuid.bytes[i] = static_cast<char>(0x40 + i + device);
  p->totalGlobalMem = simcuda_capacity(device);
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 163 << 10;
  p->sharedMemPerMultiprocessor = 164 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = gpu().major;
  p->minor = gpu().minor;
  p->textureAlignment = 512;
  p->multiProcessorCount = gpu().multiprocessors;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->unifiedAddressing = 1;
  p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->canMapHostMemory = 1;
  p->l2CacheSize = 40 << 20;
  p->pciBusID = 1 + device;
  p->streamPrioritiesSupported = 1;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaError_t error = properties_of(&p, device)) return error;
  const struct {
    cudaDeviceAttr attribute;
    int value;
  } all[] = {
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrWarpSize, p.warpSize},
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(p.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(p.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, static_cast<int>(p.sharedMemPerMultiprocessor)},
      {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
      {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerMultiprocessor},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrTextureAlignment, static_cast<int>(p.textureAlignment)},
      {cudaDevAttrConcurrentKernels, p.concurrentKernels},
      {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
      {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
      {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
  };
  *value = 0;
  for (const auto& known : all) {
    if (known.attribute == attribute) *value = known.value;
  }
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!valid_device(device)) return fail(cudaErrorInvalidDevice);
  snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!valid_device(device) || !valid_device(peer)) return fail(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return valid_device(peer) ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

SIMCUDA_CUDA cudaError_t cudaProfilerStart() { return cudaSuccess; }
SIMCUDA_CUDA cudaError_t cudaProfilerStop() { return cudaSuccess; }
