// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/exclusions.h"

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorflow {
namespace lms {
namespace {

// The block of a pool that holds the byte; it begins nowhere when there is none.
BfcAccess::Block BlockAt(const void* data) {
  for (const Pool* pool : Runtime::Get().pools) {
    const auto block = BfcAccess::BlockAt(pool->allocator, data);
    if (block.begin != nullptr) return block;
  }
  return {nullptr, -1};
}

}  // namespace

bool Exclusions::Exclude(const void* data) {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine.mutex());
  MovableBuffer* buffer = runtime.tracker.Holding(data);
  if (buffer == nullptr) {
    const auto block = BlockAt(data);
    if (block.begin != nullptr) untracked_[block.begin] = block.allocation;
    return true;
  }
  try {
    runtime.engine.exclude(buffer, Tracker::StreamOf(buffer));
  } catch (const OutOfMemory& error) {
    LOG(ERROR) << error.what();
    return false;
  }
  return true;
}

void Exclusions::Include(const void* data) {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine.mutex());
  MovableBuffer* buffer = runtime.tracker.Holding(data);
  if (buffer != nullptr) {
    runtime.engine.include(buffer);
  } else {
    untracked_.erase(BlockAt(data).begin);
  }
}

void Exclusions::NoteTracked(MovableBuffer* buffer) {
  const auto found = untracked_.find(buffer->data());
  if (found == untracked_.end()) return;
  // Another tensor may have had the address when it was excluded.
  const bool excluded = found->second == buffer->allocator()->AllocationId(buffer->data());
  untracked_.erase(found);
  if (!excluded) return;
  Runtime::Get().engine.exclude(buffer, Tracker::StreamOf(buffer));
}

}  // namespace lms
}  // namespace tensorflow
