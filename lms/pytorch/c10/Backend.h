// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/compat/write_barrier.h>
#include <c10/cuda/lms/core/engine.h>
#include <c10/cuda/lms/core/host_memory.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

namespace c10::cuda::lms {

// Memory that CUDA has pinned, which every device can address.
class PinnedMemory final : public ::lms::MappedMemory {
 public:
  int node_near(int device) override;

 private:
  bool pin(char* segment, size_t bytes) override;
  void unpin(char* segment, size_t bytes) override;

  // Where it is pinned: a thread that names no device would make a context on the first.
  std::atomic<DeviceIndex> device_{0};
  std::mutex mutex_;
  std::vector<int> nodes_;  // by device
};

// Translates between the engine's keys and StorageImpl, its streams and cudaStream_t. The state of
// a storage is read off the deleter of its DataPtr, so that set_(), `.data =`, swap_tensors and
// resize_ carry it along:
//  - the allocator's own deleter: resident;
//  - c10's copy-on-write deleter over a context that `guard` made: resident, host copy valid. Any
//    mutable access to the storage takes the wrapper off, which is how a write that no op boundary
//    saw is noticed (from PyTorch 2.13 on by a materializer, and the deleter stays:
//    compat/write_barrier.h);
//  - release_host_context: in host memory, at the pinned buffer, which the device can address.
class Backend final : public ::lms::Backend {
 public:
  void set_host(::lms::HostPool* host) { host_ = host; }
  // Set before the first page-out: null pointers that throw instead of host pointers.
  void set_poison(bool poison) { poison_ = poison; }
  // With poison: whether they throw. A storage that is out is told by `refuse`.
  void set_refusing(bool refusing) { refusing_ = refusing; }
  void refuse(::lms::Key key);
  size_t on_host() const { return on_host_.load(); }

  // False when a storage with this pointer is not the engine's to manage.
  static bool may_manage(const DataPtr& pointer) noexcept;

  // Ends the bytes of a storage on the host. False when it is not there, or its size is fixed.
  bool drop_if_out(StorageImpl* storage);

  // Adds to the streams of a storage on the host. False when it is not there.
  static bool record_stream(const DataPtr& pointer, CUDAStream stream);

  void retain(::lms::Key key) override;
  void release(::lms::Key key) override;
  bool acquire(::lms::Key key) override;
  bool dead(::lms::Key key) override;
  ::lms::Extent locate(::lms::Key key) override;
  bool is_resident_at(::lms::Key key, const void* ptr, size_t bytes) override;
  size_t bytes_of(::lms::Key key) override;
  void guard(::lms::Key key) override;
  bool unguard(::lms::Key key) override;
  bool movable(const ::lms::Extent& from, const ::lms::StreamSet& used) override;
  void page_out(::lms::Key key, const ::lms::Extent& from, ::lms::HostRange host, bool copy,
                const ::lms::StreamSet& used) override;
  ::lms::FencePtr page_out_ahead(::lms::Key key, const ::lms::Extent& from, ::lms::HostRange host,
                                 const ::lms::StreamSet& used) override;
  ::lms::HostRange page_in(::lms::Key key, bool copy, ::lms::Stream stream, ::lms::Reclaim reclaim,
                           ::lms::FencePtr* arrival) override;
  void refill(::lms::Key key, ::lms::HostRange host, ::lms::Stream stream,
              ::lms::FencePtr* arrival) override;
  void join(::lms::Stream stream, const ::lms::FencePtr& arrival) override;
  ::lms::Marks owed_to_others(const ::lms::Extent& at) override;
  void finish_owed() override;
  void begin_to_move() override;
  void before_host_growth(size_t bytes, int device) override;
  void mark(int device, ::lms::Stream stream, size_t bytes, ::lms::MarkPtr* mark) override;

 private:
  struct HostContext;
  static void release_host_context(void* context);
  void copy_(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

  ::lms::HostPool* host_ = nullptr;
  std::atomic<size_t> on_host_{0};
  bool has_moved_ = false;                    // anything, ever
  std::map<DeviceIndex, ::lms::Marks> left_;  // last uses of what left without a copy
  bool poison_ = false;
  bool refusing_ = true;
  bool guarded_(StorageImpl* storage) const;
  ::lms::Extent locate_unusual_(StorageImpl* storage) const;

  ska::flat_hash_map<StorageImpl*, Barrier> guards_;  // that `guard` armed; under its own lock,
  mutable std::mutex guards_mutex_;                   // a leaf, as they are of all devices
};

// Whether it is of a block of the caching allocator, under its plain deleter.
bool resident(const DataPtr& pointer) noexcept;

// Until this thread's outermost ReleaseScope ends, when no lock is held.
void keep_alive(intrusive_ptr<StorageImpl> storage);
// A weak reference, then: with the last of a storage goes its Python object.
void drop_weak_later(StorageImpl* storage);

}  // namespace c10::cuda::lms
