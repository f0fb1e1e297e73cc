// SPDX-License-Identifier: Apache-2.0
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/allocator.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/util/ScopeExit.h>
#if __has_include(<c10/core/AllocatorConfig.h>)  // since PyTorch 2.9
#include <c10/core/AllocatorConfig.h>
#endif
#include <plugin/Blocks.h>
#include <plugin/Forward.h>
#include <plugin/FreeMemory.h>
#include <plugin/Unseen.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

// What the native series puts into the caching allocator, by its public interface: an allocator in
// front of it, which learns of pool misses by the free-memory callback.
namespace c10::cuda::lms {
namespace {

#if __has_include(<c10/core/AllocatorConfig.h>)
using AllocatorConfig = CachingAllocator::AcceleratorAllocatorConfig;
#else
using AllocatorConfig = void;
#endif

// As in CUDACachingAllocator.cpp.
constexpr size_t kMinBlock = 512;
constexpr size_t kSmall = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kMinLarge = size_t{10} << 20;
constexpr size_t kRoundLarge = size_t{2} << 20;
constexpr size_t kExabyte = size_t{1} << 60;

constexpr size_t kNoRoom = std::numeric_limits<size_t>::max();

// So many free blocks are looked at, and so many taken out of the way. On the dry device steps of
// DeepLabv3 take a fifth longer with 16, and with 256 as long; more is more work where there are
// many.
constexpr size_t kMostBlocks = 64;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

int log2_of(size_t bytes) { return 63 - __builtin_clzll(bytes); }

// Of less than kMinLarge: as the user has set it, where PyTorch has a setting.
template <class Config>
auto large_segment(const Config*) -> decltype(Config::large_segment_size()) {
  return Config::large_segment_size();
}
constexpr size_t large_segment(const void*) { return size_t{20} << 20; }

size_t segment_bytes(size_t block) {
  if (block <= kSmall) {
    return kSmallSegment;
  }
  const AllocatorConfig* config = nullptr;
  return block < kMinLarge ? large_segment(config) : round_up(block, kRoundLarge);
}

template <class Segment>
FreeMemory::Range range_of(const Segment& segment) {
  return FreeMemory::range(reinterpret_cast<void*>(segment.address), segment.total_size);
}

// How far an attempt to allocate may go.
enum class Reach : uint8_t {
  kPool,  // a cached block
  kFits,  // or a new segment that the device and all limits have room for
  kAll,   // or whatever the allocator does, up to the device limit
  kAny,   // whatever the allocator does
};

// What the running allocation of this thread wants. Read by the callback.
struct Request {
  DeviceIndex device;
  size_t bytes;
  cudaStream_t stream;
  Reach reach = Reach::kFits;
  bool last = false;       // its out-of-memory error reaches the user
  bool missed = false;     // no cached block was found
  int64_t segments = 0;    // that had been made by then
  bool over_soft = false;  // only the soft limit was in the way
};

thread_local Request* current_request = nullptr;

class RequestScope {
 public:
  explicit RequestScope(Request* request) : outer_(current_request) { current_request = request; }
  ~RequestScope() { current_request = outer_; }
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  Request* const outer_;
};

// Thrown by the callback through the allocator's malloc, which has changed nothing by then and
// gives up its lock: so the engine's lock can be taken before the allocator's.
struct OutOfReach {};

std::atomic<CA::CreateContextFn> context_recorder{nullptr};

thread_local bool searching = false;

// No Python under the engine's lock, nor during a search, under that of the statistics.
std::shared_ptr<GatheredContext> record_context() {
  const CA::CreateContextFn recorder = context_recorder;
  return in_engine() || searching || recorder == nullptr ? nullptr : recorder();
}

// The streams of PyTorch's pools, which it gives out in turn. One that another thread gets
// meanwhile may be missing.
std::set<cudaStream_t> streams_of_pools(DeviceIndex device) {
  std::set<cudaStream_t> streams;
  const auto [least, greatest] = CUDAStream::priority_range();
  for (int priority = least; priority >= greatest; --priority) {
    while (streams.insert(getStreamFromPool(priority, device).stream()).second) {
    }
  }
  return streams;
}

// Memory that was made for the program's own streams before this library was there is all that
// tells of them by now.
void know_earlier_streams(const CA::SnapshotInfo& snapshot) {
  std::map<DeviceIndex, std::set<cudaStream_t>> of_pools;
  for (const auto& segment : snapshot.segments) {
    const auto stream = static_cast<cudaStream_t>(segment.stream);
    if (stream == nullptr) {
      continue;
    }
    auto pools = of_pools.find(segment.device);
    if (pools == of_pools.end()) {
      pools = of_pools.emplace(segment.device, streams_of_pools(segment.device)).first;
    }
    if (pools->second.count(stream) == 0) {
      know_earlier_stream(segment.device, stream);
    }
  }
}

class Allocator final : public Forward {
 public:
  explicit Allocator(CA::CUDAAllocator* base) : Forward(base), caches_(base->isEnabled()) {
    if (!caches_) {
      base->enable(true);
    }
  }

  // The allocator behind goes on caching, and so knows all of its blocks whenever they die.
  void enable(bool value) override { caches_ = value; }
  bool isEnabled() const override { return caches_; }

