// SPDX-License-Identifier: Apache-2.0
#pragma once

// The storage reference of PyTorch 1.13; included by storage.h.

#include <c10/cuda/lms/compat/storage_weak.h>

#include <utility>

namespace c10::cuda::lms {

inline intrusive_ptr<StorageImpl> try_lock(StorageImpl* storage) {
  return detail::lock_weak(storage);
}

inline intrusive_ptr<StorageImpl> reference_to(StorageImpl* storage) {
  return intrusive_ptr<StorageImpl>::reclaim_copy(storage);
}

// ---- memory

inline size_t nbytes_of(const StorageImpl& storage) noexcept { return storage.nbytes(); }

inline DataPtr& pointer_of(StorageImpl& storage) noexcept { return storage.data_ptr(); }

inline const DataPtr& pointer_of(const StorageImpl& storage) noexcept { return storage.data_ptr(); }

inline void replace_pointer(StorageImpl* storage, DataPtr&& pointer) {
  pointer_of(*storage).release_context();
  storage->set_data_ptr_noswap(std::move(pointer));
}

inline bool drop_memory(StorageImpl* storage) {
  if (!storage->resizable()) {
    return false;
  }
  storage->set_data_ptr_noswap(DataPtr(nullptr, pointer_of(*storage).device()));
  storage->set_nbytes(size_t{0});
  return true;
}

inline bool shares_bytes(const DataPtr&) noexcept { return false; }

// ---- refusing access: nothing asks a storage whether it may

inline void refuse_access(StorageImpl*, const char*) {}

inline void allow_access(StorageImpl*) {}

// In the first page. Of null, Python makes no storage.
inline void* nowhere() noexcept { return reinterpret_cast<void*>(64); }

}  // namespace c10::cuda::lms
