// SPDX-License-Identifier: Apache-2.0
#pragma once

// The write barrier of PyTorch 2.6 and later; included by write_barrier.h. A mutable access to a
// storage goes through c10's own inline check for copy-on-write, which takes it off.

#if __has_include(<c10/core/StorageMaterializer.h>)
#define LMS_HAS_MATERIALIZER 1  // since PyTorch 2.13
#else
#define LMS_HAS_MATERIALIZER 0
#include <c10/core/impl/COWDeleter.h>
#endif

namespace c10::cuda::lms {

#if LMS_HAS_MATERIALIZER

namespace detail {

inline void written(StorageImpl*) {}  // c10 has taken the materializer off when this returns

}  // namespace detail

inline Barrier arm_barrier(StorageImpl* storage) {
  if (storage->has_materializer()) {
    return nullptr;  // somebody else's
  }
  storage->set_materializer(&detail::written);
  return storage;
}

inline Writes writes_since(StorageImpl& storage, Barrier armed) {
  return armed == &storage && storage.has_materializer() ? Writes::kNone : Writes::kUnknown;
}

inline void disarm_barrier(StorageImpl* storage) { storage->clear_materializer(); }

inline bool may_be_guarded(const DataPtr&) { return false; }  // its pointer is a plain one

#else

// The pointer is made a copy-on-write one with a single owner, which materialising unwraps.
inline Barrier arm_barrier(StorageImpl* storage) {
  DataPtr& pointer = pointer_of(*storage);
  void* data = pointer.get();
  const Device device = pointer.device();
  auto* context = new c10::impl::cow::COWDeleterContext(pointer.move_context());
  replace_pointer(storage, DataPtr(data, context, c10::impl::cow::cow_deleter, device));
  return context;
}

inline Writes writes_since(StorageImpl& storage, Barrier armed) {
  const DataPtr& pointer = pointer_of(storage);
  return armed == pointer.get_context() && shares_bytes(pointer) ? Writes::kNone : Writes::kUnknown;
}

inline void disarm_barrier(StorageImpl* storage) { storage->mutable_data_ptr(); }

inline bool may_be_guarded(const DataPtr& pointer) { return shares_bytes(pointer); }

#endif

}  // namespace c10::cuda::lms
