// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Backend.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/allocator.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/cuda/lms/compat/write_barrier.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace c10::cuda::lms {
namespace {

StorageImpl* storage_of(::lms::Key key) { return static_cast<StorageImpl*>(key); }

cudaStream_t stream_of(::lms::Stream stream) { return static_cast<cudaStream_t>(stream); }

// Done when both are. Either may be null.
class BothFences final : public ::lms::Fence {
 public:
  BothFences(::lms::FencePtr a, ::lms::FencePtr b) : a_(std::move(a)), b_(std::move(b)) {}
  bool done() override { return a_->done() && b_->done(); }
  void wait() override {
    a_->wait();
    b_->wait();
  }

 private:
  const ::lms::FencePtr a_;
  const ::lms::FencePtr b_;
};

::lms::FencePtr both(const ::lms::FencePtr& a, const ::lms::FencePtr& b) {
  if (!a || !b) {
    return a ? a : b;
  }
  return std::make_shared<BothFences>(a, b);
}

// A copy that was queued but could not be fenced must be over before its memory is used otherwise.
class DrainOnError {
 public:
  explicit DrainOnError(cudaStream_t stream) : stream_(stream) {}
  ~DrainOnError() {
    if (armed_) {
      C10_CUDA_IGNORE_ERROR(cudaStreamSynchronize(stream_));
    }
  }
  DrainOnError(const DrainOnError&) = delete;
  DrainOnError& operator=(const DrainOnError&) = delete;
  void dismiss() { armed_ = false; }

 private:
  const cudaStream_t stream_;
  bool armed_ = true;
};

// A block also while the user's own memory is not cached. Another thread's capture is none of the
// op's that this is for.
void* alloc(size_t bytes, cudaStream_t stream) {
  const PageInScope scope;
  const OutsideCapture outside;
  return CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
}

// Who may be using a block, and until when.
struct User {
  cudaStream_t stream;
  DeviceIndex device;   // record_stream takes another device's streams as well
  ::lms::MarkPtr last;  // null: until all is over that is queued
};

class Users {
 public:
  void add(const User& user) {
    const auto found = find_(user.stream, user.device);
    if (found == users_.end()) {
      users_.push_back(user);
    } else if (!user.last) {
      found->last = nullptr;
    }
  }
  bool has(cudaStream_t stream, DeviceIndex device) {
    return find_(stream, device) != users_.end();
  }
  auto begin() const { return users_.begin(); }
  auto end() const { return users_.end(); }

 private:
  std::vector<User>::iterator find_(cudaStream_t stream, DeviceIndex device) {
    return std::find_if(users_.begin(), users_.end(), [&](const User& user) {
      return user.stream == stream && user.device == device;
    });
  }

  std::vector<User> users_;
};

// By the engine's records, or the user's. Only where ops have told of every use is its end known.
Users users_of(const ::lms::StreamSet& used, const BlockInfo& block, DeviceIndex device,
               bool unseen) {
  const bool known = !unseen && std::all_of(used.begin(), used.end(),
                                            [](const auto& use) { return use.last != nullptr; });
  Users users;
  for (const ::lms::StreamUse& use : used) {
    users.add({stream_of(use.stream), device, known ? use.last : nullptr});
  }
  if (!known) {
    users.add({getCurrentCUDAStream(device), device, nullptr});
  }
  if (!known || !users.has(block.stream, device)) {  // what made it may have been no op
    users.add({block.stream, device, nullptr});
  }
  for (const CUDAStream& stream : block.used_on) {
    know_stream(stream);
    users.add({stream.stream(), stream.device_index(), nullptr});
  }
  return users;
}

// Null when there is no room that nothing has to make way for.
void* alloc_free(size_t bytes, cudaStream_t stream) {
  const FreeRoomOnly scope;
  try {
    return alloc(bytes, stream);
  } catch (const NoFreeRoom&) {
  } catch (const OutOfMemoryError&) {  // of a pool that has no part in this
  }
  return nullptr;
}

// Into what an op has just let go of a copy cannot begin before that op is over, and the next one
// waits for all of it. Null when there is no other, or that is not worth looking for.
void* alloc_early(size_t bytes, cudaStream_t stream, DeviceIndex device) {
  if (!kRefusesLate || !has_choice(bytes) || capture_underway() || stands_still() ||
      !::lms::may_make_room_early(state().engine, device)) {
    return nullptr;
  }
  const MarkPtr next = next_mark(device, stream);
  if (!next || next->number() <= ::lms::kMarksAhead) {
    return nullptr;
  }
  const EarlyRoomOnly scope(next->number() - 1 - ::lms::kMarksAhead);
  try {
    return alloc(bytes, stream);
  } catch (const NoFreeRoom&) {
  } catch (const OutOfMemoryError&) {
    if (!EarlyRoomOnly::refused()) {
      throw;
    }  // else it was switched off meanwhile
  }
  return nullptr;
}

}  // namespace

