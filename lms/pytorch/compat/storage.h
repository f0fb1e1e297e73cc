// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/lms/compat/implementations.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>

// Seam: the storage reference. All that the runtime does with a StorageImpl and the counts of its
// references, which PyTorch's versions spell differently. Nothing here waits, takes a lock or runs
// Python, but what lets the last reference go.
namespace c10::cuda::lms {

struct Glance;

// A weak reference: the address is not used for another storage until it is let go.
void add_weak(StorageImpl* storage) noexcept;
void drop_weak(StorageImpl* storage) noexcept;
// Of a storage with a weak reference: whether the last strong one is gone.
bool expired(StorageImpl* storage) noexcept;
// A strong one of it. Null when it has expired, and when this would mean to wait.
intrusive_ptr<StorageImpl> try_lock(StorageImpl* storage);
// A strong one of a storage that somebody else keeps alive meanwhile.
intrusive_ptr<StorageImpl> reference_to(StorageImpl* storage);

// Of its memory, in bytes.
size_t nbytes_of(const StorageImpl& storage) noexcept;
// The pointer with its deleter, as it is: unlike the framework's own accessors this neither counts
// as a write nor fails where access is refused.
DataPtr& pointer_of(StorageImpl& storage) noexcept;
const DataPtr& pointer_of(const StorageImpl& storage) noexcept;
// The same without the engine's lock, though another thread may be moving it: each word is one that
// it has, or had just now. The device is right. That a storage is not the engine's is to be asked
// again under the lock.
Glance glance(const StorageImpl& storage) noexcept;
Device glance_at_device(const StorageImpl& storage) noexcept;
// The old pointer's deleter does not run: its memory has a new owner.
void replace_pointer(StorageImpl* storage, DataPtr&& pointer);
// Frees its memory: it has no bytes from now on. False, and nothing is done, where its size is
// fixed.
bool drop_memory(StorageImpl* storage);
// Whether the bytes are others' as well, so that a write would give the storage a block of its own.
bool shares_bytes(const DataPtr& pointer) noexcept;

// Any access by the framework's own accessors raises `why`; and the end of that. Nothing where a
// version has no such thing.
void refuse_access(StorageImpl* storage, const char* why);
void allow_access(StorageImpl* storage);
// An address where an access is a fault, for a storage that has bytes.
void* nowhere() noexcept;

}  // namespace c10::cuda::lms

#include LMS_STORAGE
