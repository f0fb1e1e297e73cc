// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/compat/implementations.h>
#include <c10/cuda/lms/compat/storage.h>

#include <cstdint>

// Seam: the write barrier. Ops announce what they write, and whatever is not known of an argument
// counts as a write (op_facts.h). The barrier tells of all other writes to a resident storage that
// is idle and clean.
namespace c10::cuda::lms {

// Since the barrier was armed.
enum class Writes : uint8_t {
  kNone,     // certainly none: the host copy has the storage's bytes
  kUnknown,  // there was one, or might have been: the host copy is dropped
};
// kUnknown is always a right answer: it costs a page-out, never a byte. Where the framework has
// nothing that notices writes it is the only one.

// One arming of a barrier, to be told from a later one. Null: nothing was armed.
using Barrier = const void*;

// Of a storage with the allocator's own pointer. Under the engine's lock, as all of this.
Barrier arm_barrier(StorageImpl* storage);
Writes writes_since(StorageImpl& storage, Barrier armed);
// After kNone: the storage has the allocator's own pointer again.
void disarm_barrier(StorageImpl* storage);
// Whether an armed barrier may be what `pointer` has a deleter of, in the place of the allocator's.
bool may_be_guarded(const DataPtr& pointer);

}  // namespace c10::cuda::lms

#include LMS_WRITE_BARRIER
