// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is the same in all versions of PyTorch: how references to a storage are counted, and a look
// at its pointer. Included by the implementations of storage.h.

#include <cstddef>
#include <cstdint>

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

inline void add_weak(StorageImpl* storage) noexcept { raw::weak_intrusive_ptr::incref(storage); }

inline void drop_weak(StorageImpl* storage) noexcept { detail::WeakStorage::reclaim(storage); }

inline bool expired(StorageImpl* storage) noexcept {
  auto weak = detail::WeakStorage::reclaim(storage);
  const bool expired = weak.expired();
  weak.release();
  return expired;
}

// A copy, word by word, that owns nothing.
struct Glance {
  using Word [[gnu::may_alias]] = uintptr_t;

  const DataPtr& pointer() const noexcept { return *reinterpret_cast<const DataPtr*>(words); }
  Device device() const noexcept { return pointer().device(); }

  alignas(DataPtr) Word words[sizeof(DataPtr) / sizeof(Word)];
};
static_assert(sizeof(Glance) == sizeof(DataPtr), "a DataPtr is made of words");

// Each word is read once. To the thread sanitizer this is a race, which it need not tell of.
__attribute__((no_sanitize_thread)) inline Glance glance(const StorageImpl& storage) noexcept {
  const volatile auto* from = reinterpret_cast<const volatile Glance*>(&pointer_of(storage));
  Glance seen;
  for (size_t i = 0; i < sizeof(seen.words) / sizeof(Glance::Word); ++i) {
    seen.words[i] = from->words[i];
  }
  return seen;
}

}  // namespace c10::cuda::lms
