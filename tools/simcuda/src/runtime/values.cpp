// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

namespace simcuda {
namespace {

constexpr size_t kArguments = 64;  // of a launch; no more are looked at

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

uintptr_t end_of_stack() {
  thread_local const uintptr_t end = [] {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return uintptr_t{0};
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    return address_of(begin) + bytes;
  }();
  return end;
}

}  // namespace

void Values::put(const void* at, const void* data, size_t bytes) {
  forget(at, bytes);
  if (bytes > kMost) return;
  auto* begin = static_cast<const char*>(data);
  known_[address_of(at)].assign(begin, begin + bytes);
}

void Values::get(void* to, const void* from, size_t bytes) const {
  memset(to, 0, bytes);
  const uintptr_t begin = address_of(from), end = begin + bytes;
  auto found = known_.upper_bound(begin);
  if (found != known_.begin()) --found;
  for (; found != known_.end() && found->first < end; ++found) {
    const uintptr_t first = std::max(begin, found->first);
    const uintptr_t last = std::min(end, found->first + found->second.size());
    if (first >= last) continue;
    memcpy(static_cast<char*>(to) + (first - begin), found->second.data() + (first - found->first),
           last - first);
  }
}

void Values::copy(const void* to, const void* from, size_t bytes) {
  char value[kMost];
  const bool small = bytes <= kMost;
  if (small) get(value, from, bytes);
  forget(to, bytes);
  if (small) put(to, value, bytes);
}

void Values::forget(const void* at, size_t bytes) {
  const uintptr_t begin = address_of(at), end = begin + bytes;
  auto first = known_.lower_bound(begin);
  if (first != known_.begin()) {
    auto before = std::prev(first);
    if (before->first + before->second.size() > begin) first = before;
  }
  while (first != known_.end() && first->first < end) first = known_.erase(first);
}

void Values::forget_arguments(void** arguments) {
  if (arguments == nullptr || known_.empty()) return;
  const uintptr_t begin = address_of(__builtin_frame_address(0)), end = end_of_stack();
  const auto in_stack = [&](const void* pointer) {
    return address_of(pointer) >= begin && address_of(pointer) + sizeof(uintptr_t) <= end;
  };
  const uintptr_t lowest = known_.begin()->first, highest = known_.rbegin()->first + kMost;
  for (size_t i = 0; i < kArguments && in_stack(arguments + i) && in_stack(arguments[i]); i++) {
    uintptr_t value;
    memcpy(&value, arguments[i], sizeof value);
    if (value >= lowest && value < highest) forget(reinterpret_cast<const void*>(value), 1);
  }
}

}  // namespace simcuda
