// SPDX-License-Identifier: Apache-2.0
#pragma once

// The storage reference of PyTorch 2.6 and later; included by storage.h. LMS_PLUGIN is defined
// where PyTorch is unpatched.

#include <c10/core/impl/COW.h>
#include <c10/cuda/lms/compat/storage_weak.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace c10::cuda::lms {

namespace detail {

// Names private members: an explicit instantiation may.
template <class Tag, typename Tag::Type Member>
struct Grant {
  friend typename Tag::Type member(Tag) { return Member; }
};

}  // namespace detail

// ---- references

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
  return detail::lock_weak(storage);
}

#endif

inline intrusive_ptr<StorageImpl> reference_to(StorageImpl* storage) {
  return intrusive_ptr<StorageImpl>::reclaim_copy(storage);
}

// ---- memory

inline size_t nbytes_of(const StorageImpl& storage) noexcept { return storage.nbytes(); }

inline DataPtr& pointer_of(StorageImpl& storage) noexcept {
  return storage._mutable_data_ptr_no_checks();
}

inline const DataPtr& pointer_of(const StorageImpl& storage) noexcept {
  return pointer_of(const_cast<StorageImpl&>(storage));
}

inline void replace_pointer(StorageImpl* storage, DataPtr&& pointer) {
  pointer_of(*storage).release_context();
  storage->set_data_ptr_noswap(std::move(pointer));
}

inline bool drop_memory(StorageImpl* storage) {
  if (!storage->resizable()) {
    return false;
  }
  storage->set_data_ptr_noswap(DataPtr(nullptr, pointer_of(*storage).device()));
  storage->set_nbytes(0);
  return true;
}

inline bool shares_bytes(const DataPtr& pointer) noexcept {
  return c10::impl::cow::is_cow_data_ptr(pointer);
}

// ---- refusing access

inline void* nowhere() noexcept { return nullptr; }

inline void refuse_access(StorageImpl* storage, const char* why) {
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

#if __has_include(<c10/core/StorageMaterializer.h>)  // since PyTorch 2.13

inline void allow_access(StorageImpl* storage) { storage->clear_data_ptr_access_error_msg_(); }

#elif !defined(LMS_PLUGIN)

inline void allow_access(StorageImpl* storage) { storage->clear_data_ptr_access_error(); }

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

inline void allow_access(StorageImpl* storage) {
  storage->*member(detail::ThrowFlag{}) = false;
  (storage->*member(detail::Refresh{}))();
}

#endif

}  // namespace c10::cuda::lms
