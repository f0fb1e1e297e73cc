// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/tracker.h"

#include <algorithm>
#include <iterator>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace tensorflow {
namespace lms {

MovableBuffer* Tracker::Manageable(const Tensor& tensor) {
  if (!DataTypeCanUseMemcpy(tensor.dtype())) return nullptr;
  MovableBuffer* buffer = MovableBuffer::Of(tensor);
  if (buffer == nullptr || buffer->size() < kSmallestMovable) return nullptr;
  const bool can = buffer->tracked() || Runtime::Get().pools.Of(buffer->allocator()) != nullptr;
  return can ? buffer : nullptr;
}

bool Tracker::IsOnly(const Tensor& tensor) {
  TensorBuffer* buffer = const_cast<TensorBuffer*>(DMAHelper::buffer(&tensor));
  return buffer->RefCountIsOne() && buffer->root_buffer()->RefCountIsOne();
}

bool Tracker::PointerTakenUnseen(const MovableBuffer* buffer) {
  return kPointersTakenUnseen && Runtime::Get().pools.Of(buffer->allocator())->on_cpu;
}

::lms::Stream Tracker::StreamOf(const MovableBuffer* buffer) {
  return buffer->pool_->transport->stream();
}

void Tracker::Track(MovableBuffer* buffer) {
  if (buffer->tracked() || buffer->data() == nullptr) return;
  Runtime& runtime = Runtime::Get();
  buffer->pool_ = runtime.pools.Of(buffer->allocator());
  buffer->tracked_.store(true, std::memory_order_release);
  tracked_.insert(buffer);
  runtime.engine.note(nullptr, buffer, StreamOf(buffer));
  runtime.exclusions.NoteTracked(buffer);
}

bool Tracker::TrackIfAlone(const Tensor& tensor, MovableBuffer* buffer) {
  if (buffer->tracked()) return true;
  const bool whole = DMAHelper::buffer(&tensor) == buffer;  // not a part of it
  if (!whole || !IsOnly(tensor)) return false;
  Track(buffer);
  return true;
}

void Tracker::Forget(MovableBuffer* buffer) {
  Runtime& runtime = Runtime::Get();
  {
    EngineLock lock(runtime.engine.mutex());
    runtime.engine.forget(buffer);
    tracked_.erase(buffer);
    for (auto it = holders_.begin(); buffer->holders_ > 0 && it != holders_.end();) {
      const bool its = it->second == buffer;
      if (its) --buffer->holders_;
      it = its ? holders_.erase(it) : std::next(it);
    }
    runtime.backend.Discard(buffer);
    buffer->tracked_.store(false);
  }
  lms_switch.retire();
}

MovableBuffer* Tracker::Holding(const void* data) const {
  for (MovableBuffer* buffer : tracked_) {
    const char* begin = static_cast<const char*>(buffer->data());
    if (data >= begin && data < begin + buffer->size()) return buffer;
  }
  return nullptr;
}

void Tracker::ExposeUnlessPinned(MovableBuffer* buffer) {
  ::lms::Engine& engine = Runtime::Get().engine;
  EngineLock lock(engine.mutex());
  if (!engine.pinned(buffer)) Expose(buffer);
}

void Tracker::Expose(MovableBuffer* buffer) {
  EngineLock lock(Runtime::Get().engine.mutex());
  if (!buffer->tracked()) return;
  buffer->kept_ = true;
  MakeReachable(buffer);
}

void Tracker::ExposeTo(const void* holder, MovableBuffer* buffer) {
  EngineLock lock(Runtime::Get().engine.mutex());
  if (!buffer->tracked()) return;
  if (holders_.emplace(holder, buffer).second) ++buffer->holders_;
  MakeReachable(buffer);
}

void Tracker::ReleaseHolder(const void* holder) {
  EngineLock lock(Runtime::Get().engine.mutex());
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return;
  MovableBuffer* const buffer = found->second;
  holders_.erase(found);
  if (--buffer->holders_ == 0 && !buffer->kept_) Settle(buffer);
}

void Tracker::MakeReachable(MovableBuffer* buffer) {
  Runtime& runtime = Runtime::Get();
  try {
    runtime.engine.expose(buffer, StreamOf(buffer));
  } catch (const OutOfMemory& error) {
    LOG(WARNING) << error.what();
  }
  if (buffer->host_ == nullptr) return;
  // There was no room, or an op reads it where it is. Host memory will do, for as long as the
  // pointer is out: the device can address it too.
  runtime.backend.Disarm(buffer);
  buffer->stays_out_ = true;
}

void Tracker::Unexpose(MovableBuffer* buffer) {
  buffer->kept_ = false;
  if (buffer->holders_ == 0) Settle(buffer);
}

// Nobody outside of ops has its pointer. An op may read it in host memory.
void Tracker::Settle(MovableBuffer* buffer) {
  ::lms::Engine& engine = Runtime::Get().engine;
  if (!engine.pinned(buffer)) buffer->stays_out_ = false;
  engine.unexpose(buffer);
}

void Tracker::AddView(MovableBuffer* root, TensorBuffer* view) {
  if (root == nullptr) return;
  EngineLock lock(Runtime::Get().engine.mutex());
  root->views_.push_back(view);
}

void Tracker::RemoveView(MovableBuffer* root, TensorBuffer* view) {
  if (root == nullptr) return;
  EngineLock lock(Runtime::Get().engine.mutex());
  auto& views = root->views_;
  views.erase(std::remove(views.begin(), views.end(), view), views.end());
}

}  // namespace lms
}  // namespace tensorflow
