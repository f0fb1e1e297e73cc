// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/host_memory.h"
#include "tensorflow/core/common_runtime/lms/variables.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow {
namespace lms {

// Buffers below this size never move: what the framework reads on the host outside of ops (shapes,
// predicates, handles) is far smaller.
constexpr size_t kSmallestMovable = 4096;

// The one runtime of the process. Leaked: tensors may die after static destructors ran.
// Lock order: a variable's mutex, the engine, an allocator.
class Runtime final : public BfcReclaimer {
 public:
  static Runtime& Get();

  // ---- switching. `active` is true from the first enable until no buffer needs an op's pin.
  static bool Active() { return active_.load(std::memory_order_relaxed); }
  static bool EverActive() { return ever_active_.load(std::memory_order_relaxed); }
  static bool Reclaiming() { return reclaiming_.load(std::memory_order_acquire); }
  Status SetEnabled(bool enable);
  bool enabled() const { return enabled_.load(); }

  // ---- settings, by the names of the C interface
  Status SetOption(const std::string& name, int64_t value);
  int64_t GetOption(const std::string& name);
  size_t limit() const { return limit_.load(std::memory_order_relaxed); }

  // ---- devices
  // Called by each device that is made, with the allocator of its memory. Turns Large Model
  // Support on when the session's options ask for it.
  void OnDevice(const SessionOptions& options, const std::string& name, Allocator* allocator,
                Transport* transport);
  HostBytes& host_bytes() { return memory_; }
  Pool* PoolOf(const Allocator* allocator);

  // ---- reclaim
  bool Manages(const BfcAllocator* allocator) override;
  void* Allocate(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) override;
  // Memory from `pool`, for which idle buffers make way; null when all of them do not suffice.
  void* Allocate(Pool* pool, size_t bytes, uint64_t freed_before);
  // Moves everything idle out. Returns bytes.
  int64_t ReclaimAll();
  // Why `bytes` could not be had, and what would help.
  std::string Shortage(Pool* pool, size_t bytes);

  // ---- buffers
  // The buffer of the tensor if it is of a kind that can be moved: plain bytes, all of a chunk of a
  // pool, large enough. Whether all who refer to it are known is for the caller to say.
  MovableBuffer* Manageable(const Tensor& tensor);
  // Whether no other tensor refers to the buffer, or to any part of it.
  static bool IsOnly(const Tensor& tensor);
  // Whether code outside of ops may come by the pointer with no call that is seen.
  bool PointerTakenUnseen(MovableBuffer* buffer) {
    return kPointersTakenUnseen && PoolOf(buffer->allocator())->on_cpu;
  }
  // Whether a buffer that may be dead is alive and known to the engine. Under the engine's lock.
  bool IsTracked(MovableBuffer* buffer) const { return tracked_.count(buffer) > 0; }
  static ::lms::Stream StreamOf(MovableBuffer* buffer) {
    return buffer->pool_->transport->stream();
  }
  // Makes a buffer known to the engine, as idle. Under the engine's lock.
  void Track(MovableBuffer* buffer);
  // Whether the tensor's buffer is tracked, or could be from now on: nobody else refers to it.
  // Under the engine's lock.
  bool TrackIfAlone(const Tensor& tensor, MovableBuffer* buffer);
  void Forget(MovableBuffer* buffer);
  // Brings the buffer in and keeps it there, with its pointer. What an op has pinned does not move
  // before it ends, so an access within the op need not be recorded.
  void Expose(MovableBuffer* buffer);
  void ExposeUnlessPinned(MovableBuffer* buffer);
  void AddView(MovableBuffer* root, TensorBuffer* view);
  void RemoveView(MovableBuffer* root, TensorBuffer* view);
  // The exposure is over: the only reference left is the caller's.
  void Unexpose(MovableBuffer* buffer);
  bool Exclude(const void* data, bool on);

  VariableUsers& variables() { return variables_; }

  // ---- ops
  // Counts ops that run without pins; returns what EndUnpinned wants.
  static std::atomic<int64_t>* BeginUnpinned();
  static void EndUnpinned(std::atomic<int64_t>* counter) { counter->fetch_sub(1); }
  // Ops that hold pins, or are about to.
  ::lms::Turns& turns() { return turns_; }

  // Makes what a kernel will take free in one piece, so that what it takes first does not lie in
  // the way of the rest. False when idle buffers are not all that is in the way.
  bool MakeHole(Pool* pool, int64_t bytes);
  // Moves out what is idle, for as long as the host has room.
  void EvictIdle(Pool* pool);

  // Bytes in use have become more, or candidates fewer.
  void NotePeaks(Pool* pool);
  std::string Statistics();
  void ResetPeaks();

  ::lms::Engine& engine() { return engine_; }
  Backend& backend() { return backend_; }

 private:
  Runtime();
  class Request;
  class Hole;
  // What is free, no more of it than is asked for unless there is plenty. `last_resort`: where it
  // should lie was tried.
  void* Take(Pool* pool, size_t bytes, uint64_t freed_before, bool last_resort);
  bool GrowSlabs(Pool* pool);
  void BecomeInactive();
  // An op is over, or gave up its pins: memory may have become movable.
  void OnLeave();
  size_t OverLimit(Pool* pool, size_t rounded);

  static std::atomic<bool> active_;
  static std::atomic<bool> ever_active_;
  static std::atomic<bool> reclaiming_;

  HostBytes memory_;
  ::lms::HostPool host_;
  Backend backend_;
  ::lms::Engine engine_;

  mutex switching_;
  std::atomic<bool> enabled_{false};
  std::atomic<bool> enabling_{false};
  std::atomic<size_t> limit_{0};
  bool chaos_ = false;
  std::atomic<bool> seen_device_{false};

  static constexpr int kMostPools = 64;
  mutex pools_mu_;
  Pool* pools_[kMostPools] = {};
  std::atomic<int> pool_count_{0};

  // Under the engine's lock.
  int shortages_logged_ = 0;
  std::unordered_set<MovableBuffer*> tracked_;
  // Blocks of buffers that are not tracked yet, and which allocation had them.
  std::unordered_map<const void*, int64_t> excluded_;
  VariableUsers variables_;

  ::lms::Turns turns_{[this] { OnLeave(); }};
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_
