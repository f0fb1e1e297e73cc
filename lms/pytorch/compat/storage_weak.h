// SPDX-License-Identifier: Apache-2.0
#pragma once

// References to a storage as all versions of PyTorch count them; included by the implementations of
// storage.h.

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

}  // namespace c10::cuda::lms
