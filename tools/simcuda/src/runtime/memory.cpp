// SPDX-License-Identifier: Apache-2.0
// Device memory and pinned host memory of the runtime API, and its sharing between processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "capture.h"
#include "order.h"

using namespace simcuda;

namespace {

// The host gives memory back, with what it knows to be done with it.
cudaError_t give_back(const char* name, const void* memory, size_t bytes) {
  if (!order_on()) return cudaSuccess;
  auto at = reinterpret_cast<uintptr_t>(memory);
  if (cudaError_t error = order_host_use({name, {{order::Region(at, bytes), true}}})) return error;
  order_forget(memory, bytes);
  return cudaSuccess;
}

constexpr unsigned char kPoison = 0xFF;  // reads as NaN, and as -1

void punch(int memory, size_t offset, size_t bytes) {
  fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

clock::Nanoseconds pin_time(size_t bytes) {
  if (!dry()) return 0;
  return state().profile.host_malloc +
         clock::time_of(static_cast<double>(bytes), state().profile.host_pin);
}

struct IpcHandle {
  char magic[8];
  int process, memory, device;
  size_t offset, bytes;
};
static_assert(sizeof(IpcHandle) <= sizeof(cudaIpcMemHandle_t), "the handle must fit");
constexpr char kIpcMagic[8] = "simcuda";

}  // namespace

SIMCUDA_CUDA cudaError_t cudaMalloc(void** out, size_t bytes) {
  Lock lock(state().mutex);
  if (cudaError_t error = unsafe_in_capture()) return error;
  auto& g = state();
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  int device = current_device();
  if (!charge(device, charged_bytes(bytes))) return fail(cudaErrorMemoryAllocation);
  Device& d = *g.devices[device];
  size_t mapped = round_up(bytes, kPage);
  char* address = d.arena.place(mapped, bytes >= (size_t{1} << 20) ? kLargePage : kPage);
  spend(g.profile.malloc);
  if (address == nullptr ||
      (!dry() && mmap(address, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, d.memory,
                      address - d.arena.base()) == MAP_FAILED)) {
    if (address) d.arena.release(address, mapped);
    d.used -= charged_bytes(bytes);
    g.counters.malloc_failed++;
    return fail(cudaErrorMemoryAllocation);
  }
  if (g.poison) memset(address, kPoison, mapped);
  g.allocations[reinterpret_cast<uintptr_t>(address)] = {bytes, device, Kind::kDevice};
  g.counters.malloc++;
  *out = address;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaFree(void* pointer) {
  Lock lock(state().mutex);
  if (cudaError_t error = unsafe_in_capture()) return error;
  auto& g = state();
  if (pointer == nullptr) return cudaSuccess;
  auto it = g.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == g.allocations.end() || it->second.kind != Kind::kDevice) {
    return fail(cudaErrorInvalidValue);
  }
  Allocation allocation = it->second;
  drain_device(lock, allocation.device);  // as the real one synchronises
  order_host_device(allocation.device);
  if (cudaError_t error = give_back("cudaFree", pointer, allocation.bytes)) return error;
  g.allocations.erase(reinterpret_cast<uintptr_t>(pointer));
  g.values.forget(pointer, allocation.bytes);
  Device& d = *g.devices[allocation.device];
  auto* address = static_cast<char*>(pointer);
  size_t mapped = round_up(allocation.bytes, kPage);
  d.arena.release(address, mapped);
  if (!dry()) punch(d.memory, address - d.arena.base(), mapped);
  spend(g.profile.malloc);
  d.used -= charged_bytes(allocation.bytes);
  g.counters.free++;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  Lock lock(state().mutex);
  Device& d = *state().devices[current_device()];
  *total = d.capacity;
  *free_bytes = d.capacity > d.used ? d.capacity - d.used : 0;
  return cudaSuccess;
}

// ---- pinned host memory

// Where it is dry the limit may be the profile's, which nobody has named: it is told, once.
static bool host_is_full(size_t more) {
  auto& g = state();
  if (g.host_capacity == 0 || g.host_used + more <= g.host_capacity) return false;
  if (static bool told = false; dry() && !told) {
    told = true;
    fprintf(stderr,
            "simcuda: %zu bytes of pinned host memory are refused because %zu of %zu, which the "
            "profile's machine has, are in use; give more with --host-memory\n",
            more, g.host_used, g.host_capacity);
  }
  return true;
}

SIMCUDA_CUDA cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  Lock lock(state().mutex);
  if (cudaError_t error = unsafe_in_capture()) return error;
  auto& g = state();
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  size_t mapped = round_up(bytes, kPage);
  char* address = nullptr;
  const bool full = host_is_full(mapped);
  if (!g.host_fault.fires() && !full) address = g.host_arena.place(mapped, kPage);
  if (address == nullptr ||
      mmap(address, mapped, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    if (address) g.host_arena.release(address, mapped);
    g.counters.host_alloc_failed++;
    return fail(cudaErrorMemoryAllocation);
  }
  if (g.poison) memset(address, kPoison, mapped);
  spend(pin_time(bytes));
  g.allocations[reinterpret_cast<uintptr_t>(address)] = {bytes, current_device(), Kind::kPinned};
  g.host_used += mapped;
  g.host_peak = std::max(g.host_peak, g.host_used);
  g.counters.host_alloc++;
  *out = address;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaMallocHost(void** out, size_t bytes) {
  return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

SIMCUDA_CUDA cudaError_t cudaFreeHost(void* pointer) {
  Lock lock(state().mutex);
  if (cudaError_t error = unsafe_in_capture()) return error;
  auto& g = state();
  if (pointer == nullptr) return cudaSuccess;
  auto it = g.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == g.allocations.end() || it->second.kind != Kind::kPinned) {
    return fail(cudaErrorInvalidValue);
  }
  size_t mapped = round_up(it->second.bytes, kPage);
  if (cudaError_t error = give_back("cudaFreeHost", pointer, it->second.bytes)) return error;
  drain_device(lock, -1);
  g.allocations.erase(reinterpret_cast<uintptr_t>(pointer));
  g.host_arena.release(static_cast<char*>(pointer), mapped);
  g.host_used -= mapped;
  g.counters.host_free++;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  Lock lock(state().mutex);
  auto& g = state();
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const auto next = g.allocations.lower_bound(at);
  const bool runs_into_one = next != g.allocations.end() && next->first < at + bytes;
  if (find_allocation(pointer) || runs_into_one) return fail(cudaErrorHostMemoryAlreadyRegistered);
  const size_t mapped = round_up(bytes, kPage);
  const bool full = host_is_full(mapped);
  if (g.host_fault.fires() || full) {
    g.counters.host_alloc_failed++;
    return fail(cudaErrorMemoryAllocation);
  }
  g.allocations[at] = {bytes, current_device(), Kind::kRegistered};
  g.registered++;
  g.host_used += mapped;
  g.host_peak = std::max(g.host_peak, g.host_used);
  g.counters.host_alloc++;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaHostUnregister(void* pointer) {
  Lock lock(state().mutex);
  auto it = state().allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == state().allocations.end() || it->second.kind != Kind::kRegistered) {
    return fail(cudaErrorHostMemoryNotRegistered);
  }
  if (cudaError_t error = give_back("cudaHostUnregister", pointer, it->second.bytes)) return error;
  drain_device(lock, -1);
  state().registered--;
  state().host_used -= round_up(it->second.bytes, kPage);
  state().counters.host_free++;
  state().allocations.erase(it);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t simcuda::attributes_of(cudaPointerAttributes* out, const void* pointer) {
  Lock lock(state().mutex);
  *out = {};
  Allocation* allocation = find_allocation(pointer);
  if (allocation == nullptr) {
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  out->type = allocation->on_device() ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  out->device = allocation->device;
  out->devicePointer = const_cast<void*>(pointer);
  if (!allocation->on_device()) out->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

extern "C" int simcuda_addressable(const void* pointer, size_t bytes) {
  Lock lock(state().mutex);
  uintptr_t base = 0;
  Allocation* allocation = find_allocation(pointer, &base);
  if (allocation == nullptr) return 0;
  const uintptr_t end = reinterpret_cast<uintptr_t>(pointer) + bytes;
  // A kernel, unlike a copy, goes on from one registration to the next.
  for (uintptr_t have = base + allocation->bytes; have < end;) {
    const auto next = state().allocations.find(have);
    if (allocation->kind != Kind::kRegistered || next == state().allocations.end() ||
        next->second.kind != Kind::kRegistered) {
      return 0;
    }
    have += next->second.bytes;
  }
  if (allocation->on_device()) return 1;
  state().counters.mapped_accesses++;
  return 2;
}

// ---- stream-ordered pools (torch's backend:cudaMallocAsync): plain allocations

SIMCUDA_CUDA cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t) {
  return cudaMalloc(out, bytes);
}
SIMCUDA_CUDA cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
SIMCUDA_CUDA cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!valid_device(device)) return fail(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(state().devices[device].get());
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                                 void* value) {
  Lock lock(state().mutex);
  auto* d = reinterpret_cast<Device*>(pool);
  switch (attribute) {
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
      *static_cast<uint64_t*>(value) = d->used;
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      *static_cast<uint64_t*>(value) = d->peak;
      return cudaSuccess;
    default:
      return fail(cudaErrorNotSupported);
  }
}
SIMCUDA_CUDA cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }

// ---- memory of another process: its memfd, mapped here

SIMCUDA_CUDA cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* pointer) {
  Lock lock(state().mutex);
  uintptr_t base = 0;
  Allocation* allocation = find_allocation(pointer, &base);
  if (allocation == nullptr || allocation->kind != Kind::kDevice) {
    return fail(cudaErrorInvalidValue);
  }
  drain_device(lock, allocation->device);
  Device& d = *state().devices[allocation->device];
  IpcHandle handle{};
  memcpy(handle.magic, kIpcMagic, sizeof kIpcMagic);
  handle.process = getpid();
  handle.memory = d.memory;
  handle.device = allocation->device;
  handle.offset = base - reinterpret_cast<uintptr_t>(d.arena.base());
  handle.bytes = allocation->bytes;
  *out = {};
  memcpy(out, &handle, sizeof handle);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t packed, unsigned) {
  IpcHandle handle;
  memcpy(&handle, &packed, sizeof handle);
  if (memcmp(handle.magic, kIpcMagic, sizeof kIpcMagic) != 0) return fail(cudaErrorInvalidValue);
  // As on the real device: memory is not opened in the process that exported it.
  if (handle.process == getpid()) return fail(cudaErrorDeviceUninitialized);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.memory);
  int memory = open(path, O_RDWR | O_CLOEXEC);
  if (memory < 0) return fail(cudaErrorMapBufferObjectFailed);
  Lock lock(state().mutex);
  Device& d = *state().devices[current_device()];
  size_t mapped = round_up(handle.bytes, kPage);
  char* address = d.arena.place(mapped, kLargePage);
  bool ok = address && mmap(address, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
                            static_cast<off_t>(handle.offset)) != MAP_FAILED;
  close(memory);
  if (!ok) {
    if (address) d.arena.release(address, mapped);
    return fail(cudaErrorMapBufferObjectFailed);
  }
  state().allocations[reinterpret_cast<uintptr_t>(address)] = {handle.bytes, current_device(),
                                                               Kind::kImported};
  *out = address;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  Lock lock(state().mutex);
  auto it = state().allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (it == state().allocations.end() || it->second.kind != Kind::kImported) {
    return fail(cudaErrorInvalidValue);
  }
  Allocation allocation = it->second;
  drain_device(lock, allocation.device);
  if (cudaError_t error = give_back("cudaIpcCloseMemHandle", pointer, allocation.bytes)) {
    return error;
  }
  state().allocations.erase(reinterpret_cast<uintptr_t>(pointer));
  state().devices[allocation.device]->arena.release(static_cast<char*>(pointer),
                                                    round_up(allocation.bytes, kPage));
  return cudaSuccess;
}
