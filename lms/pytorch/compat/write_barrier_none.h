// SPDX-License-Identifier: Apache-2.0
#pragma once

// No write barrier, as in PyTorch 1.13, whose storages tell nobody of an access; included by
// write_barrier.h. A host copy is good until its storage is used or waited for.

namespace c10::cuda::lms {

inline Barrier arm_barrier(StorageImpl*) { return nullptr; }

inline Writes writes_since(StorageImpl&, Barrier) { return Writes::kUnknown; }

inline void disarm_barrier(StorageImpl*) {}

inline bool may_be_guarded(const DataPtr&) { return false; }

}  // namespace c10::cuda::lms