  DataPtr allocate(size_t bytes) override;
  DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  void delete_cached(void* ptr);
  void recordStream(const DataPtr& pointer, CUDAStream stream) override;
  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
  CA::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                             std::shared_ptr<CA::AllocatorState> state) override;
  void attachOutOfMemoryObserver(CA::OutOfMemoryObserver observer) override;
#if LMS_TORCH >= 213
  DataPtr allocateWithAddress(size_t bytes, void* address) override;
#endif

  // Whether the running request may have a new segment. Under the allocator's lock.
  bool reaches(Request* request);
  // The block, or null when it is out of reach or the device refuses.
  void* attempt(Request* request, Reach reach);
  // A cached block. Null where there is none, or only such as are too late for an EarlyRoomOnly.
  void* take_cached(Request* request);
  // A block of a new segment, whatever is cached.
  void* take_new(Request* request);
  // A new segment, all of which is cached then.
  bool cache_new(Request* request);
  // Gives these segments back to the device.
  void release(const Request& request, const std::vector<FreeMemory::Range>& segments);
  // Bytes that a new segment may measure.
  size_t room(DeviceIndex device, size_t reserved);
  // Bytes that a new segment for the request measures beyond that.
  size_t lacking(const Request& request);
  // Expandable segments may grow by less than a segment.
  bool may_fit(const Request& request) { return expandable_.load() || lacking(request) == 0; }
  size_t reserved(DeviceIndex device);
  size_t block_bytes(size_t bytes) const;
  CA::SnapshotInfo learn();

  BlockInfo info(void* ptr);
  void adopt(StorageImpl* storage);
  void set_ready(void* ptr, const Ready& ready) { blocks_.set_ready(ptr, ready); }
  void free_settled(void* ptr, const Ready& ready);
  Ready owed_by_free(void* ptr, size_t bytes) { return free_.look(FreeMemory::range(ptr, bytes)); }
  // The same, and what is free.
  CA::SnapshotInfo learn_free();
  // The request was given the block at `ptr`, of a new segment or of one that another callback,
  // such as PyTorch's own for memory of other processes, has found something in.
  void learn_new_segment(const Request& request, void* ptr) {
    if (under_pressure()) {
      const auto stats = base()->getDeviceStats(request.device);
      learn_free();
      if (request.missed && stats.segment[0].allocated > request.segments) {
        free_.put(FreeMemory::range(ptr, block_bytes(request.bytes)), {});  // nobody has used it
      }
    }
  }

 protected:
  CA::CreateContextFn safe_recorder(CA::CreateContextFn recorder) override {
    context_recorder = recorder;
    return recorder == nullptr ? nullptr : &record_context;
  }

 private:
  struct Pool {
    DeviceIndex device;
    MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
  };
  // A graph is captured, or allocations are routed to a pool, on this device.
  bool routed(DeviceIndex device);
  bool private_pool(DeviceIndex device, cudaStream_t stream);
  void leave_pool(DeviceIndex device, MempoolId_t pool);
  class Search;
  bool may_search(DeviceIndex device);
  void* take_new(Request* request, Search* search);
  bool chooses(DeviceIndex device, size_t bytes) { return has_choice(bytes) && may_search(device); }
  void* allocate_cached(size_t bytes, cudaStream_t stream);
  void* pass(DeviceIndex device, size_t bytes, cudaStream_t stream);
  void* obtain(DeviceIndex device, size_t bytes, cudaStream_t stream);
  void* obtain_last(Request* request);
  void pass_on(void* ptr, const Block& block);
  Ready taken(void* ptr, size_t bytes, DeviceIndex device, cudaStream_t stream);
  void let_go(void* ptr, const Block& block, const Ready& ready);
  void lose(DeviceIndex device, const Ready& ready);
  void add_lost(DeviceIndex device, Ready* ready);
  // `change` must not call the allocator behind, under whose lock that of this is taken.
  void correct(DeviceIndex device, const std::function<void(Unseen*)>& change);

  std::atomic<bool> caches_;  // else memory is the device's own
  Blocks blocks_;
  FreeMemory free_;
  std::mutex lost_mutex_;
  std::map<DeviceIndex, ::lms::Marks> lost_;  // what memory owes to others of which none is kept
  std::atomic<bool> has_lost_{false};
  std::mutex pools_mutex_;
  std::vector<Pool> pools_;
  std::atomic<size_t> pool_count_{0};
  std::atomic<bool> expandable_{false};
  mutable std::mutex state_mutex_;
  std::vector<size_t> divisions_;  // of powers of two; see roundup_power2_divisions
  std::vector<Unseen> unseen_;     // by device
  // What the allocator behind counts, and what is unseen of that, are of one moment. Comes before
  // the lock of the allocator behind.
  std::recursive_mutex statistics_mutex_;
};

Allocator* the_allocator = nullptr;  // leaked: blocks are freed after static destructors ran

void delete_block(void* ptr) { the_allocator->delete_cached(ptr); }

void* allocate_uncached(size_t bytes) {
  void* ptr = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
  return ptr;
}

void delete_uncached(void* ptr) { C10_CUDA_CHECK_WARN(cudaFree(ptr)); }

class OnPoolMiss final : public FreeMemoryCallback {
 public:
  bool Execute() override {
    Request* request = current_request;
    if (request != nullptr) {
      request->missed = true;
      if (request->reach == Reach::kPool || !the_allocator->reaches(request)) {
        throw OutOfReach{};
      }
    }
    return false;
  }
};

// What the engine sees of the pools, from the allocator's snapshot.
class SnapshotLists final : public BlockLists {
 public:
  SnapshotLists(Allocator& allocator, Request* request)
      : allocator_(allocator), request_(request) {}

