// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "trace.h"

namespace simcuda {
namespace {

constexpr size_t kArenaBytes = size_t{4} << 40;

// The loader (config.py) checks and writes these variables; here they are plain numbers.
double environment(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtod(text, nullptr) : otherwise;
}

thread_local cudaError_t t_last_error = cudaSuccess;
thread_local int t_device = 0;

}  // namespace

Arena::Arena(size_t bytes) : size_(bytes) {
  void* range = MAP_FAILED;
  // A process with a limited address space gets a smaller arena, not none.
  while (range == MAP_FAILED && size_ >= kLargePage) {
    range = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) size_ /= 2;
  }
  if (range == MAP_FAILED) abort();
  base_ = static_cast<char*>(range);
  next_ =
      round_up(reinterpret_cast<uintptr_t>(base_), kLargePage) - reinterpret_cast<uintptr_t>(base_);
}

char* Arena::place(size_t bytes, size_t alignment) {
  auto aligned = [&](size_t offset) {
    auto address = reinterpret_cast<uintptr_t>(base_) + offset;
    return offset + (round_up(address, alignment) - address);
  };
  size_t offset = aligned(next_);
  if (offset + bytes <= size_) {
    next_ = offset + bytes;
  } else {  // all address space was used once: first fit between the live ranges
    offset = aligned(0);
    for (const auto& range : live_) {
      size_t begin = range.first - base_;
      if (offset + bytes <= begin) break;
      offset = std::max(offset, aligned(begin + range.second));
    }
    if (offset + bytes > size_) return nullptr;
  }
  live_[base_ + offset] = bytes;
  return base_ + offset;
}

void Arena::release(char* address, size_t bytes) {
  mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  live_.erase(address);
}

Device::Device(size_t capacity_bytes)
    : capacity(capacity_bytes), arena(kArenaBytes), next_physical(arena.size()) {
  memory = memfd_create("simcuda-device", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(2 * kArenaBytes)) != 0) abort();
}

State::State() : host_arena(kArenaBytes) {
  auto capacity = static_cast<size_t>(environment("SIMCUDA_MEMORY_BYTES", 1ull << 30));
  int count = static_cast<int>(environment("SIMCUDA_DEVICES", 1));
  for (int i = 0; i < count; i++) {
    devices.push_back(std::make_unique<Device>(capacity));
    devices.back()->default_stream.device = i;
  }
  mode = static_cast<int>(environment("SIMCUDA_MODE_NUMBER", SIMCUDA_IMMEDIATE));
  lag = static_cast<long>(environment("SIMCUDA_LAG", 0));
  bandwidth = environment("SIMCUDA_BANDWIDTH", 0);
  host_capacity = static_cast<size_t>(environment("SIMCUDA_HOST_MEMORY_BYTES", 0));
  poison = environment("SIMCUDA_POISON", 1) != 0;
  const char* strict = getenv("SIMCUDA_STRICT");
  abort_on_refusal = strict && strcmp(strict, "abort") == 0;
}

State& state() {
  // Forked with the mutex, so that no thread that the child does not have can hold it there.
  static State* instance = [] {
    static auto* made = new State;
    const auto unlock = [] { made->mutex.unlock(); };
    pthread_atfork([] { made->mutex.lock(); }, unlock, unlock);
    return made;
  }();
  return *instance;
}

int current_device() { return t_device; }

bool valid_device(int device) {
  return device >= 0 && device < static_cast<int>(state().devices.size());
}

cudaError_t fail(cudaError_t error) {
  // That something is not over is no error to TensorFlow, which takes errors for the next call's.
  if (error == cudaErrorNotReady && state().unseen_kernels) return error;
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

Allocation* find_allocation(const void* pointer, uintptr_t* base) {
  auto& allocations = state().allocations;
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto it = allocations.upper_bound(address);
  if (it == allocations.begin()) return nullptr;
  --it;
  if (address >= it->first + it->second.bytes) return nullptr;
  if (base) *base = it->first;
  return &it->second;
}

bool Fault::fires() {
  if (skip > 0) {
    skip--;
    return false;
  }
  if (count <= 0) return false;
  count--;
  return true;
}

bool charge(int device, size_t bytes) {
  auto& g = state();
  auto& d = *g.devices[device];
  if (g.malloc_fault.fires() || d.used + bytes > d.capacity) {
    g.counters.malloc_failed++;
    return false;
  }
  d.used += bytes;
  d.peak = std::max(d.peak, d.used);
  return true;
}

size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// A driver hands out 512-byte granules from shared 2 MiB pages, and whole pages from 1 MiB on.
size_t charged_bytes(size_t bytes) {
  return bytes >= (size_t{1} << 20) ? round_up(bytes, kLargePage) : round_up(bytes, 512);
}

double now_milliseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_CUDA cudaError_t cudaGetLastError() {
  cudaError_t error = t_last_error;
  t_last_error = cudaSuccess;
  return error;
}

SIMCUDA_CUDA cudaError_t cudaPeekAtLastError() { return t_last_error; }

SIMCUDA_CUDA cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaSetDevice(int device) {
  if (!valid_device(device)) return fail(cudaErrorInvalidDevice);
  t_device = device;
  return cudaSuccess;
}
