// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process whose CPU device has a limited pool: counts what the pool takes of the
// system, and large copies out of it and into it, without asking anybody who makes them.
//
// Regions of a pool are told by how TensorFlow's allocator gets them: posix_memalign of a MiB or
// more at the alignment of tensors. Other memory of the process is aligned otherwise, or smaller.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

extern "C" void* __libc_memalign(size_t, size_t);
extern "C" void __libc_free(void*);

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestRegion = 1 << 20;
constexpr size_t kSmallestCopy = 4096;
constexpr int kRegions = 512;

struct Region {
  std::atomic<uintptr_t> begin{0}, end{0};
};
Region regions[kRegions];
std::atomic<int> known{0};
std::atomic<uint64_t> held{0}, peak{0}, out{0}, in{0};

using Copy = void* (*)(void*, const void*, size_t);
std::atomic<Copy> next_memcpy{nullptr}, next_memmove{nullptr};

bool InPool(const void* ptr) {
  const auto at = reinterpret_cast<uintptr_t>(ptr);
  for (int i = 0, n = known.load(std::memory_order_acquire); i < n; ++i) {
    if (at >= regions[i].begin.load(std::memory_order_relaxed) &&
        at < regions[i].end.load(std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Add(void* ptr, size_t size) {
  static std::atomic_flag busy = ATOMIC_FLAG_INIT;
  while (busy.test_and_set(std::memory_order_acquire)) {
  }
  int slot = 0;
  const int count = known.load();
  while (slot < count && regions[slot].end.load() != 0) ++slot;
  if (slot < kRegions) {
    regions[slot].begin = reinterpret_cast<uintptr_t>(ptr);
    regions[slot].end = reinterpret_cast<uintptr_t>(ptr) + size;
    if (slot == count) known.store(count + 1, std::memory_order_release);
    const uint64_t now = held += size;
    if (now > peak) peak = now;
  }
  busy.clear(std::memory_order_release);
}

void Remove(void* ptr) {
  const auto at = reinterpret_cast<uintptr_t>(ptr);
  if (at == 0 || at % kAlignment != 0) return;
  for (int i = 0, n = known.load(std::memory_order_acquire); i < n; ++i) {
    if (regions[i].begin.load(std::memory_order_relaxed) == at) {
      held -= regions[i].end - at;
      regions[i].begin = 0;
      regions[i].end = 0;
    }
  }
}

void Count(const void* to, const void* from, size_t size) {
  if (size < kSmallestCopy || known.load(std::memory_order_relaxed) == 0) return;
  const bool source = InPool(from), target = InPool(to);
  if (source && !target) out += size;
  if (target && !source) in += size;
}

Copy Next(std::atomic<Copy>& known_copy, const char* name) {
  Copy copy = known_copy.load(std::memory_order_relaxed);
  if (copy == nullptr) {
    copy = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, name));
    known_copy.store(copy, std::memory_order_relaxed);
  }
  return copy;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int posix_memalign(void** ptr, size_t alignment, size_t size) {
  *ptr = __libc_memalign(alignment, size);
  if (*ptr == nullptr) return ENOMEM;
  if (alignment <= kAlignment && size >= kSmallestRegion) Add(*ptr, size);
  return 0;
}

EXPORT void free(void* ptr) {
  if (known.load(std::memory_order_relaxed) != 0) Remove(ptr);
  __libc_free(ptr);
}

EXPORT void* memcpy(void* to, const void* from, size_t size) {
  Count(to, from, size);
  return Next(next_memcpy, "memcpy")(to, from, size);
}

EXPORT void* memmove(void* to, const void* from, size_t size) {
  Count(to, from, size);
  return Next(next_memmove, "memmove")(to, from, size);
}

// Bytes the pool holds now, the most it held, bytes copied out of it and into it.
EXPORT void pool_meter_read(uint64_t values[4]) {
  values[0] = held;
  values[1] = peak;
  values[2] = out;
  values[3] = in;
}
