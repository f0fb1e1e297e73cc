// SPDX-License-Identifier: Apache-2.0
// The driver API as far as torch uses it: contexts in name only, and virtual memory management
// for expandable segments.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <map>

#include "order.h"

using namespace simcuda;

namespace simcuda {
cudaError_t fill_words(void* to, unsigned value, size_t words, cudaStream_t stream);
}

namespace {

// Physical memory: a range of the device's memfd behind its arena.
struct Physical {
  int device;
  size_t offset, bytes;
  int references;
};

struct Mapping {
  Physical* physical;
  size_t bytes;
};

std::map<CUdeviceptr, Mapping>& mappings() {
  static auto* all = new std::map<CUdeviceptr, Mapping>;
  return *all;
}

void release(Physical* physical) {
  if (--physical->references > 0) return;
  Device& d = *state().devices[physical->device];
  fallocate(d.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(physical->offset), static_cast<off_t>(physical->bytes));
  d.used -= physical->bytes;
  delete physical;
}

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(state().devices[device].get());
}

char* address_of(CUdeviceptr pointer) { return reinterpret_cast<char*>(pointer); }

}  // namespace

SIMCUDA_CUDA CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
SIMCUDA_CUDA CUresult cuDriverGetVersion(int* version) {
  *version = kCuda;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceGetCount(int* count) {
  *count = simcuda_device_count();
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                           CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    default:  // the two enumerations share their numbers
      cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
      return CUDA_SUCCESS;
  }
}
SIMCUDA_CUDA CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(current_device());
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuCtxSetCurrent(CUcontext context) {
  for (int i = 0; i < simcuda_device_count(); i++) {
    if (context == context_of(i)) cudaSetDevice(i);
  }
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuGetErrorString(CUresult error, const char** text) {
  // The numbers of the common errors are those of the runtime API.
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
SIMCUDA_CUDA CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

// ---- virtual memory management

SIMCUDA_CUDA CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                                    CUmemAllocationGranularity_flags) {
  *bytes = kLargePage;
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr,
                                          unsigned long long) {
  Lock lock(state().mutex);
  int device = current_device();
  char* address = state().devices[device]->arena.place(bytes, kLargePage);
  if (address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  state().allocations[reinterpret_cast<uintptr_t>(address)] = {bytes, device, Kind::kReserved};
  *out = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemAddressFree(CUdeviceptr pointer, size_t) {
  Lock lock(state().mutex);
  auto it = state().allocations.find(pointer);
  if (it == state().allocations.end() || it->second.kind != Kind::kReserved) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Allocation allocation = it->second;
  drain_device(lock, allocation.device);
  state().allocations.erase(pointer);
  state().devices[allocation.device]->arena.release(address_of(pointer), allocation.bytes);
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                                  const CUmemAllocationProp* properties, unsigned long long) {
  Lock lock(state().mutex);
  int device = properties->location.id;
  if (!valid_device(device) || bytes % kLargePage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Device& d = *state().devices[device];
  auto* physical = new Physical{device, d.next_physical, bytes, 1};
  d.next_physical += bytes;
  state().counters.malloc++;
  spend(state().profile.malloc);
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Lock lock(state().mutex);
  state().counters.free++;
  release(reinterpret_cast<Physical*>(handle));
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                               CUmemGenericAllocationHandle handle, unsigned long long) {
  Lock lock(state().mutex);
  auto* physical = reinterpret_cast<Physical*>(handle);
  Device& d = *state().devices[physical->device];
  if (offset + bytes > physical->bytes ||
      mmap(address_of(pointer), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, d.memory,
           static_cast<off_t>(physical->offset + offset)) == MAP_FAILED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  physical->references++;
  mappings()[pointer] = {physical, bytes};
  return CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc*,
                                     size_t) {
  if (simcuda_dry()) return CUDA_SUCCESS;  // a touch faults
  int failed = mprotect(address_of(pointer), bytes, PROT_READ | PROT_WRITE);
  return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIMCUDA_CUDA CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  Lock lock(state().mutex);
  if (order_on()) {  // unlike cudaFree, it waits for nothing
    auto error = order_host_use({"cuMemUnmap", {{order::Region(pointer, bytes), true}}});
    if (error) return static_cast<CUresult>(error);
    order_forget(address_of(pointer), bytes);
  }
  drain_device(lock, -1);
  auto& all = mappings();
  for (auto it = all.lower_bound(pointer); it != all.end() && it->first < pointer + bytes;) {
    mmap(address_of(it->first), it->second.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    release(it->second.physical);
    it = all.erase(it);
  }
  return CUDA_SUCCESS;
}

// ---- words in memory (symmetric memory, synchronisation flags)

SIMCUDA_CUDA CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t words,
                                       CUstream stream) {
  auto error =
      fill_words(address_of(pointer), value, words, reinterpret_cast<cudaStream_t>(stream));
  return static_cast<CUresult>(error);
}
SIMCUDA_CUDA CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr pointer,
                                              cuuint32_t value, unsigned) {
  return cuMemsetD32Async(pointer, value, 1, stream);
}
#undef cuStreamWriteValue32
SIMCUDA_CUDA CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr pointer, cuuint32_t value,
                                           unsigned) {
  return cuMemsetD32Async(pointer, value, 1, stream);
}