  void* taken() const { return taken_; }

  bool take_free_block() override {
    taken_ = allocator_.take_cached(request_);
    return taken_ != nullptr;
  }

  bool take_new_segment() override {
    if (small_segment_) {
      Request segment{request_->device, kMinLarge, request_->stream};
      return fits(segment) && allocator_.cache_new(&segment) && take_free_block();  // cuts it
    }
    taken_ = fits(*request_) ? allocator_.take_new(request_) : nullptr;
    return taken_ != nullptr;
  }

  // The smallest that can be had for a block of the large pool is of kMinLarge bytes.
  bool shrink_segment() override {
    const size_t block = allocator_.block_bytes(request_->bytes);
    small_segment_ = block > kSmall && block < kMinLarge;
    return small_segment_;
  }

  // As it cannot be told which pool to look into, it is asked for the least of the large one.
  bool borrow() override {
    if (is_large()) {
      return false;
    }
    Request large{request_->device, kSmall + kMinBlock, request_->stream};
    taken_ = allocator_.attempt(&large, Reach::kPool);
    return taken_ != nullptr;
  }

  std::vector<::lms::Segment> segments(const IdleMap& idle) override {
    const CA::SnapshotInfo snapshot = allocator_.learn_free();
    const bool large = is_large();
    std::vector<::lms::Segment> result;
    listed_.clear();
    for (const auto& listed : snapshot.segments) {
      if (listed.device != request_->device) {
        continue;
      }
      const bool common = kind_of(listed.owner_private_pool_id) == PoolKind::kCommon;
      ::lms::Segment segment;
      segment.can_hold = common && listed.is_large == large && listed.stream == request_->stream;
      segment.releasable = common;  // of an expandable segment, each mapped range is listed
      segment.blocks.reserve(listed.blocks.size());
      auto* ptr = reinterpret_cast<char*>(listed.address);
      for (const auto& block : listed.blocks) {
        segment.blocks.push_back(listed_block(block, ptr, idle));
        ptr += block.size;
      }
      result.push_back(std::move(segment));
      listed_.push_back(range_of(listed));
    }
    return result;
  }

  void release_segments(const std::vector<size_t>& indices) override {
    std::vector<FreeMemory::Range> named;
    for (const size_t index : indices) {
      named.push_back(listed_[index]);
    }
    allocator_.release(*request_, named);
  }

  void settle_and_release() override { release_cached(); }

  size_t shortfall() override { return std::max<size_t>(allocator_.lacking(*request_), 1); }

 private:
  bool is_large() const { return allocator_.block_bytes(request_->bytes) > kSmall; }

  template <class Listed>
  ::lms::Block listed_block(const Listed& block, void* ptr, const IdleMap& idle) {
    if (block.active) {
      return ::lms::used_block(ptr, block.size, idle);
    }
    const bool late = EarlyRoomOnly::active() &&
                      too_late(Owed(allocator_.owed_by_free(ptr, block.size)), block.size);
    return late ? ::lms::busy_block(block.size) : ::lms::free_block(block.size);
  }

  // Whether the device has room. To be refused by it would take time, and some releases warn of it.
  bool fits(const Request& request) {
    if (allocator_.may_fit(request)) {
      return true;
    }
    release_cached();
    return allocator_.may_fit(request);
  }

  Allocator& allocator_;
  Request* const request_;
  void* taken_ = nullptr;
  std::vector<FreeMemory::Range> listed_;  // the segments last listed
  bool small_segment_ = false;
};

// ---- allocating

DataPtr Allocator::allocate(size_t bytes) {
  // As the allocator behind it says, which is not asked this way.
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const DeviceIndex device = current_device();
  const DeleterFnPtr deleter = raw_deleter();
  void* ptr = deleter == &delete_block ? allocate_cached(bytes, getCurrentCUDAStream(device))
                                       : allocate_uncached(bytes);
  return {ptr, ptr, deleter, Device(kCUDA, device)};
}

DeleterFnPtr Allocator::raw_deleter() const {
  return C10_LIKELY(caches_) ? &delete_block : &delete_uncached;
}

void* Allocator::raw_alloc(size_t bytes) {
  return raw_alloc_with_stream(bytes, getCurrentCUDAStream());
}

void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  const bool cached = C10_LIKELY(caches_) || bytes == 0 || PageInScope::active();
  return cached ? allocate_cached(bytes, stream) : allocate_uncached(bytes);
}

void* Allocator::allocate_cached(size_t bytes, cudaStream_t stream) {
  if (bytes == 0) {
    return nullptr;
  }
  const DeviceIndex device = current_device();
  const PoolKind kind = private_pool(device, stream) ? PoolKind::kPrivate : PoolKind::kCommon;
  void* ptr = C10_LIKELY(!reclaiming()) || kind == PoolKind::kPrivate
                  ? pass(device, bytes, stream)
                  : obtain(device, bytes, stream);
  know_stream(getCurrentCUDAStream(device));
  const size_t usable = block_bytes(bytes);
  const Ready ready = taken(ptr, usable, device, stream);
  blocks_.add(ptr, {stream, {}, device, kind, Freer::kPlugin, usable, ready});
  return ptr;
}