int PinnedMemory::node_near(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto index = static_cast<size_t>(device);
  while (nodes_.size() <= index) {
    char address[16] = "";
    const cudaError_t err = C10_CUDA_ERROR_HANDLED(
        cudaDeviceGetPCIBusId(address, sizeof(address), static_cast<int>(nodes_.size())));
    if (err != cudaSuccess) {
      (void)cudaGetLastError();
    }
    nodes_.push_back(err == cudaSuccess ? ::lms::node_of_pci(address) : kAnyNode);
  }
  device_ = static_cast<DeviceIndex>(device);
  return nodes_[index];
}

// Nothing may leave these by an exception: the pool's helper calls them.
bool PinnedMemory::pin(char* segment, size_t bytes) {
  // A child has no part in it: a page that it shared would be copied when either writes, and then
  // the device and the program would each have their own.
  if (madvise(segment, bytes, MADV_DONTFORK) != 0) {
    return false;
  }
  try {
    const CUDAGuard guard(device_);
    const OutsideCapture outside;
    C10_CUDA_CHECK(
        cudaHostRegister(segment, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
    return false;
  }
  return true;
}

void PinnedMemory::unpin(char* segment, size_t) {
  try {
    const CUDAGuard guard(device_);
    const OutsideCapture outside;
    C10_CUDA_CHECK(cudaHostUnregister(segment));
  } catch (const c10::Error&) {
    (void)cudaGetLastError();  // the driver is shutting down
  }
}

// Between a device and a range of the pool.
void Backend::copy_(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                    cudaStream_t stream) {
  host_->for_parts(kind == cudaMemcpyDeviceToHost ? to : from, bytes, [&](size_t at, size_t part) {
    C10_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(to) + at, static_cast<const char*>(from) + at,
                                   part, kind, stream));
  });
}

bool resident(const DataPtr& pointer) noexcept {
  return pointer.get() != nullptr && pointer.get() == pointer.get_context() &&
         is_block_deleter(pointer.get_deleter());
}

// What a storage on the host owns. Its bytes can be read once `written` is done.
struct Backend::HostContext {
  Backend* owner;
  ::lms::HostRange range;
  ::lms::Marks written;  // none when no copy was needed
  ::lms::Marks read;     // by the page-in before that, when none was
  size_t bytes;
  DeviceIndex device;
  cudaStream_t home;  // the stream whose pool the block came from, and the next one must come from
  std::vector<CUDAStream> shared;  // as told by recordStream
};

