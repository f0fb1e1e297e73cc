// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <sstream>
#include <thread>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/core/slabs.h"
#include "tensorflow/core/common_runtime/lms/frame.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace tensorflow {
namespace lms {
namespace {

using EngineLock = std::lock_guard<std::recursive_mutex>;

// GPUOptions.Experimental.lms_enabled. Official builds of the proto do not know the field and keep
// it among the unknown ones.
constexpr int kEnabledField = 26700001;

constexpr int64_t kMiB = 1 << 20;

constexpr int kMostShortagesLogged = 10;

// Ops that were running when Large Model Support was enabled have this long to end.
constexpr int kEnableSeconds = 10;

constexpr int kStripes = 64;
struct alignas(64) Stripe {
  std::atomic<int64_t> count{0};
};
Stripe unpinned_ops[kStripes];

class CpuTransport final : public Transport {
 public:
  ::lms::Stream stream() override { return nullptr; }
  ::lms::FencePtr ToHost(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
    return nullptr;
  }
  ::lms::FencePtr ToDevice(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
    return nullptr;
  }
  void Poison(void* device, size_t bytes) override { std::memset(device, 0xFF, bytes); }
};

bool AsksForLms(const SessionOptions& options) {
  const auto& experimental = options.config.gpu_options().experimental();
  const auto* field = experimental.GetDescriptor()->FindFieldByNumber(kEnabledField);
  if (field != nullptr) return experimental.GetReflection()->GetBool(experimental, field);
  const auto& unknown = experimental.GetReflection()->GetUnknownFields(experimental);
  bool asks = false;
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& item = unknown.field(i);
    if (item.number() == kEnabledField && item.type() == protobuf::UnknownField::TYPE_VARINT) {
      asks = item.varint() != 0;
    }
  }
  return asks;
}

std::string Mib(int64_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / kMiB << " MiB";
  return out.str();
}

void Raise(std::atomic<int64_t>* peak, int64_t value) {
  int64_t old = peak->load();
  while (old < value && !peak->compare_exchange_weak(old, value)) {
  }
}

bool EnvIsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

std::atomic<bool> Runtime::active_{false};
std::atomic<bool> Runtime::ever_active_{false};
std::atomic<bool> Runtime::reclaiming_{false};

// ---- the runtime

Runtime& Runtime::Get() {
  static auto* runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() : host_(memory_), engine_(backend_, host_) {
  backend_.set_host(&host_);
  // Upstream's own variable for pinned memory is the limit of ours as well.
  const char* limit = std::getenv("TF_GPU_HOST_MEM_LIMIT_IN_MB");
  if (limit != nullptr && std::atoll(limit) > 0) host_.set_limit(std::atoll(limit) * kMiB);
}

std::atomic<int64_t>* Runtime::BeginUnpinned() {
  static std::atomic<int> next{0};
  thread_local const int stripe = next.fetch_add(1) % kStripes;
  std::atomic<int64_t>* counter = &unpinned_ops[stripe].count;
  counter->fetch_add(1);
  return counter;
}

Status Runtime::SetEnabled(bool enable) {
  mutex_lock switching(switching_);
  if (enable == enabled_) return Ok();
  if (!enable) {
    enabled_ = false;
    reclaiming_ = false;
    engine_.set_chaos(false);
    // What does not fit stays out until an op wants it.
    engine_.page_in_all([](int device) { return Get().pools_[device]->transport->stream(); });
    BecomeInactive();
    return Ok();
  }
  for (int i = 0; i < pool_count_; ++i) NotePeaks(pools_[i]);
  ever_active_ = true;
  enabling_ = true;
  active_ = true;
  // Ops that found it inactive run without pins: all must be over before the first eviction.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kEnableSeconds);
  for (int i = 0; i < kStripes; ++i) {
    while (unpinned_ops[i].count.load() > 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        enabling_ = false;
        BecomeInactive();
        return errors::FailedPrecondition(
            "Large Model Support cannot be enabled because operations that started before are "
            "still running after ",
            kEnableSeconds, " seconds; enable it before the first of them starts");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  {
    EngineLock lock(engine_.mutex());
    enabled_ = true;
    enabling_ = false;
  }
  reclaiming_ = true;
  engine_.set_chaos(chaos_);
  return Ok();
}

void Runtime::BecomeInactive() {
  EngineLock lock(engine_.mutex());
  if (enabled_ || enabling_ || backend_.on_host() > 0) return;
  engine_.drop_copies();
  active_ = false;
}

Status Runtime::SetOption(const std::string& name, int64_t value) {
  if (value < 0) {
    return errors::InvalidArgument("Large Model Support cannot set ", name, " to ", value,
                                   " because it is negative; use 0 for no limit");
  }
  if (name == "limit") {
    for (int i = 0; i < pool_count_; ++i) {
      const int64_t all = BfcAccess::Stats(pools_[i]->allocator).limit;
      if (value > all) {
        return errors::InvalidArgument("Large Model Support cannot limit the memory of ",
                                       pools_[i]->name, " to ", Mib(value), " because it has only ",
                                       Mib(all), "; use less, or 0");
      }
    }
    limit_ = value;
  } else if (name == "host_limit") {
    const int64_t all = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    if (value > all) {
      return errors::InvalidArgument("host_limit cannot be ", Mib(value),
                                     " because this machine has ", Mib(all),
                                     " of memory; use less, or 0 for no limit");
    }
    host_.set_limit(value);
  } else if (name == "min_size") {
    engine_.set_min_bytes(value);
  } else if (name == "chaos") {
    EngineLock lock(engine_.mutex());
    if (backend_.on_host() > 0) {
      return errors::FailedPrecondition(
          "chaos mode cannot be switched because tensors are in host memory; set it before Large "
          "Model Support is enabled");
    }
    chaos_ = value != 0;
    backend_.set_poison(chaos_);
    engine_.set_chaos(chaos_ && Reclaiming());
  } else {
    return errors::InvalidArgument("Large Model Support has no option ", name,
                                   "; it has limit, host_limit, min_size and chaos");
  }
  return Ok();
}

int64_t Runtime::GetOption(const std::string& name) {
  if (name == "limit") return limit_;
  if (name == "host_limit") return host_.stats().limit;
  if (name == "min_size") return engine_.min_bytes();
  if (name == "chaos") return chaos_;
  return -1;
}

// ---- devices

void Runtime::OnDevice(const SessionOptions& options, const std::string& name, Allocator* allocator,
                       Transport* transport) {
  auto* bfc = dynamic_cast<BfcAllocator*>(allocator);
  // Host memory without a limit is not what runs out.
  const bool limited = transport != nullptr || (EnvIsSet("TF_CPU_ALLOCATOR_USE_BFC") &&
                                                EnvIsSet("TF_CPU_BFC_MEM_LIMIT_IN_MB"));
  if (bfc != nullptr && limited && PoolOf(bfc) == nullptr) {
    mutex_lock lock(pools_mu_);
    const int count = pool_count_;
    if (PoolOf(bfc) == nullptr && count < kMostPools) {
      if (transport == nullptr) {
        transport = new CpuTransport;
        BfcAccess::GrowAtOnce(bfc);  // costs nothing: pages come with their first use
      }
      Pool* pool = new Pool(count, name, bfc, transport);
      BfcAccess::AddSlab(bfc, &pool->slabs,
                         ::lms::first_slab_bytes(static_cast<size_t>(pool->bytes())));
      pools_[count] = pool;
      pool_count_ = count + 1;
      BfcAllocator::SetReclaimer(this);
    }
  }
  seen_device_ = true;
  if (enabled_ || !AsksForLms(options)) return;
  // The devices of a session come one by one, and the CPU's, which is the first, may not be one
  // that can be managed.
  if (pool_count_ == 0) return;
  const Status status = SetEnabled(true);
  if (!status.ok()) LOG(ERROR) << status.ToString();
}

Pool* Runtime::PoolOf(const Allocator* allocator) {
  for (int i = 0; i < pool_count_; ++i) {
    if (pools_[i]->allocator == allocator) return pools_[i];
  }
  return nullptr;
}

// ---- reclaim

size_t Runtime::OverLimit(Pool* pool, size_t rounded) {
  const size_t limit = limit_;
  if (limit == 0) return 0;
  const size_t wanted = BfcAccess::Stats(pool->allocator).in_use + rounded;
  return wanted > limit ? wanted - limit : 0;
}

// Sets aside more for small tensors, for which what is idle near the end of the pool makes way.
bool Runtime::GrowSlabs(Pool* pool) {
  if (OverLimit(pool, ::lms::kLeastSlab) > 0) return false;
  const size_t bytes = ::lms::next_slab_bytes(BfcAccess::SlabBytes(pool->allocator, pool->slabs));
  const auto candidates = engine_.candidates(pool->index, /*everything=*/true);
  ::lms::IdleMap idle;
  for (size_t i = 0; i < candidates.size(); ++i) {
    idle[candidates[i].extent.ptr] = {candidates[i].cost, i};
  }
  const auto run = ::lms::last_run(BfcAccess::Segments(pool->allocator, idle), bytes);
  for (const size_t victim : run.victims) {
    if (!engine_.evict(candidates[victim].key)) return false;
  }
  return run.found && BfcAccess::AddSlab(pool->allocator, &pool->slabs, bytes);
}

// What a request that found no room may take.
class Runtime::Request final : public BfcLists {
 public:
  Request(Runtime* runtime, Pool* pool, size_t bytes, uint64_t freed_before)
      : BfcLists(pool->allocator, BfcAccess::RoundedBytes(bytes)),
        runtime_(*runtime),
        pool_(pool),
        bytes_(bytes),
        freed_before_(freed_before) {}
  bool take_free_block() override {
    if (over_limit() > 0) return false;
    ptr_ = anywhere_ ? BfcAccess::AllocateOnce(allocator_, bytes_, freed_before_)
                     : runtime_.Take(pool_, bytes_, freed_before_, /*last_resort=*/true);
    return ptr_ != nullptr;
  }
  // What is too small to move comes to lie between others rather than nowhere.
  bool shrink_segment() override {
    const bool may = bytes_ < kSmallestMovable && !anywhere_;
    anywhere_ = anywhere_ || may;
    return may;
  }
  size_t over_limit() override { return runtime_.OverLimit(pool_, rounded_); }
  void* ptr() const { return ptr_; }

 private:
  Runtime& runtime_;
  Pool* const pool_;
  const size_t bytes_;
  const uint64_t freed_before_;
  bool anywhere_ = false;
  void* ptr_ = nullptr;
};

// A hole that is to be there, and not taken yet.
class Runtime::Hole final : public BfcLists {
 public:
  Hole(Runtime* runtime, Pool* pool, size_t rounded)
      : BfcLists(pool->allocator, rounded), runtime_(*runtime), pool_(pool) {}
  bool take_free_block() override { return BfcAccess::CanTake(allocator_, rounded_); }
  size_t over_limit() override { return runtime_.OverLimit(pool_, rounded_); }

 private:
  Runtime& runtime_;
  Pool* const pool_;
};

bool Runtime::Manages(const BfcAllocator* allocator) {
  return EverActive() && PoolOf(allocator) != nullptr;
}

// What is free, no more of it than is asked for unless there is plenty.
void* Runtime::Take(Pool* pool, size_t bytes, uint64_t freed_before, bool last_resort) {
  if (bytes < kSmallestMovable) {
    const auto small = [&] {
      return BfcAccess::AllocateSmall(pool->allocator, pool->slabs, bytes, freed_before);
    };
    void* ptr = small();
    if (ptr != nullptr) return ptr;
    ::lms::SlabRequest slab;
    slab.over_limit = OverLimit(pool, ::lms::kLeastSlab) > 0;
    slab.under_pressure = pool->admission.under_pressure();
    slab.evicting = Reclaiming();
    slab.last_resort = last_resort;
    if (::lms::place_of_slab(slab) == ::lms::SlabPlace::kNowhere) return nullptr;
    return BfcAccess::AddSlab(pool->allocator, &pool->slabs, ::lms::kLeastSlab) ? small() : nullptr;
  }
  void* ptr = BfcAccess::AllocateOnce(pool->allocator, bytes, freed_before);
  if (ptr != nullptr && pool->admission.cuts_blocks()) {
    BfcAccess::Trim(pool->allocator, ptr, BfcAccess::RoundedBytes(bytes));
  }
  return ptr;
}

void* Runtime::Allocate(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) {
  Pool* pool = PoolOf(allocator);
  if (!Active()) {
    void* ptr = BfcAccess::AllocateOnce(allocator, bytes, freed_before);
    NotePeaks(pool);
    return ptr;
  }
  // No need for the engine's lock as long as there is room.
  void* ptr = limit_ == 0 ? Take(pool, bytes, freed_before, /*last_resort=*/false) : nullptr;
  if (ptr == nullptr) ptr = Allocate(pool, bytes, freed_before);
  if (ptr != nullptr) {
    OpFrame::CountTaken(pool, bytes);
    NotePeaks(pool);
  } else {
    OpFrame::NoteShortage(pool, bytes);
  }
  return ptr;
}

void* Runtime::Allocate(Pool* pool, size_t bytes, uint64_t freed_before) {
  EngineLock lock(engine_.mutex());
  const bool small = bytes < kSmallestMovable;
  const size_t rounded = BfcAccess::RoundedBytes(bytes);
  if (OverLimit(pool, rounded) == 0) {
    void* ptr = Take(pool, bytes, freed_before, /*last_resort=*/false);
    if (ptr != nullptr) return ptr;
  }
  if (!Active()) return nullptr;
  if (enabling_ && backend_.on_host() == 0) return nullptr;  // ops without pins may still run
  pool->admission.set_under_pressure();
  BfcAccess::ReleaseSlabs(pool->allocator, &pool->slabs);
  if (small) GrowSlabs(pool);
  Request request(this, pool, bytes, freed_before);
  ::lms::RoomRequest room;
  room.device = pool->index;
  room.bytes = small ? ::lms::kLeastSlab : rounded;
  const ::lms::Route route = ::lms::make_room(engine_, request, room);
  const bool all = route == ::lms::Route::kEvictAll || route == ::lms::Route::kNone;
  if (route != ::lms::Route::kFreeBlock) ++(all ? pool->full_reclaims : pool->single_reclaims);
  if (route == ::lms::Route::kNone) {
    pool->shortage = true;
    if (shortages_logged_ < kMostShortagesLogged) {
      ++shortages_logged_;
      LOG(WARNING) << Shortage(pool, bytes);
    }
  }
  return request.ptr();
}

int64_t Runtime::ReclaimAll() {
  EngineLock lock(engine_.mutex());
  int64_t bytes = 0;
  for (int i = 0; Reclaiming() && i < pool_count_; ++i) {
    bytes += engine_.evict_all(i, /*everything=*/true);
  }
  return bytes;
}

std::string Runtime::Shortage(Pool* pool, size_t bytes) {
  const auto census = engine_.census(pool->index);
  const auto stats = engine_.stats(pool->index);
  const auto numbers = BfcAccess::Stats(pool->allocator);
  const auto host = host_.stats();
  std::ostringstream out;
  out << "Large Model Support could not make room for " << Mib(bytes) << " on " << pool->name
      << " because of the " << Mib(numbers.in_use) << " in use " << Mib(census.pinned_bytes)
      << " are needed by running operations (the largest is " << Mib(census.largest_pinned) << "), "
      << Mib(census.exposed_bytes) << " were handed out, " << Mib(census.excluded_bytes)
      << " are excluded and " << Mib(census.idle_bytes + census.small_bytes)
      << " are idle; limits: device " << Mib(limit_ != 0 ? limit_.load() : numbers.limit)
      << ", host " << (host.limit == 0 ? std::string("none") : Mib(host.limit)) << " ("
      << Mib(host.used) << " in use); ";
  if (stats.host_refused > 0 && host.limit != 0) {
    out << "the host limit is too low: raise TF_GPU_HOST_MEM_LIMIT_IN_MB, or host_limit of "
           "tf.config.experimental.set_lms_options";
  } else {
    out << "all operands of one operation must fit: use smaller inputs, or fewer operations at a "
           "time (inter_op_parallelism_threads)";
  }
  return out.str();
}

// ---- buffers

MovableBuffer* Runtime::Manageable(const Tensor& tensor) {
  if (!DataTypeCanUseMemcpy(tensor.dtype())) return nullptr;
  MovableBuffer* buffer = MovableBuffer::Of(tensor);
  if (buffer == nullptr || buffer->size() < kSmallestMovable) return nullptr;
  return buffer->tracked() || PoolOf(buffer->allocator()) != nullptr ? buffer : nullptr;
}

bool Runtime::IsOnly(const Tensor& tensor) {
  TensorBuffer* buffer = const_cast<TensorBuffer*>(DMAHelper::buffer(&tensor));
  return buffer->RefCountIsOne() && buffer->root_buffer()->RefCountIsOne();
}

void Runtime::Track(MovableBuffer* buffer) {
  if (buffer->tracked() || buffer->data() == nullptr) return;
  buffer->pool_ = PoolOf(buffer->allocator());
  buffer->tracked_.store(true, std::memory_order_release);
  tracked_.insert(buffer);
  const ::lms::Stream stream = StreamOf(buffer);
  engine_.note(nullptr, buffer, stream);
  const auto found = excluded_.find(buffer->data());
  if (found == excluded_.end()) return;
  // Another tensor may have had the address when it was excluded.
  const bool excluded = found->second == buffer->allocator()->AllocationId(buffer->data());
  excluded_.erase(found);
  if (excluded) engine_.set_excluded(buffer, true, stream);
}

bool Runtime::TrackIfAlone(const Tensor& tensor, MovableBuffer* buffer) {
  if (buffer->tracked()) return true;
  const bool whole = DMAHelper::buffer(&tensor) == buffer;  // not a part of it
  if (!whole || !IsOnly(tensor)) return false;
  Track(buffer);
  return true;
}

void Runtime::Forget(MovableBuffer* buffer) {
  {
    EngineLock lock(engine_.mutex());
    engine_.forget(buffer);
    tracked_.erase(buffer);
    backend_.Discard(buffer);
    buffer->tracked_.store(false);
  }
  if (!enabled_ && backend_.on_host() == 0) BecomeInactive();
}

void Runtime::ExposeUnlessPinned(MovableBuffer* buffer) {
  EngineLock lock(engine_.mutex());
  if (!engine_.pinned(buffer)) Expose(buffer);
}

void Runtime::Expose(MovableBuffer* buffer) {
  EngineLock lock(engine_.mutex());
  if (!buffer->tracked()) return;
  try {
    engine_.expose(buffer, StreamOf(buffer));
  } catch (const OutOfMemory& error) {
    // Host memory will do, for as long as the pointer is out: the device can address it too.
    LOG(WARNING) << error.what();
    backend_.Disarm(buffer);
    buffer->stays_out_ = true;
  }
}

void Runtime::Unexpose(MovableBuffer* buffer) {
  buffer->stays_out_ = false;
  engine_.unexpose(buffer);
}

bool Runtime::Exclude(const void* data, bool on) {
  EngineLock lock(engine_.mutex());
  for (MovableBuffer* buffer : tracked_) {
    const char* begin = static_cast<const char*>(buffer->data());
    if (data < begin || data >= begin + buffer->size()) continue;
    try {
      engine_.set_excluded(buffer, on, StreamOf(buffer));
    } catch (const OutOfMemory& error) {
      LOG(ERROR) << error.what();
      return false;
    }
    return true;
  }
  for (int i = 0; i < pool_count_; ++i) {
    const auto block = BfcAccess::BlockAt(pools_[i]->allocator, data);
    if (block.begin == nullptr) continue;
    if (on) {
      excluded_[block.begin] = block.allocation;
    } else {
      excluded_.erase(block.begin);
    }
  }
  return true;
}

void Runtime::AddView(MovableBuffer* root, TensorBuffer* view) {
  if (root == nullptr) return;
  EngineLock lock(engine_.mutex());
  root->views_.push_back(view);
}

void Runtime::RemoveView(MovableBuffer* root, TensorBuffer* view) {
  if (root == nullptr) return;
  EngineLock lock(engine_.mutex());
  auto& views = root->views_;
  views.erase(std::remove(views.begin(), views.end(), view), views.end());
}

// ---- ops

void Runtime::OnLeave() {
  for (int i = 0; i < pool_count_; ++i) {
    if (pools_[i]->shortage.load(std::memory_order_relaxed) &&
        pools_[i]->shortage.exchange(false)) {
      BfcAccess::Notify(pools_[i]->allocator);
    }
  }
  if (!enabled_.load(std::memory_order_relaxed) && backend_.on_host() == 0) BecomeInactive();
}

bool Runtime::MakeHole(Pool* pool, int64_t bytes) {
  if (!Reclaiming()) return true;
  EngineLock lock(engine_.mutex());
  const size_t rounded = BfcAccess::RoundedBytes(static_cast<size_t>(bytes));
  Hole hole(this, pool, rounded);
  ::lms::RoomRequest room;
  room.device = pool->index;
  room.bytes = rounded;
  room.everything = false;
  if (::lms::make_room(engine_, hole, room) != ::lms::Route::kNone) return true;
  room.any_size = true;
  return ::lms::make_room(engine_, hole, room) != ::lms::Route::kNone;
}

int64_t Pool::limit() const {
  const size_t limit = Runtime::Get().limit();
  return limit != 0 ? static_cast<int64_t>(limit) : bytes_;
}

bool Pool::has(int64_t bytes) const {
  return BfcAccess::CanTake(allocator, BfcAccess::RoundedBytes(static_cast<size_t>(bytes)));
}

bool Pool::make(int64_t bytes) { return Runtime::Get().MakeHole(this, bytes); }

void Pool::evict_idle() { Runtime::Get().EvictIdle(this); }

void* Pool::set_aside(int64_t bytes) {
  const size_t wanted = static_cast<size_t>(bytes);
  void* hole = BfcAccess::AllocateOnce(allocator, wanted, /*freed_before=*/0);
  if (hole != nullptr) BfcAccess::Trim(allocator, hole, BfcAccess::RoundedBytes(wanted));
  return hole;
}

void Pool::give_back(void* hole) { allocator->DeallocateRaw(hole); }

void Runtime::EvictIdle(Pool* pool) {
  if (!Reclaiming()) return;
  EngineLock lock(engine_.mutex());
  bool moved = false;
  const auto refused = engine_.stats(pool->index).host_refused;
  for (const auto& candidate : engine_.candidates(pool->index, /*everything=*/true)) {
    moved |= engine_.evict(candidate.key);
    if (engine_.stats(pool->index).host_refused != refused) break;
  }
  if (moved) ++pool->full_reclaims;
}

// ---- statistics

void Runtime::NotePeaks(Pool* pool) {
  int64_t candidates = 0;
  BfcAccess::Numbers numbers;
  do {  // both at one time
    candidates = pool->candidate_bytes;
    numbers = BfcAccess::Stats(pool->allocator);
  } while (candidates != pool->candidate_bytes);
  // There was no candidate before the first enable, and nobody looked.
  const int64_t active = EverActive() ? numbers.in_use - candidates : numbers.peak_in_use;
  Raise(&pool->peak_active_bytes, active);
  Raise(&pool->peak_reserved_bytes, numbers.reserved);
}

std::string Runtime::Statistics() {
  std::ostringstream out;
  out << "{\"enabled\": " << (enabled_ ? "true" : "false")
      << ", \"devices_made\": " << (seen_device_ ? "true" : "false") << ", \"devices\": [";
  for (int i = 0; i < pool_count_; ++i) {
    Pool* pool = pools_[i];
    EngineLock lock(engine_.mutex());
    NotePeaks(pool);
    const auto numbers = BfcAccess::Stats(pool->allocator);
    const auto stats = engine_.stats(i);
    const auto census = engine_.census(i);
    const int64_t inactive = pool->candidate_bytes;
    const int64_t limit = limit_ != 0 ? static_cast<int64_t>(limit_) : numbers.limit;
    const std::pair<const char*, int64_t> fields[] = {
        {"num_allocs", numbers.allocs},
        {"bytes_in_use", numbers.in_use},
        {"peak_bytes_in_use", numbers.peak_in_use},
        {"largest_alloc_size", numbers.largest},
        {"bytes_limit", limit},
        {"bytes_reserved", numbers.reserved},
        {"peak_bytes_reserved", pool->peak_reserved_bytes},
        {"bytes_reservable_limit", numbers.limit},
        {"bytes_inactive", inactive},
        {"bytes_active", numbers.in_use - inactive},
        {"peak_bytes_active", pool->peak_active_bytes},
        {"bytes_reclaimed", stats.reclaimed_bytes},
        {"current_bytes_reclaimed", pool->on_host_bytes},
        {"peak_bytes_reclaimed", pool->peak_on_host_bytes},
        {"num_single_reclaims", pool->single_reclaims},
        {"num_full_reclaims", pool->full_reclaims},
        {"paged_out", stats.paged_out},
        {"paged_out_bytes", stats.paged_out_bytes},
        {"paged_in", stats.paged_in},
        {"paged_in_bytes", stats.paged_in_bytes},
        {"clean_evictions", stats.clean_evictions},
        {"clean_bytes", stats.clean_bytes},
        {"handed_out_bytes", static_cast<int64_t>(census.exposed_bytes)},
        {"excluded_bytes", static_cast<int64_t>(census.excluded_bytes)},
        {"pinned_bytes", static_cast<int64_t>(census.pinned_bytes)},
        {"tracked", static_cast<int64_t>(census.tracked)},
        {"host_refused", stats.host_refused}};
    out << (i == 0 ? "" : ", ") << "{\"name\": \"" << pool->name << "\"";
    for (const auto& field : fields) out << ", \"" << field.first << "\": " << field.second;
    out << "}";
  }
  auto nodes = host_.stats().nodes;
  nodes[0];  // there is always one
  out << "], \"host\": {";
  for (auto node = nodes.begin(); node != nodes.end(); ++node) {
    out << (node == nodes.begin() ? "" : ", ") << "\"" << node->first
        << "\": {\"gpu_host_bytes_in_use\": " << node->second.used
        << ", \"gpu_host_peak_bytes_in_use\": " << node->second.used_peak << "}";
  }
  out << "}}";
  return out.str();
}

void Runtime::ResetPeaks() {
  EngineLock lock(engine_.mutex());
  host_.reset_peaks();
  for (int i = 0; i < pool_count_; ++i) {
    engine_.reset_peaks(i);
    pools_[i]->peak_on_host_bytes = pools_[i]->on_host_bytes;
    pools_[i]->peak_active_bytes = 0;
    pools_[i]->peak_reserved_bytes = 0;
    pools_[i]->allocator->ClearStats();
    NotePeaks(pools_[i]);
  }
}

}  // namespace lms
}  // namespace tensorflow