// What the allocator behind says, and what is in use by whom.
[[noreturn]] void throw_described(const OutOfMemoryError& error, const Request& request) {
  C10_THROW_ERROR(OutOfMemoryError, c10::str(error.what_without_backtrace(), " ",
                                             describe(request.device, request.bytes)));
}

#if LMS_TORCH >= 213
DataPtr Allocator::allocateWithAddress(size_t bytes, void* address) {
  DataPtr pointer = base()->allocateWithAddress(bytes, address);
  if (pointer.get() != nullptr) {
    taken(pointer.get(), block_bytes(bytes), current_device(), getCurrentCUDAStream());
  }
  return pointer;
}
#endif

// As the allocator behind does it.
void* Allocator::pass(DeviceIndex device, size_t bytes, cudaStream_t stream) {
  Request request{device, bytes, stream, Reach::kAny};
  request.last = true;
  const RequestScope scope(&request);
  try {
    void* ptr = base()->raw_alloc_with_stream(bytes, stream);
    count(device, request.missed ? Route::kNewSegment : Route::kFreeBlock);
    return ptr;
  } catch (const OutOfMemoryError& error) {
    if (!reclaiming()) {
      throw;
    }
    throw_described(error, request);
  }
}

void* Allocator::obtain(DeviceIndex device, size_t bytes, cudaStream_t stream) {
  Request request{device, bytes, stream};
  if (chooses(device, block_bytes(bytes))) {
    if (void* ptr = take_cached(&request)) {
      count(device, Route::kFreeBlock);
      return ptr;
    }
  }
  if (void* ptr = EarlyRoomOnly::refused() ? nullptr : attempt(&request, Reach::kFits)) {
    count(device, request.missed ? Route::kNewSegment : Route::kFreeBlock);
    if (request.missed) {
      learn_new_segment(request, ptr);
    }
    return ptr;
  }
  const ReleaseScope release;
  const bool over_soft = request.over_soft;
  void* taken = nullptr;
  const auto made = reclaim(device, Effort::kEverything, [&](ReclaimScope& scope) {
    SnapshotLists lists(*this, &request);
    const size_t need = block_bytes(bytes);
    bool found = over_soft && scope.make_room(lists, need, Effort::kHole);
    if (!found && over_soft && lists.take_new_segment()) {
      found = count(device, Route::kNewSegment);
    }
    found = found || scope.make_room(lists, need, Effort::kEverything);
    taken = lists.taken();
    return found;
  });
  return made ? taken : obtain_last(&request);
}

void* Allocator::attempt(Request* request, Reach reach) {
  request->reach = reach;
  request->missed = request->over_soft = false;
  const RequestScope scope(request);
  try {
    return base()->raw_alloc_with_stream(request->bytes, request->stream);
  } catch (const OutOfReach&) {
  } catch (const OutOfMemoryError&) {
    correct(request->device, [](Unseen* unseen) { unseen->add_ooms(-1); });
  }
  return nullptr;
}

