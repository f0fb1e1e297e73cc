// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>

#if __has_include(<c10/core/StorageMaterializer.h>)
#define LMS_HAS_MATERIALIZER 1  // since PyTorch 2.13
#else
#define LMS_HAS_MATERIALIZER 0
#include <c10/core/impl/COWDeleter.h>
#endif

// What the versions of PyTorch do differently, as far as the runtime is concerned. LMS_PLUGIN is
// defined where it is built against an unpatched PyTorch.
namespace c10::cuda::lms {

namespace detail {

// Names private members: an explicit instantiation may.
template <class Tag, typename Tag::Type Member>
struct Grant {
  friend typename Tag::Type member(Tag) { return Member; }
};

}  // namespace detail

// ---- A strong reference to a storage that a weak one keeps from being reused. Null when it is
// dead.

#if __has_include(<torch/headeronly/version.h>)  // since PyTorch 2.10 a reference may need the GIL

namespace detail {

struct References {
  using Type = std::atomic<uint64_t> intrusive_ptr_target::*;
  friend Type member(References);
};
template struct Grant<References, &intrusive_ptr_target::combined_refcount_>;

}  // namespace detail

// Null, too, when only its Python object holds it: another reference keeps that object alive, which
// takes the GIL, and a thread with the GIL may wait for a lock that the caller holds.
inline intrusive_ptr<StorageImpl> try_lock(StorageImpl* storage) {
  std::atomic<uint64_t>& references = storage->*member(detail::References{});
  uint64_t seen = references.load(std::memory_order_relaxed);
  do {
    const uint32_t strong = c10::detail::refcount(seen);
    if (strong == 0 || (strong == 1 && c10::detail::has_pyobject(seen))) {
      return {};
    }
  } while (!references.compare_exchange_weak(seen, seen + c10::detail::kReferenceCountOne,
                                             std::memory_order_acquire, std::memory_order_relaxed));
  return intrusive_ptr<StorageImpl>::reclaim(storage);
}

#else

inline intrusive_ptr<StorageImpl> try_lock(StorageImpl* storage) {
  auto weak = weak_intrusive_ptr<StorageImpl>::reclaim(storage);
  auto strong = weak.lock();
  weak.release();
  return strong;
}

#endif

// ---- The write barrier: a mutable access to the storage, by c10's own inline check, takes it off.

#if LMS_HAS_MATERIALIZER

inline void written(StorageImpl*) {}  // c10 has taken the hook off when this returns

inline bool may_be_guarded(const DataPtr&) { return false; }  // its pointer is a plain one

// Arms it on a storage with a plain pointer. What it returns tells this barrier from a later one.
inline const void* arm_barrier(StorageImpl* storage) {
  if (storage->has_materializer()) {
    return nullptr;  // somebody else's: `barrier_intact` is false, so the copy is not trusted
  }
  storage->set_materializer(&written);
  return storage;
}

inline bool barrier_intact(const StorageImpl* storage, const void* armed) {
  return storage == armed && storage->has_materializer();
}

inline void disarm_barrier(StorageImpl* storage) { storage->clear_materializer(); }

#else

// The pointer is made a copy-on-write one with a single owner, which materialising unwraps.
inline bool may_be_guarded(const DataPtr& pointer) {
  return c10::impl::cow::is_cow_data_ptr(pointer);
}

inline const void* arm_barrier(StorageImpl* storage) {
  DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  void* data = pointer.get();
  const Device device = pointer.device();
  auto* context = new c10::impl::cow::COWDeleterContext(pointer.move_context());
  storage->set_data_ptr_noswap(DataPtr(data, context, c10::impl::cow::cow_deleter, device));
  return context;
}

inline bool barrier_intact(StorageImpl* storage, const void* armed) {
  const DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  return armed == pointer.get_context() && c10::impl::cow::is_cow_data_ptr(pointer);
}

inline void disarm_barrier(StorageImpl* storage) { storage->mutable_data_ptr(); }

#endif

// ---- Undoing StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_

#if LMS_HAS_MATERIALIZER

inline void clear_access_error(StorageImpl* storage) {
  storage->clear_data_ptr_access_error_msg_();
}

#elif !defined(LMS_PLUGIN)

inline void clear_access_error(StorageImpl* storage) { storage->clear_data_ptr_access_error(); }

#else

namespace detail {

struct ThrowFlag {
  using Type = bool StorageImpl::*;
  friend Type member(ThrowFlag);
};
struct Refresh {
  using Type = void (StorageImpl::*)();
  friend Type member(Refresh);
};
template struct Grant<ThrowFlag, &StorageImpl::throw_on_immutable_data_ptr_>;
template struct Grant<Refresh, &StorageImpl::refresh_has_data_ptr_check>;

}  // namespace detail

inline void clear_access_error(StorageImpl* storage) {
  storage->*member(detail::ThrowFlag{}) = false;
  (storage->*member(detail::Refresh{}))();
}

#endif

}  // namespace c10::cuda::lms
