// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAMacros.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/core/switch.h>
#include <c10/cuda/lms/core/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Large Model Support: storages that no op is using move to pinned host memory when the device is
// full, and come back before they are used again. This is the interface for the op boundary and the
// bindings, which live in a library of their own. Sizes are bytes throughout.
namespace c10::cuda::lms {

using ::lms::Access;
using ::lms::Use;  // its key is a StorageImpl

struct Acquired;
class MadeWhileOff;
struct ThreadFrame;

namespace detail {

// What a thread has of its own: in one place, because to look it up costs a call, which an op makes
// once. Constants at first, and so with nothing to make.
struct Thread {
  int release_scopes = 0;  // that are no engine's
  int engine_scopes = 0;
  int growth_scopes = 0;
  int shortage_scopes = 0;
  int sparing_scopes = 0;        // of them
  Acquired* holds = nullptr;     // storages to let go
  bool lets_go = false;          // and they are being let go
  ThreadFrame* frame = nullptr;  // of its ops, from the first on
  MadeWhileOff* made = nullptr;  // by its ops, from the first on
  bool ends = false;             // what it has that must be destroyed is gone
};
C10_CUDA_API Thread& this_thread() noexcept;

// Each op asks these, so that no call may be in the way.
C10_CUDA_API extern ::lms::Switch lms_switch;
C10_CUDA_API extern std::atomic<size_t> min_bytes;  // as the engine's, to be read without its lock

}  // namespace detail

// Pins the storages of one op for as long as it lives, on one thread. Guards nest: the outermost
// one of a thread keeps every pin taken below it.
class C10_CUDA_API OpGuard {
 public:
  // `independent`: of an op that ends without the help of another thread.
  explicit OpGuard(bool independent = false, detail::Thread& mine = detail::this_thread());
  ~OpGuard();
  OpGuard(const OpGuard&) = delete;
  OpGuard& operator=(const OpGuard&) = delete;

  // Brings in what is out, for the op of that name: on the current stream, which this fills in.
  // Throws OutOfMemoryError when it cannot be, with nothing lost. `device`: that all are of; -1: of
  // several, or the caller does not know.
  void enter(Use* uses, size_t count, const char* op, int device = -1);
  // The op has run. Without this what it was to overwrite has its old bytes again in the end.
  void ran() {
    if (C10_UNLIKELY(overwritten_.key != nullptr)) {
      overwrote();
    }
  }
  // The results of the op, so that they can be moved out even if no op reads them for long: on the
  // current stream, which this fills in. The caller keeps them, and the list, until the guard ends.
  void results(Use* made, size_t count);

 private:
  void overwrote();

  detail::Thread& thread_;
  ThreadFrame& mine_;
  ::lms::Engine::Overwritten overwritten_;
  intrusive_ptr<StorageImpl> target_;  // that it is of
  const Use* results_ = nullptr;
  size_t result_count_ = 0;
  int device_of_results_ = -1;  // of all of them
};

// While one lives, a shortage is not told to the user: an allocation of this thread that finds no
// room ends by OutOfMemoryError, and what catches it tries again.
class ShortageScope {
 public:
  // A `sparing` one ends already when no choice of victims makes room, with all else that is idle
  // where it was: what catches it may find that a workspace alone was in the way.
  explicit ShortageScope(bool sparing = false,
                         detail::Thread& mine = detail::this_thread()) noexcept
      : mine_(mine), sparing_(sparing) {
    ++mine_.shortage_scopes;
    mine_.sparing_scopes += sparing_ ? 1 : 0;
  }
  ~ShortageScope() {
    --mine_.shortage_scopes;
    mine_.sparing_scopes -= sparing_ ? 1 : 0;
  }
  ShortageScope(const ShortageScope&) = delete;
  ShortageScope& operator=(const ShortageScope&) = delete;

  static bool active(const detail::Thread& mine = detail::this_thread()) noexcept {
    return mine.shortage_scopes > 0;
  }