// There is no way to say which block to take. But what the allocator would take one after the other
// can be had, and all but one given back: then nobody has seen it. It begins with the first that is
// held; other threads that search wait for its end.
class Allocator::Search {
 public:
  Search(Allocator& allocator, const Request& request) : allocator_(allocator), request_(request) {}
  ~Search() {
    if (!begun()) {
      return;
    }
    give_back([](void*) { return true; });
    const auto after = allocator_.base()->getDeviceStats(request_.device);
    bool raised = false;
    allocator_.correct(request_.device, [&](Unseen* unseen) {
      raised = unseen->add_blocks(before_, after, taken_, given_back_);
    });
    if (raised) {
      allocator_.base()->resetPeakStats(request_.device);
    }
    searching = false;
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  void begin() {
    if (!begun()) {
      lock_ = std::unique_lock<std::recursive_mutex>(allocator_.statistics_mutex_);
      before_ = allocator_.base()->getDeviceStats(request_.device);
      searching = true;
    }
  }
  bool begun() const { return lock_.owns_lock(); }

  // The smallest cached block that is large enough, or its beginning. Null where there is none.
  void* take(size_t bytes, cudaStream_t stream) {
    begin();
    Request request{request_.device, bytes, stream};
    void* ptr = allocator_.attempt(&request, Reach::kPool);
    if (ptr != nullptr) {
      held_.push_back(ptr);
      ++taken_;
    }
    return ptr;
  }
  void* take(size_t bytes) { return take(bytes, request_.stream); }
  void* take() { return take(request_.bytes); }

  // The same, after what is left of the block that was taken last.
  void* take_next(size_t block, size_t bytes) {
    if (block > bytes + kSmall) {  // else it was not split
      take(block - bytes);
    }
    return take();
  }

  // What the request was given, perhaps before the search began: it goes back unless it is kept.
  void hold(void* ptr) {
    begin();
    if (std::find(held_.begin(), held_.end(), ptr) == held_.end()) {
      held_.push_back(ptr);
    }
  }

  template <class Which>
  void give_back(const Which& which) {
    const auto others =
        std::partition(held_.begin(), held_.end(), [&](void* held) { return !which(held); });
    for (auto ptr = others; ptr != held_.end(); ++ptr) {
      allocator_.base()->raw_delete(*ptr);
      ++given_back_;
    }
    held_.erase(others, held_.end());
  }

  void* keep(void* ptr) {
    held_.erase(std::remove(held_.begin(), held_.end(), ptr), held_.end());
    return ptr;
  }

  // A block of a new segment, or null.
  void* keep_new(Request* request) {
    void* ptr = allocator_.attempt(request, Reach::kAll);
    taken_ += ptr != nullptr ? 1 : 0;
    return ptr;
  }

  // So many bytes behind `ptr`, in the block that is held there; another place where something is
  // in the way.
  void* keep_behind(void* ptr, size_t block, size_t bytes) {
    const FreeMemory::Range place = FreeMemory::range(ptr, block);
    give_back([&](void* held) { return place.begin <= held && held < place.end; });
    void* before = take(bytes);
    for (size_t i = 0; i < kMostBlocks && before != nullptr && before != ptr; ++i) {
      before = take(bytes);  // what fits better is held
    }
    void* found = take();
    if (found == nullptr) {
      give_back([](void*) { return true; });
      found = take();
    }
    return keep(found);
  }

 private:
  Allocator& allocator_;
  const Request request_;
  std::unique_lock<std::recursive_mutex> lock_;
  CachingDeviceAllocator::DeviceStats before_;
  std::vector<void*> held_;
  std::int64_t taken_ = 0, given_back_ = 0;
};

// A history or a profile would have all that in it, a trace would run Python for it, expandable
// segments would be mapped, and another pool might want what is held.
bool Allocator::may_search(DeviceIndex device) {
  return !expandable_ && !base()->isHistoryEnabled() && !memoryProfilingEnabled() &&
         c10::impl::GPUTrace::get_trace() == nullptr && !routed(device);
}

// What suits its taker best; an op, what fits best unless a copy is pending there.
void* Allocator::take_cached(Request* request) {
  if (!may_search(request->device)) {  // nor does another thread, whom a lock would make wait here
    return attempt(request, Reach::kPool);
  }
  const size_t bytes = block_bytes(request->bytes);
  if (!has_choice(bytes)) {
    const std::lock_guard<std::recursive_mutex> lock(statistics_mutex_);  // else it may be held
    return attempt(request, Reach::kPool);
  }
  Search search(*this, *request);
  void* ptr = EarlyRoomOnly::active() ? nullptr  // it may keep none of them
                                      : attempt(request, Reach::kPool);
  if (ptr == nullptr) {
    ptr = search.take();  // another thread's may have held it
  }
  if (ptr == nullptr) {
    return nullptr;
  }
  if (!PageInScope::active() && owed_by_free(ptr, bytes).copies_done()) {
    return search.keep(ptr);
  }
  search.hold(ptr);
  struct {
    void* ptr = nullptr;
    size_t block = 0;
    Spot spot;
  } best;
  size_t largest = SIZE_MAX;
  for (size_t looked = 0; ptr != nullptr && looked < kMostBlocks; ++looked) {
    const FreeMemory::Hole hole = free_.hole(ptr);
    const bool known = hole.bytes >= bytes;
    const size_t block = known ? hole.bytes : bytes;
    if (looked == 0) {
      largest = largest_choice(block);
    } else if (block > largest) {
      break;
    }
    const Spot spot = first_ready(known ? hole.owed : Owed(owed_by_free(ptr, bytes)), block, bytes);
    if (looked == 0 || spot.before(best.spot)) {
      best = {ptr, block, spot};
    }
    ptr = search.take_next(block, bytes);
  }
  if (PageInScope::active() && too_late(best.spot)) {
    return nullptr;
  }
  return best.spot.begin == 0 ? search.keep(best.ptr)
                              : search.keep_behind(best.ptr, best.block, best.spot.begin);
}

void* Allocator::take_new(Request* request, Search* search) {
  if (EarlyRoomOnly::refused()) {
    const size_t bytes = block_bytes(request->bytes);
    for (void* cached = search->take(); cached != nullptr;) {  // it would be had first
      cached = search->take_next(free_.hole(cached).bytes, bytes);
    }
  }
  return search->begun() ? search->keep_new(request) : attempt(request, Reach::kAll);
}

void* Allocator::take_new(Request* request) {
  void* ptr = nullptr;
  {
    Search search(*this, *request);
    ptr = take_new(request, &search);
  }
  if (ptr != nullptr) {
    learn_new_segment(*request, ptr);
  }
  return ptr;
}

bool Allocator::cache_new(Request* request) {
  Search search(*this, *request);
  if (may_search(request->device)) {
    search.begin();
  }
  void* ptr = take_new(request, &search);
  if (ptr == nullptr) {
    return false;
  }
  learn_new_segment(*request, ptr);
  if (search.begun()) {
    search.hold(ptr);
  } else {
    base()->raw_delete(ptr);
  }
  return true;
}

// There is no way to name them: everything cached goes that is not held meanwhile.
void Allocator::release(const Request& request, const std::vector<FreeMemory::Range>& segments) {
  if (!may_search(request.device)) {
    release_cached();
    return;
  }
  const CA::SnapshotInfo snapshot = blocks();
  Search search(*this, request);
  std::set<cudaStream_t> small;  // that have a segment of small blocks
  for (const auto& segment : snapshot.segments) {
    const bool whole = std::none_of(segment.blocks.begin(), segment.blocks.end(),
                                    [](const auto& block) { return block.active; });
    const auto stream = static_cast<cudaStream_t>(segment.stream);
    if (segment.device != request.device || !whole ||
        kind_of(segment.owner_private_pool_id) != PoolKind::kCommon) {
      continue;
    }
    if (segment.is_large) {
      search.take(segment.total_size, stream);
    } else {
      small.insert(stream);
    }
  }
  for (const cudaStream_t stream : small) {
    while (search.take(kSmall, stream) != nullptr) {
    }
  }
  search.give_back([&](void* held) {
    return std::any_of(segments.begin(), segments.end(), [held](const auto& segment) {
      return segment.begin <= held && held < segment.end;
    });
  });
  release_cached();
}

void* Allocator::obtain_last(Request* request) {
  request->reach = Reach::kAll;
  request->last = true;
  const RequestScope scope(request);
  try {
    return base()->raw_alloc_with_stream(request->bytes, request->stream);
  } catch (const OutOfReach&) {
    correct(request->device, [](Unseen* unseen) { unseen->add_ooms(1); });
    C10_THROW_ERROR(OutOfMemoryError,
                    c10::str("CUDA out of memory. Tried to allocate ", request->bytes,
                             " bytes on GPU ", static_cast<int>(request->device), ". ",
                             describe(request->device, request->bytes)));
  } catch (const OutOfMemoryError& error) {
    throw_described(error, *request);
  }
}

bool Allocator::reaches(Request* request) {
  if (request->reach == Reach::kAny) {
    return true;
  }
  const auto stats = base()->getDeviceStats(request->device);
  request->segments = stats.segment[0].allocated;
  const auto held = static_cast<size_t>(stats.reserved_bytes[0].current);
  const size_t need = segment_bytes(block_bytes(request->bytes));
  if (over_limit(held + need)) {
    return false;
  }
  if (request->reach == Reach::kAll) {
    return true;
  }
  if (need > room(request->device, held)) {
    return false;
  }
  request->over_soft = over_soft_limit(held + need);
  return !request->over_soft;
}

size_t Allocator::reserved(DeviceIndex device) {
  return static_cast<size_t>(base()->getDeviceStats(device).reserved_bytes[0].current);
}

size_t Allocator::room(DeviceIndex device, size_t reserved) {
  const CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto allowed =
      static_cast<size_t>(base()->getMemoryFraction(device) * static_cast<double>(total));
  return std::min({free, limit_headroom(reserved), allowed > reserved ? allowed - reserved : 0});
}

size_t Allocator::lacking(const Request& request) {
  const size_t need = segment_bytes(block_bytes(request.bytes));
  const size_t has = room(request.device, reserved(request.device));
  return need > has ? need - has : 0;
}

// The size that the allocator gives a block of this many bytes.
size_t Allocator::block_bytes(size_t bytes) const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (!divisions_.empty() && bytes > 0) {
    const int last = static_cast<int>(divisions_.size()) - 1;
    const size_t divisions = divisions_[std::clamp(log2_of(bytes) - 20, 0, last)];
    if (divisions > 1 && bytes > kMinBlock * divisions) {
      const size_t step = (size_t{1} << log2_of(bytes)) >> log2_of(divisions);
      return step == 0 ? bytes : round_up(bytes, step);
    }
  }
  return std::max(round_up(bytes, kMinBlock), kMinBlock);
}