void Backend::release_host_context(void* context) {
  if (C10_UNLIKELY(in_child())) {
    return;
  }
  std::unique_ptr<HostContext> host(static_cast<HostContext*>(context));
  --host->owner->on_host_;
  ::lms::FencePtr fence;
  for (const MarkPtr& read : host->read) {
    fence = both(fence, read);
  }
  for (const MarkPtr& written : host->written) {
    fence = both(fence, written);
  }
  try {
    // A kernel that got the host pointer past the op boundary may still be running. During a
    // capture it is not: what ran before was waited for, and an event would belong to the graph.
    const cudaStream_t current = getCurrentCUDAStream(host->device);
    if (!capturing(current)) {
      fence = both(fence, set_mark(host->device, current));
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError();  // the driver is shutting down: nothing runs any more
  }
  host->owner->host_->free(host->range, std::move(fence));
}

// Also what has no memory yet, or shares it: the operator that is about to run may give it a block,
// which must then be pinned from its first moment.
// But not of a device without a number, as a tensor may name that wraps others.
inline bool Backend::may_manage(const DataPtr& pointer) noexcept {
  return pointer.device().is_cuda() && pointer.device().has_index() &&
         (resident(pointer) || pointer.get() == nullptr ||
          pointer.get_deleter() == &release_host_context || shares_bytes(pointer));
}

namespace {

C10_NOINLINE bool may_manage_under_lock(const StorageImpl& storage) noexcept {
  EngineScope scope;
  const ::lms::EngineLock lock(state().engine.mutex());
  return Backend::may_manage(pointer_of(storage));
}

}  // namespace

// A glance may fall between the halves of a new pointer, and then takes the storage for another's:
// only what is foreign under the lock, too, is.
bool manageable(const StorageImpl* storage) noexcept {
  const Glance seen = glance(*storage);
  if (resident(seen.pointer())) {
    detail::block_deleter.store(seen.pointer().get_deleter(), std::memory_order_relaxed);
  }
  return Backend::may_manage(seen.pointer()) ||
         (seen.device().is_cuda() && may_manage_under_lock(*storage));
}

std::atomic<DeleterFnPtr> detail::block_deleter{nullptr};

bool Backend::record_stream(const DataPtr& pointer, CUDAStream stream) {
  auto* host = pointer.cast_context<HostContext>(&release_host_context);
  if (host == nullptr) {
    return false;
  }
  if (stream.stream() != host->home &&
      std::find(host->shared.begin(), host->shared.end(), stream) == host->shared.end()) {
    host->shared.push_back(stream);
  }
  return true;
}

bool Backend::drop_if_out(StorageImpl* storage) {
  if (pointer_of(*storage).get_deleter() != &release_host_context || !drop_memory(storage)) {
    return false;
  }
  if (poison_) {
    allow_access(storage);
  }
  return true;
}

void Backend::refuse(::lms::Key key) {
  if (!poison_) {
    return;
  }
  allow_access(storage_of(key));
  if (refusing_) {
    refuse_access(
        storage_of(key),
        "LMS_DEBUG=chaos: this storage is in host memory and was accessed outside of an operator. "
        "Code that takes a raw pointer must hold the tensor with torch.cuda.lms.pin() first.");
  }
}

void Backend::retain(::lms::Key key) {
  adopt(storage_of(key));
  add_weak(storage_of(key));
}

void Backend::release(::lms::Key key) {
  {
    const std::lock_guard<std::mutex> lock(guards_mutex_);
    guards_.erase(storage_of(key));
  }
  drop_weak_later(storage_of(key));
}

bool Backend::acquire(::lms::Key key) {
  auto strong = try_lock(storage_of(key));
  if (!strong) {
    return false;
  }
  keep_alive(std::move(strong));
  return true;
}

bool Backend::dead(::lms::Key key) { return expired(storage_of(key)); }

namespace {

inline ::lms::Extent resident_at(const StorageImpl& storage) {
  const DataPtr& pointer = pointer_of(storage);
  return {::lms::Place::kDevice, pointer.get(), nbytes_of(storage), pointer.device().index()};
}

}  // namespace

::lms::Extent Backend::locate(::lms::Key key) {
  StorageImpl* storage = storage_of(key);
  const DataPtr& pointer = pointer_of(*storage);
  return C10_LIKELY(resident(pointer)) ? resident_at(*storage) : locate_unusual_(storage);
}

bool Backend::is_resident_at(::lms::Key key, const void* ptr, size_t bytes) {
  const StorageImpl& storage = *storage_of(key);
  const DataPtr& pointer = pointer_of(storage);
  if (C10_LIKELY(pointer.get() == ptr && ptr != nullptr && pointer.get_context() == ptr &&
                 pointer.get_deleter() == detail::block_deleter.load(std::memory_order_relaxed))) {
    return nbytes_of(storage) == bytes;
  }
  return ::lms::Backend::is_resident_at(key, ptr, bytes);
}

size_t Backend::bytes_of(::lms::Key key) { return nbytes_of(*storage_of(key)); }

// Of one that is out, under the barrier, or not the engine's.
C10_NOINLINE ::lms::Extent Backend::locate_unusual_(StorageImpl* storage) const {
  if (guarded_(storage)) {
    return resident_at(*storage);
  }
  const DataPtr& pointer = pointer_of(*storage);
  const int device = pointer.device().index();
  if (auto* host = pointer.cast_context<HostContext>(&release_host_context)) {
    return {::lms::Place::kHost, host->range.ptr, host->bytes, device};
  }
  return {::lms::Place::kForeign, pointer.get(), 0, device};
}

// Whether the barrier is what its pointer has in the place of the allocator's deleter.
bool Backend::guarded_(StorageImpl* storage) const {
  if (!may_be_guarded(pointer_of(*storage))) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(guards_mutex_);
  const auto guard = guards_.find(storage);
  return guard != guards_.end() && writes_since(*storage, guard->second) == Writes::kNone;
}

void Backend::guard(::lms::Key key) {
  StorageImpl* storage = storage_of(key);
  if (!resident(pointer_of(*storage))) {
    return;
  }
  const Barrier armed = arm_barrier(storage);
  const std::lock_guard<std::mutex> lock(guards_mutex_);
  guards_[storage] = armed;
}

bool Backend::unguard(::lms::Key key) {
  StorageImpl* storage = storage_of(key);
  Writes writes = Writes::kUnknown;
  {
    const std::lock_guard<std::mutex> lock(guards_mutex_);
    const auto guard = guards_.find(storage);
    if (guard == guards_.end()) {
      return false;
    }
    writes = writes_since(*storage, guard->second);
    guards_.erase(guard);
  }
  if (writes == Writes::kUnknown) {
    return false;
  }
  disarm_barrier(storage);
  return true;
}

namespace {

// A mark that is set on a stream while that is captured, by whomever, becomes a part of the graph,
// and so does what waits for it.
bool captures(DeviceIndex device, cudaStream_t stream) {
  return usable(device, stream) && capturing(stream);
}

}  // namespace

bool Backend::movable(const ::lms::Extent& from, const ::lms::StreamSet& used) {
  const auto device = static_cast<DeviceIndex>(from.device);
  const BlockInfo block = block_info(from.ptr);
  return !capture_underway() && block.evictable && !captures(device, block.stream) &&
         !captures(device, getCurrentCUDAStream(device)) &&
         std::none_of(used.begin(), used.end(),
                      [&](const auto& use) { return captures(device, stream_of(use.stream)); }) &&
         std::none_of(block.used_on.begin(), block.used_on.end(), [](const CUDAStream& stream) {
           return captures(stream.device_index(), stream.stream());
         });
}

void Backend::page_out(::lms::Key key, const ::lms::Extent& from, ::lms::HostRange host, bool copy,
                       const ::lms::StreamSet& used) {
  StorageImpl* storage = storage_of(key);
  const auto device = static_cast<DeviceIndex>(from.device);
  CUDAGuard guard(device);
  BlockInfo block = block_info(from.ptr);
  const bool unseen = unseen_kernels();
  ::lms::Marks written = block.ready.out;  // if it was paged out ahead
  // What the block owes from now on. The page-in that it came with, its users have waited for.
  Ready ready;
  ready.freed = block.ready.freed;
  ready.out = written;
  std::vector<MarkPtr> ends;    // that a stream of copies out waits for
  bool used_elsewhere = false;  // where that goes on
  for (const User& user : users_of(used, block, device, unseen)) {
    const MarkPtr end = user.last ? user.last : set_mark(user.device, user.stream);
    const bool at_home = user.stream == block.stream && user.device == device;
    if (at_home) {
      ready.idle_since = end->number();
    }
    if (!copy || !at_home) {
      set_now(end);  // later it would be after more, and its stream may be captured
    }
    const bool goes_on = !at_home && !end->done();
    used_elsewhere = used_elsewhere || goes_on;
    if (copy) {
      ends.push_back(end);
    } else if (at_home) {
      ready.home = end;
      ready.others.add(end);
      left_[device].add(end);
    } else if (goes_on && user.device == device) {
      ready.out.add(end);
      left_[device].add(end);
    } else if (goes_on) {  // by a stream that may have the handle of one of this device
      ends.push_back(end);
    }
  }
  const MarkPtr next = used_elsewhere ? next_mark(device, block.stream) : nullptr;
  if (next) {  // nobody knows until when: what went idle by now is ready sooner
    ready.idle_since = next->number();
  }
  if (!ends.empty()) {
    QueuedCopy out(device, Way::kOut, ends);
    DrainOnError drain(out.stream());
    if (copy) {
      copy_(host.ptr, from.ptr, from.bytes, cudaMemcpyDeviceToHost, out.stream());
    }
    const MarkPtr over = out.end();
    ready.out.add(over);
    if (copy) {
      written = over;
    }
    if (copy && unseen) {  // whatever reads the host buffer past the op boundary
      wait_fence_at(device, block.stream, over);
      wait_fence(device, getCurrentCUDAStream(device), over);
    }
    drain.dismiss();
  }

  auto context = std::make_unique<HostContext>();
  context->owner = this;
  context->range = host;
  context->written = std::move(written);
  context->read = copy ? ::lms::Marks() : block.ready.in;
  context->bytes = from.bytes;
  context->device = device;
  context->home = block.stream;
  context->shared = std::move(block.used_on);
  replace_pointer(storage, DataPtr(poison_ ? nowhere() : host.ptr, context.release(),
                                   &release_host_context, Device(kCUDA, device)));
  ++on_host_;
  refuse(key);
  free_settled(from.ptr, ready);
}

::lms::FencePtr Backend::page_out_ahead(::lms::Key, const ::lms::Extent& from,
                                        ::lms::HostRange host, const ::lms::StreamSet& used) {
  const auto device = static_cast<DeviceIndex>(from.device);
  if (unseen_kernels() || capturing(getCurrentCUDAStream(device))) {  // who may write meanwhile
    return nullptr;
  }
  CUDAGuard guard(device);
  BlockInfo block = block_info(from.ptr);
  std::vector<MarkPtr> ends;
  for (const User& user : users_of(used, block, device, /*unseen=*/false)) {
    ends.push_back(user.last ? user.last : set_mark(user.device, user.stream));
  }
  QueuedCopy out(device, Way::kOut, ends);
  DrainOnError drain(out.stream());
  copy_(host.ptr, from.ptr, from.bytes, cudaMemcpyDeviceToHost, out.stream());
  MarkPtr copied = out.end();
  block.ready.out.add(copied);
  set_ready(from.ptr, block.ready);
  drain.dismiss();
  return copied;
}

::lms::HostRange Backend::page_in(::lms::Key key, bool copy, ::lms::Stream stream,
                                  ::lms::Reclaim reclaim, ::lms::FencePtr* arrival) {
  StorageImpl* storage = storage_of(key);
  auto* host = pointer_of(*storage).cast_context<HostContext>(&release_host_context);
  TORCH_INTERNAL_ASSERT(host != nullptr);
  CUDAGuard guard(host->device);
  // That of a capture which begins is not known; it is not this thread's own.
  const bool elsewhere = host->home != stream_of(stream) && capture_begins();
  const bool captured =
      elsewhere || capturing(stream_of(stream)) || captures(host->device, host->home);
  if (reclaim == ::lms::Reclaim::kNone && captured) {
    return {};
  }
  constexpr char kRefusal[] =
      "A tensor in host memory is used while a CUDA graph is captured, and cannot be brought "
      "back then. Hold it with torch.cuda.lms.pin() or torch.cuda.lms.exclude() before the "
      "capture.";
  if (captured && capture_underway() && !in_capture()) {  // the op waits for its end, as for room
    C10_THROW_ERROR(OutOfMemoryError, kRefusal);
  }
  TORCH_CHECK(!captured, kRefusal);
  // From the pool of the stream it was made on: freed by the user it goes back there, and what
  // follows on that stream is ordered after the user's own work only if it is that stream's block.
  void* ptr = nullptr;
  if (reclaim == ::lms::Reclaim::kNone) {
    ptr = alloc_free(host->bytes, host->home);
    if (ptr == nullptr) {
      return {};
    }
  } else {
    ptr = copy ? alloc_early(host->bytes, host->home, host->device) : nullptr;
    if (ptr == nullptr) {
      ptr = alloc(host->bytes, host->home);
    }
  }
  DataPtr pointer(ptr, ptr, block_deleter(), Device(kCUDA, host->device));

  const cudaStream_t user = stream_of(stream);
  const bool unseen = unseen_kernels();
  const Ready owed = block_info(ptr).ready;
  std::vector<MarkPtr> ends = ends_of(host->device, host->home, owed);
  ends.insert(ends.end(), host->written.begin(), host->written.end());
  // The range is used again after this page-in, so after those that read it, too.
  ends.insert(ends.end(), host->read.begin(), host->read.end());
  if (unseen) {  // a kernel that read or wrote the host buffer
    ends.push_back(set_mark(host->device, host->home));
  }
  // A program that freed the block may have used it here without telling, because it orders its
  // next use of the pool after that, as PyTorch asks for. Of what left, each use is known.
  if (unseen || (user != host->home && (owed.freed || owed.all))) {
    ends.push_back(set_mark(host->device, user));
  }
  if (copy) {
    QueuedCopy in(host->device, Way::kIn, std::move(ends),
                  {host->device, host->home, owed.idle_since});
    DrainOnError drain(in.stream());
    copy_(ptr, host->range.ptr, host->bytes, cudaMemcpyHostToDevice, in.stream());
    Ready ready;
    ready.in = in.end();
    *arrival = *ready.in.begin();
    {
      const MeasuredWait wait(host->device, user, Wait::kOperands);
      wait_fence(host->device, user, *arrival);
    }
    if (unseen) {
      wait_fence_at(host->device, host->home, *arrival);
    }
    set_ready(ptr, ready);
    drain.dismiss();
  } else {
    const MeasuredWait wait(host->device, user, Wait::kMemory);
    for (const MarkPtr& end : ends) {
      wait_fence(host->device, user, end);
    }
    *arrival = set_mark(host->device, user);  // after the copy out, which the range waits for
  }
  for (const CUDAStream& shared : host->shared) {
    CUDACachingAllocator::recordStream(pointer, shared);
  }
  if (poison_) {
    allow_access(storage);
  }
  std::unique_ptr<HostContext> owned(host);
  replace_pointer(storage, std::move(pointer));
  --on_host_;
  return owned->range;
}

void Backend::begin_to_move() { has_moved_ = true; }

void Backend::before_host_growth(size_t bytes, int device) {
  if (GrowthScope::active()) {
    throw HostMemoryLacking{bytes, device};
  }
}

void Backend::refill(::lms::Key key, ::lms::HostRange host, ::lms::Stream stream,
                     ::lms::FencePtr* arrival) {
  const DataPtr& pointer = pointer_of(*storage_of(key));
  const auto device = pointer.device().index();
  CUDAGuard guard(device);
  const cudaStream_t user = stream_of(stream);
  const cudaStream_t home = block_info(pointer.get()).stream;
  DrainOnError drain(user);
  copy_(pointer.get(), host.ptr, nbytes_of(*storage_of(key)), cudaMemcpyHostToDevice, user);
  *arrival = set_mark(device, user);
  if (user != home) {
    wait_fence_at(device, home, *arrival);  // frees there come after it
  }
  drain.dismiss();
}

void Backend::join(::lms::Stream stream, const ::lms::FencePtr& arrival) {
  if (capturing(stream_of(stream))) {  // a graph cannot depend on what is outside it
    arrival->wait();
    return;
  }
  const DeviceIndex device = device_of(arrival);  // the stream is of the same
  const MeasuredWait wait(device, stream_of(stream), Wait::kOperands);
  wait_fence(device, stream_of(stream), arrival);
}

// Its block tells, whoever was given it, and by whatever thread.
::lms::Marks Backend::owed_to_others(const ::lms::Extent& at) {
  if (!has_moved_ || at.place != ::lms::Place::kDevice || at.ptr == nullptr) {
    return {};
  }
  ::lms::Marks others = block_info(at.ptr).ready.others;
  return others.done() ? ::lms::Marks() : others;
}

void Backend::finish_owed() {
  finish_copy_streams();
  for (const auto& device : left_) {
    for (const MarkPtr& mark : device.second) {
      mark->wait();
    }
  }
  left_.clear();
}

// Costs nothing while nothing has ever moved: the engine asks for it when something is about to.
void Backend::mark(int device, ::lms::Stream stream, size_t bytes, ::lms::MarkPtr* mark) {
  const auto index = static_cast<DeviceIndex>(device);
  if (!has_moved_ && usable(index, stream_of(stream))) {
    if (*mark) {  // a null one is left alone: who reads what was just written to waits
      mark->reset();
    }
  } else {
    mark_after(index, stream_of(stream), bytes, mark);
  }
}

}  // namespace c10::cuda::lms