 private:
  detail::Thread& mine_;
  const bool sparing_;
};

// Whether something has had to make way since Large Model Support was first enabled.
C10_CUDA_API bool under_pressure() noexcept;

// Whether any thread captures a graph. Then nothing moves.
C10_CUDA_API bool capture_underway() noexcept;
// Whether this one does, or works for one. Then no op is tried again.
C10_CUDA_API bool in_capture();
// Whether any thread ever captured one.
C10_CUDA_API bool captured() noexcept;

// For an op that lacked room, and has let go of everything: tries again until `attempt` returns
// true, each time without cuBLAS's workspaces and with all that is idle out; before that, if it was
// spared, with its operands where they are. An op that holds nothing waits meanwhile for those of
// other threads to end; false when that does not help either.
C10_CUDA_API bool try_again(const std::function<bool()>& attempt);

// Makes known what was made by no op that has an OpGuard, so that it can be moved out before one
// uses it. What is made while an op of this thread runs is left to that.
C10_CUDA_API void note(StorageImpl* storage);

// The same for what is made while it is off, from when it is on again. Within an UnpinnedOp.
C10_CUDA_API void note_later(StorageImpl* storage);
// Of so many bytes, and more: the minimum size as it was last set. What is smaller hardly ever
// moves, and is not worth the time that it takes to note it.
inline size_t least_noted() noexcept { return detail::min_bytes.load(std::memory_order_relaxed); }

// Around the making of memory by an op, or outside of any: from before it, this thread is among
// those that run, until its op ends. What it holds may be in the way of others, which wait for it.
class C10_CUDA_API MakingScope {
 public:
  MakingScope();
  ~MakingScope();
  MakingScope(const MakingScope&) = delete;
  MakingScope& operator=(const MakingScope&) = delete;

 private:
  bool outside_ops_ = false;
};

// Around an op that runs without pins because Large Model Support is off: enabling waits for it.
class C10_CUDA_API UnpinnedOp {
 public:
  UnpinnedOp();
  ~UnpinnedOp();
  UnpinnedOp(const UnpinnedOp&) = delete;
  UnpinnedOp& operator=(const UnpinnedOp&) = delete;

 private:
  ::lms::UnpinnedOp counted_;
};

// Whether ops must pin: it is enabled, or was and storages are still on the host, or a graph is
// being captured, whose operands are to be exposed.
inline bool active() noexcept { return detail::lms_switch.active(); }
// Around a capture. Counts for the process.
C10_CUDA_API void begin_capture();
C10_CUDA_API void capture_begun();  // or it failed to
C10_CUDA_API void end_capture();
// Around what makes or fills what a graph itself keeps and replays follow pointers to: what this
// thread's ops use or make then stays. `begin_capture` does so until the capture has begun.
C10_CUDA_API void hold_for_graph(bool hold);
// For who could not end one: the allocator goes on as if it had ended.
C10_CUDA_API void abandon_capture();
// Whether the engine can manage this storage at all. Reads the storage only.
C10_CUDA_API bool manageable(const StorageImpl* storage) noexcept;
namespace detail {
// What last deleted a block of the allocator for one of which `manageable` said so; null: for none.
C10_CUDA_API extern std::atomic<DeleterFnPtr> block_deleter;
}  // namespace detail

// Enabling waits for the ops that run without pins, and throws when they still do after `patience`:
// one of them may wait for this thread.
C10_CUDA_API void set_enabled(bool enabled, std::chrono::milliseconds patience);
C10_CUDA_API bool enabled() noexcept;

// 0 means none. The device limit holds against reservations of the allocator; beyond the soft limit
// it prefers reclaiming to reserving more.
C10_CUDA_API void set_device_limit(size_t bytes);
C10_CUDA_API size_t device_limit() noexcept;
C10_CUDA_API void set_soft_limit(size_t bytes);
C10_CUDA_API size_t soft_limit() noexcept;
C10_CUDA_API void set_host_limit(size_t bytes);
C10_CUDA_API size_t host_limit();
// Of what the host limit is a share; "" when somebody has set another.
C10_CUDA_API std::string host_share();
// Storages below this size move only if nothing else makes room.
C10_CUDA_API void set_min_size(size_t bytes);
C10_CUDA_API size_t min_size();
// After every op everything unpinned is evicted, and what is out has a null pointer that throws.
C10_CUDA_API void set_chaos(bool chaos);
C10_CUDA_API bool chaos() noexcept;
// Whether, in chaos mode, a look at the pointer of what is out throws. From now on, and for what is
// out already.
C10_CUDA_API void set_refusing(bool refusing);

// Kernels that use storages past ops, pins and exposures: where there may be some, copies are
// ordered after all that is queued, and not after the last uses that are known.
enum class UnseenKernels : uint8_t {
  kLookedFor,  // there may be some once a library that can launch them was loaded
  kNone,       // the user knows that there are none
  kAny,
};
C10_CUDA_API void set_unseen_kernels(UnseenKernels kernels) noexcept;
// Whether there may be some.
C10_CUDA_API bool unseen_kernels() noexcept;
// There are some from now on, as far as they are looked for.
C10_CUDA_API void launches_unseen() noexcept;

C10_CUDA_API void pin(StorageImpl* storage);
C10_CUDA_API void unpin(StorageImpl* storage);
// The pins of several storages, all or none, until it dies, in whatever thread: others that lack
// room wait for that.
class C10_CUDA_API Hold {
 public:
  // Throws OutOfMemoryError, and has pinned nothing then.
  explicit Hold(const std::vector<StorageImpl*>& storages);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  void release(bool within_try) noexcept;