CA::SnapshotInfo Allocator::learn() {
  CA::SnapshotInfo snapshot = blocks();
  blocks_.learn(snapshot.segments);
  expandable_ = snapshot.config_metadata.expandable_segments;
  std::lock_guard<std::mutex> lock(state_mutex_);
  divisions_ = snapshot.config_metadata.roundup_power2_divisions;
  return snapshot;
}

// Of a segment in the common pool that does not expand: what is free in it, and what its blocks
// have over, was used by nobody since the mark that comes next.
CA::SnapshotInfo Allocator::learn_free() {
  const auto keeps = [](const auto& segment) {
    return kind_of(segment.owner_private_pool_id) == PoolKind::kCommon && !expands(segment);
  };
  CA::SnapshotInfo snapshot;
  free_.set_segments([&] {
    snapshot = learn();
    std::vector<FreeMemory::Range> segments;
    for (const auto& segment : snapshot.segments) {
      if (keeps(segment)) {
        segments.push_back(range_of(segment));
      }
    }
    return segments;
  });
  for (const auto& segment : snapshot.segments) {
    if (!keeps(segment) || !segment.is_large) {
      continue;
    }
    std::vector<FreeMemory::Range> unused;
    auto* ptr = reinterpret_cast<char*>(segment.address);
    for (const auto& block : segment.blocks) {
      const size_t used = block.active ? block_bytes(block.requested_size) : 0;
      if (used < block.size) {
        unused.push_back(FreeMemory::range(ptr + used, block.size - used));
      }
      ptr += block.size;
    }
    free_.fill(unused, [&segment] {
      Ready ready;
      ready.freed = true;
      ready.home = next_mark(segment.device, static_cast<cudaStream_t>(segment.stream));
      ready.all = ready.home == nullptr;
      ready.idle_since = ready.home ? ready.home->number() : UINT64_MAX;
      return ready;
    });
  }
  return snapshot;
}

