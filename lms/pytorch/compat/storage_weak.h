// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is the same in all versions of PyTorch: how references to a storage are counted, and a look
// at its pointer. Included by the implementations of storage.h.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace c10::cuda::lms {

namespace detail {

using WeakStorage = weak_intrusive_ptr<StorageImpl>;

inline intrusive_ptr<StorageImpl> lock_weak(StorageImpl* storage) {
  auto weak = WeakStorage::reclaim(storage);
  auto strong = weak.lock();
  weak.release();
  return strong;
}

}  // namespace detail

// Of one with a strong reference. PyTorch 1.1 refuses to count a first weak one in any other way.
inline void add_weak(StorageImpl* storage) noexcept { raw::intrusive_ptr::make_weak(storage); }

inline void drop_weak(StorageImpl* storage) noexcept { detail::WeakStorage::reclaim(storage); }

inline bool expired(StorageImpl* storage) noexcept {
  auto weak = detail::WeakStorage::reclaim(storage);
  const bool expired = weak.expired();
  weak.release();
  return expired;
}

// A copy that owns nothing.
struct Glance {
  const DataPtr& pointer() const noexcept { return *reinterpret_cast<const DataPtr*>(bytes); }
  Device device() const noexcept { return pointer().device(); }

  alignas(DataPtr) unsigned char bytes[sizeof(DataPtr)];
};

// Word by word, each read once. To the thread sanitizer this is a race, which it need not tell of.
__attribute__((no_sanitize_thread)) inline Glance glance(const StorageImpl& storage) noexcept {
  using Word [[gnu::may_alias]] = uintptr_t;
  static_assert(sizeof(DataPtr) == 4 * sizeof(Word), "a DataPtr is four words");
  const auto* from = reinterpret_cast<const volatile Word*>(&pointer_of(storage));
  Glance seen;
  auto* to = reinterpret_cast<Word*>(seen.bytes);
  to[0] = from[0];  // no loop: every operand comes by here
  to[1] = from[1];
  to[2] = from[2];
  to[3] = from[3];
  return seen;
}

// The last word alone.
__attribute__((no_sanitize_thread)) inline Device glance_at_device(
    const StorageImpl& storage) noexcept {
  using Word [[gnu::may_alias]] = uintptr_t;
  const Word last = reinterpret_cast<const volatile Word*>(&pointer_of(storage))[3];
  Device device(kCUDA);
  static_assert(sizeof(device) <= sizeof(last), "it is in one word");
  std::memcpy(static_cast<void*>(&device), &last, sizeof(device));
  return device;
}

}  // namespace c10::cuda::lms