  std::vector<intrusive_ptr<StorageImpl>> storages_;
  std::shared_ptr<std::atomic<int>> of_thread_;  // how many there are of the one that made it
};
C10_CUDA_API void expose(StorageImpl* storage);
C10_CUDA_API void unexpose(StorageImpl* storage);
C10_CUDA_API bool exposed(StorageImpl* storage);
// The host waits until a storage that was pinned, or exposed, has come in: who follows its pointer
// may do so on any stream, which no op joins to the page-in.
C10_CUDA_API void wait_for_arrival(StorageImpl* storage);
// The host waits for what memory owes that was taken from the allocator itself, at `pointer`: it is
// of no storage, and no op makes another stream than that of its pool wait.
C10_CUDA_API void wait_for_memory(void* pointer);
C10_CUDA_API void exclude(StorageImpl* storage);
C10_CUDA_API void include(StorageImpl* storage);
C10_CUDA_API bool excluded(StorageImpl* storage);
C10_CUDA_API bool on_host(StorageImpl* storage);
C10_CUDA_API bool evict(StorageImpl* storage);
// Frees the memory of a storage that is out: it is of no bytes from now on, and nothing comes in.
// False, and nothing is done, for any other.
C10_CUDA_API bool drop_if_out(StorageImpl* storage);
// Brings in what is out if room is free: nothing else makes way. Whether it is resident now.
C10_CUDA_API bool page_in_if_free(StorageImpl* storage);

// Moves out everything idle, whatever its size. Returns bytes.
C10_CUDA_API size_t reclaim_inactive(DeviceIndex device);
C10_CUDA_API void trim_host();

// From now on `stats` tell how long streams wait for moves, which costs two timed events a wait.
C10_CUDA_API void measure_waits(bool on) noexcept;
// From now on, by where their memory comes from, whether or not it is enabled.
C10_CUDA_API void count_allocations() noexcept;
C10_CUDA_API std::vector<std::pair<std::string, int64_t>> stats(DeviceIndex device);
C10_CUDA_API void reset_peak_stats(DeviceIndex device);
C10_CUDA_API void reset_accumulated_stats(DeviceIndex device);
// For out-of-memory messages: what is in use by whom, the limits, and what would help. `wanted` is
// what this thread asked for, in bytes; 0: not known.
C10_CUDA_API std::string describe(DeviceIndex device, size_t wanted = 0);

}  // namespace c10::cuda::lms