// ---- what memory owes, from owner to owner

// A page-in waits itself for what this owes; for an operator the stream of the pool does.
Ready Allocator::taken(void* ptr, size_t bytes, DeviceIndex device, cudaStream_t stream) {
  Ready ready = free_.take(FreeMemory::range(ptr, bytes));
  if (PageInScope::active()) {
    return ready;
  }
  if (C10_UNLIKELY(has_lost_.load(std::memory_order_relaxed))) {
    add_lost(device, &ready);
  }
  if (C10_UNLIKELY(ready.owes_streams())) {
    settle_copies(device, stream, ready);
  }
  Owed owed(std::move(ready));
  owed.take();
  return owed.whole();
}

// Where it cannot be kept, the stream of the pool waits at once. Of a small block nothing is known,
// unless the engine itself gives it back.
void Allocator::let_go(void* ptr, const Block& block, const Ready& ready) {
  const bool told = !ready.all || block.bytes > kSmall;
  const FreeMemory::Range range = FreeMemory::range(ptr, block.bytes);
  if (!told || !free_.put(range, ready)) {
    settle_copies(block.device, block.stream, ready);
    lose(block.device, ready);
    free_.forget(range);  // what a list has said meanwhile came before that
  }
}

// Whoever takes memory may have taken that.
void Allocator::lose(DeviceIndex device, const Ready& ready) {
  if (C10_LIKELY(!ready.owes_streams())) {
    return;
  }
  const std::lock_guard<std::mutex> lock(lost_mutex_);
  lost_[device].add(ready.copies());
  lost_[device].add(ready.others);
  has_lost_ = true;
}

void Allocator::add_lost(DeviceIndex device, Ready* ready) {
  const std::lock_guard<std::mutex> lock(lost_mutex_);
  if (lost_[device].done()) {
    lost_.erase(device);
    has_lost_ = !lost_.empty();
    return;
  }
  ready->others.add(lost_[device]);
}

// ---- freeing, and the streams that must be waited for

// Called by who has allocated by raw_alloc(), which says of nothing whether it is cached.
void Allocator::raw_delete(void* ptr) { raw_deleter()(ptr); }

void Allocator::delete_cached(void* ptr) {
  if (C10_UNLIKELY(in_child())) {  // a thread of the parent may have had PyTorch's locks
    return;
  }
  if (auto block = blocks_.take(ptr)) {
    Owed owed(block->ready);
    free_by_user(block->device, block->stream, block->bytes, &owed);
    settle_external(&block->used_on);
    let_go(ptr, *block, owed.whole());
    pass_on(ptr, *block);
  }
  base()->raw_delete(ptr);
}

void Allocator::pass_on(void* ptr, const Block& block) {
  if (block.used_on.empty() || block.freer != Freer::kPlugin) {
    return;
  }
  DataPtr pointer(ptr, ptr, base()->raw_deleter(), Device(kCUDA, block.device));
  for (const CUDAStream& stream : block.used_on) {
    base()->recordStream(pointer, stream);
  }
  pointer.release_context();
}

void Allocator::recordStream(const DataPtr& pointer, CUDAStream stream) {
  const EngineLock lock;
  if (record_stream_on_host(pointer, stream) || pointer.get() == nullptr ||
      blocks_.record(pointer.get(), stream)) {
    return;
  }
  base()->recordStream(pointer, stream);
}

void Allocator::free_settled(void* ptr, const Ready& ready) {
  if (const auto block = blocks_.take(ptr)) {
    let_go(ptr, *block, ready);
  }
  base()->raw_delete(ptr);
}

BlockInfo Allocator::info(void* ptr) {
  auto block = blocks_.find(ptr);
  if (!block) {
    learn();
    block = blocks_.find(ptr);
  }
  if (!block) {
    return {};
  }
  const bool evictable = block->pool == PoolKind::kCommon && !routed(block->device);
  return {block->stream, block->used_on, evictable, block->ready};
}

void Allocator::adopt(StorageImpl* storage) {
  DataPtr& pointer = pointer_of(*storage);
  if (pointer.get() == pointer.get_context() &&
      pointer.compare_exchange_deleter(base()->raw_deleter(), &delete_block)) {
    info(pointer.get());  // learns of it
    blocks_.adopt(pointer.get());
  }
  if (storage->allocator() == base()) {
    storage->set_allocator(this);
  }
}

// ---- pools of graphs and of the user

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                                    std::function<bool(cudaStream_t)> filter) {
  begin_standstill([this, device, pool] {
    endAllocateToPool(device, pool);
    releasePool(device, pool);
  });
  {
    const std::lock_guard<std::recursive_mutex> searched(statistics_mutex_);
    std::lock_guard<std::mutex> lock(pools_mutex_);
    pools_.push_back({device, pool, filter});
    pool_count_ = pools_.size();
  }
  auto refused = c10::make_scope_exit([&] { leave_pool(device, pool); });
  base()->beginAllocateToPool(device, pool, std::move(filter));
  refused.release();
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  base()->endAllocateToPool(device, pool);
  leave_pool(device, pool);
}

