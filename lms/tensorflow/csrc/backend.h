// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BACKEND_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BACKEND_H_

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/pool.h"

namespace tensorflow {
namespace lms {

// No room on the device for what an op needs. Never leaves the runtime.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Addresses without memory behind them: to use one is fatal.
class Trap {
 public:
  explicit Trap(size_t bytes);
  ~Trap();
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;
  void* ptr() const { return ptr_; }

 private:
  const size_t bytes_;
  void* const ptr_;
};

// What a buffer in host memory owns.
struct HostCopy {
  ::lms::HostRange range;
  ::lms::FencePtr written;
  size_t bytes;
  void* left = nullptr;        // where it was on the device
  std::unique_ptr<Trap> trap;  // chaos mode: what the buffer points to meanwhile
};

// Translates between the engine's keys and MovableBuffer.
class Backend final : public ::lms::Backend {
 public:
  void set_host(::lms::HostPool* host) { host_ = host; }
  // Debugging. Who uses a buffer that no op pinned is found out: what is out points nowhere, its
  // old place is overwritten, and it comes back to another one. A host copy that is used instead of
  // a new one is compared with the bytes first.
  void set_poison(bool poison) { poison_ = poison; }
  // Points a buffer that is out to its bytes in host memory, in chaos mode, too.
  void Disarm(MovableBuffer* buffer);
  int64_t on_host() const { return on_host_.load(); }

  static MovableBuffer* BufferOf(::lms::Key key) { return static_cast<MovableBuffer*>(key); }

  // A dying buffer gives up its bytes.
  void Discard(MovableBuffer* buffer);

  void retain(::lms::Key) override {}
  void release(::lms::Key) override {}
  bool acquire(::lms::Key key) override;
  bool dead(::lms::Key) override { return false; }
  ::lms::Extent locate(::lms::Key key) override;
  size_t bytes_of(::lms::Key key) override { return BufferOf(key)->size(); }
  void guard(::lms::Key) override {}
  bool unguard(::lms::Key) override { return true; }
  bool movable(const ::lms::Extent& from, const ::lms::StreamSet& used) override;
  void page_out(::lms::Key key, const ::lms::Extent& from, ::lms::HostRange host, bool copy,
                const ::lms::StreamSet& used) override;
  ::lms::HostRange page_in(::lms::Key key, bool copy, ::lms::Stream stream, ::lms::Reclaim reclaim,
                           ::lms::FencePtr* arrival) override;
  void refill(::lms::Key key, ::lms::HostRange host, ::lms::Stream stream,
              ::lms::FencePtr* arrival) override;
  void join(::lms::Stream, const ::lms::FencePtr&) override {}
  bool counts_candidates() override { return true; }
  void set_candidate(::lms::Key key, bool candidate) override;

 private:
  void Rebind(MovableBuffer* buffer, void* data);
  void* Elsewhere(Pool* pool, void* data, size_t bytes);
  void CountHost(MovableBuffer* buffer, int sign);

  ::lms::HostPool* host_ = nullptr;
  std::atomic<int64_t> on_host_{0};
  bool poison_ = false;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_BACKEND_H_
