// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/backend.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorflow {
namespace lms {

Trap::Trap(size_t bytes)
    : bytes_(bytes),
      ptr_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  CHECK(ptr_ != MAP_FAILED) << "Large Model Support: chaos mode is out of addresses";
}

Trap::~Trap() { munmap(ptr_, bytes_); }

bool Backend::acquire(::lms::Key) {
  return true;  // a dying buffer is forgotten under the engine's lock before it goes
}

::lms::Extent Backend::locate(::lms::Key key) {
  MovableBuffer* buffer = BufferOf(key);
  const ::lms::Place place = buffer->stays_out_         ? ::lms::Place::kForeign
                             : buffer->host_ != nullptr ? ::lms::Place::kHost
                                                        : ::lms::Place::kDevice;
  return {place, buffer->data(), buffer->size(), buffer->pool_->index};
}

bool Backend::movable(const ::lms::Extent&, const ::lms::StreamSet&) { return true; }

void Backend::Rebind(MovableBuffer* buffer, void* data) {
  const char* old = static_cast<const char*>(buffer->data());
  for (TensorBuffer* view : buffer->views_) {
    const auto offset = static_cast<const char*>(view->data()) - old;
    BufferAccess::Rebind(view, static_cast<char*>(data) + offset);
  }
  BufferAccess::Rebind(buffer, data);
}

void Backend::CountHost(MovableBuffer* buffer, int sign) {
  Pool* pool = buffer->pool_;
  const int64_t bytes = static_cast<int64_t>(buffer->size());
  on_host_ += sign;
  if (sign > 0) {
    pool->out_bytes.increase(bytes);
  } else {
    pool->out_bytes.decrease(bytes);
  }
}

void Backend::page_out(::lms::Key key, const ::lms::Extent& from, ::lms::HostRange host, bool copy,
                       const ::lms::StreamSet&) {
  MovableBuffer* buffer = BufferOf(key);
  Pool* pool = buffer->pool_;
  std::unique_ptr<HostCopy> state(new HostCopy);
  state->range = host;
  state->bytes = from.bytes;
  if (copy) {
    state->written = pool->transport->ToHost(host.ptr, from.ptr, from.bytes);
  } else if (poison_ && pool->on_cpu) {
    CHECK_EQ(std::memcmp(host.ptr, from.ptr, from.bytes), 0)
        << "Large Model Support: a tensor of " << from.bytes << " bytes in " << pool->name
        << " was written by an op that was taken to read it only";
  }
  state->left = from.ptr;
  if (poison_) {
    pool->transport->Poison(from.ptr, from.bytes);
    state->trap.reset(new Trap(from.bytes));
  }
  buffer->host_ = state.release();
  Rebind(buffer, poison_ ? buffer->host_->trap->ptr() : host.ptr);
  CountHost(buffer, +1);
  pool->allocator->DeallocateRaw(from.ptr);
}

::lms::HostRange Backend::page_in(::lms::Key key, bool copy, ::lms::Stream, ::lms::Reclaim reclaim,
                                  ::lms::FencePtr* arrival) {
  MovableBuffer* buffer = BufferOf(key);
  Pool* pool = buffer->pool_;
  const bool waited_for = reclaim == ::lms::Reclaim::kAllowed;
  void* data = waited_for ? pool->TakeOrMakeRoom(buffer->size(), /*freed_before=*/0)
                          : pool->TakeFree(buffer->size(), /*freed_before=*/0);
  if (data == nullptr && waited_for) throw OutOfMemory(Shortage(pool, buffer->size()));
  if (data == nullptr) return {};
  std::unique_ptr<HostCopy> state(buffer->host_);
  if (poison_ && data == state->left) data = Elsewhere(pool, data, buffer->size());
  if (copy) {
    *arrival = pool->transport->ToDevice(data, state->range.ptr, state->bytes);
  } else {
    *arrival = state->written;
  }
  CountHost(buffer, -1);
  buffer->host_ = nullptr;
  Rebind(buffer, data);
  return state->range;
}

void Backend::refill(::lms::Key key, ::lms::HostRange host, ::lms::Stream,
                     ::lms::FencePtr* arrival) {
  MovableBuffer* buffer = BufferOf(key);
  *arrival = buffer->pool_->transport->ToDevice(buffer->data(), host.ptr, buffer->size());
}

void Backend::set_candidate(::lms::Key key, bool candidate) {
  MovableBuffer* buffer = BufferOf(key);
  const bool here = buffer->host_ == nullptr && !buffer->stays_out_;
  const int64_t bytes = candidate && here ? static_cast<int64_t>(buffer->size()) : 0;
  buffer->pool_->candidate_bytes += bytes - buffer->candidate_bytes_;
  buffer->candidate_bytes_ = bytes;
}

// Another block instead of `data`, as long as there is one that need not be made free.
void* Backend::Elsewhere(Pool* pool, void* data, size_t bytes) {
  void* other = BfcAccess::AllocateOnce(pool->allocator, bytes, /*freed_before=*/0);
  if (other == nullptr) return data;
  pool->allocator->DeallocateRaw(data);
  return other;
}

void Backend::Disarm(MovableBuffer* buffer) {
  if (buffer->host_ == nullptr || buffer->host_->trap == nullptr) return;
  Rebind(buffer, buffer->host_->range.ptr);
  buffer->host_->trap.reset();
}

void Backend::Discard(MovableBuffer* buffer) {
  if (buffer->host_ == nullptr) return;
  std::unique_ptr<HostCopy> state(buffer->host_);
  CountHost(buffer, -1);
  buffer->host_ = nullptr;
  host_->free(state->range, state->written);
  BufferAccess::Rebind(buffer, nullptr);
}

}  // namespace lms
}  // namespace tensorflow