void Allocator::leave_pool(DeviceIndex device, MempoolId_t pool) {
  {
    std::lock_guard<std::mutex> lock(pools_mutex_);
    const auto found = std::find_if(pools_.rbegin(), pools_.rend(), [&](const Pool& entry) {
      return entry.device == device && entry.id == pool;
    });
    if (found == pools_.rend()) {  // of before this allocator
      return;
    }
    pools_.erase(std::next(found).base());
    pool_count_ = pools_.size();
  }
  end_standstill();
}

bool Allocator::routed(DeviceIndex device) {
  if (C10_LIKELY(pool_count_ == 0)) {
    return false;
  }
  std::lock_guard<std::mutex> lock(pools_mutex_);
  return std::any_of(pools_.begin(), pools_.end(),
                     [&](const Pool& pool) { return pool.device == device; });
}

bool Allocator::private_pool(DeviceIndex device, cudaStream_t stream) {
  if (C10_LIKELY(pool_count_ == 0)) {
    return false;
  }
  std::vector<std::function<bool(cudaStream_t)>> filters;
  {
    std::lock_guard<std::mutex> lock(pools_mutex_);
    for (const Pool& pool : pools_) {
      if (pool.device == device) {
        filters.push_back(pool.filter);
      }
    }
  }
  return std::any_of(filters.begin(), filters.end(),
                     [&](const auto& filter) { return filter(stream); });
}

CA::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                      std::shared_ptr<CA::AllocatorState> state) {
  auto delta = base()->setCheckpointPoolState(device, std::move(state));
  for (DataPtr& pointer : delta.dataptrs_allocd) {
    if (pointer.compare_exchange_deleter(base()->raw_deleter(), &delete_block)) {
      blocks_.add(pointer.get(), {nullptr, {}, device, PoolKind::kPrivate, Freer::kPlugin});
    }
  }
  return delta;
}

// ---- statistics

CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  const std::lock_guard<std::recursive_mutex> lock(statistics_mutex_);
  auto stats = base()->getDeviceStats(device);
  correct(device, [&](Unseen* unseen) { stats = unseen->correct(std::move(stats)); });
  return stats;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  const std::lock_guard<std::recursive_mutex> lock(statistics_mutex_);
  base()->resetAccumulatedStats(device);
  correct(device, [](Unseen* unseen) { unseen->reset_accumulated(); });
}

void Allocator::resetPeakStats(DeviceIndex device) {
  const std::lock_guard<std::recursive_mutex> lock(statistics_mutex_);
  base()->resetPeakStats(device);
  correct(device, [](Unseen* unseen) { unseen->reset_peaks(); });
}

void Allocator::correct(DeviceIndex device, const std::function<void(Unseen*)>& change) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  const auto index = static_cast<size_t>(device);
  if (unseen_.size() <= index) {
    unseen_.resize(index + 1);
  }
  change(&unseen_[index]);
}

// They may want the GIL, and look for errors that reach the user.
void Allocator::attachOutOfMemoryObserver(CA::OutOfMemoryObserver observer) {
  base()->attachOutOfMemoryObserver([observer = std::move(observer)](int64_t device,
                                                                     size_t allocated, size_t total,
                                                                     size_t free) {
    if (!in_engine() && (current_request == nullptr || current_request->last)) {
      observer(device, allocated, total, free);
    }
  });
}

bool install() {
  CA::CUDAAllocator* base = CA::get();
  if (base->name() != "native") {
    return false;
  }
  the_allocator = new Allocator(base);
  CA::allocator.store(the_allocator);
  SetAllocator(kCUDA, the_allocator, /*priority=*/1);
  return true;
}

[[maybe_unused]] const bool installed = install();

}  // namespace

BlockInfo block_info(void* ptr) { return the_allocator->info(ptr); }

void set_ready(void* ptr, const Ready& ready) { the_allocator->set_ready(ptr, ready); }

void free_settled(void* ptr, const Ready& ready) { the_allocator->free_settled(ptr, ready); }

bool is_block_deleter(DeleterFnPtr deleter) noexcept {
  return deleter == &delete_block ||
         (the_allocator != nullptr && deleter == the_allocator->base()->raw_deleter());
}

DeleterFnPtr block_deleter() noexcept { return &delete_block; }

void adopt(StorageImpl* storage) { the_allocator->adopt(storage); }

void learn_allocator() { know_earlier_streams(the_allocator->learn()); }

std::string allocator_obstacle() {
  if (the_allocator == nullptr || CA::get() != the_allocator) {
    return "the allocator in use is not PyTorch's native one (" + CA::get()->name() +
           "); remove backend:cudaMallocAsync from PYTORCH_CUDA_ALLOC_CONF, or the pluggable "
           "allocator";
  }
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) {
    return "PYTORCH_NO_CUDA_MEMORY_CACHING turns the caching allocator off; unset it";
  }
  if (!the_allocator->isEnabled()) {
    return "torch.cuda.memory.caching_allocator_enable(False) has turned the caching allocator "
           "off; turn it on again";
  }
  return "";
}

}  // namespace c10::cuda::lms

namespace c10 {
using LmsOnPoolMiss = cuda::lms::OnPoolMiss;
REGISTER_FREE_MEMORY_CALLBACK("large_model_support", LmsOnPoolMiss)
}  // namespace c10
