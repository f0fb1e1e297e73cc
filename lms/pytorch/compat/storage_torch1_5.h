// SPDX-License-Identifier: Apache-2.0
#pragma once

// The storage reference of PyTorch 1.5, whose storages have a type and count elements; included by
// storage.h.

#include <c10/cuda/lms/compat/storage_weak.h>

#include <utility>

namespace c10::cuda::lms {

inline intrusive_ptr<StorageImpl> try_lock(StorageImpl* storage) {
  return detail::lock_weak(storage);
}

inline intrusive_ptr<StorageImpl> reference_to(StorageImpl* storage) {
  raw::intrusive_ptr::incref(storage);
  return intrusive_ptr<StorageImpl>::reclaim(storage);
}

// ---- memory

inline size_t nbytes_of(const StorageImpl& storage) noexcept { return storage.capacity(); }

inline DataPtr& pointer_of(StorageImpl& storage) noexcept { return storage.data_ptr(); }

inline const DataPtr& pointer_of(const StorageImpl& storage) noexcept { return storage.data_ptr(); }

inline void replace_pointer(StorageImpl* storage, DataPtr&& pointer) {
  pointer_of(*storage).release_context();
  pointer_of(*storage) = std::move(pointer);
}

inline bool drop_memory(StorageImpl* storage) {
  if (!storage->resizable()) {
    return false;
  }
  pointer_of(*storage) = DataPtr(nullptr, pointer_of(*storage).device());
  storage->set_numel(0);
  return true;
}

inline bool shares_bytes(const DataPtr&) noexcept { return false; }

// ---- refusing access: nothing asks a storage whether it may

inline void refuse_access(StorageImpl*, const char*) {}

inline void allow_access(StorageImpl*) {}

// In the first page, so that it is no null, which tells of a storage without bytes.
inline void* nowhere() noexcept { return reinterpret_cast<void*>(64); }

}  // namespace c10::cuda::lms
