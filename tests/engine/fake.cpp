// SPDX-License-Identifier: Apache-2.0
#include "fake.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace fake {

std::uint64_t Random::next() {  // splitmix64
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

namespace {
unsigned char byte_of(std::uint64_t tag, std::size_t i) {
  return static_cast<unsigned char>((tag >> (8 * (i % 8))) ^ (i / 8));
}
}  // namespace

void fill(void* ptr, std::size_t bytes, std::uint64_t tag) {
  auto* to = static_cast<unsigned char*>(ptr);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = byte_of(tag, i);
}

bool holds(const void* ptr, std::size_t bytes, std::uint64_t tag) {
  const auto* from = static_cast<const unsigned char*>(ptr);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (from[i] != byte_of(tag, i)) return false;
  }
  return true;
}

// ---- the device

void Event::wait() {
  ++device_.host_waits_;
  while (!done()) device_.run(1);
}

void Device::push_(lms::Stream stream, Command command) {
  const auto index = reinterpret_cast<std::uintptr_t>(stream) - 1;
  std::lock_guard<std::mutex> lock(mutex_);
  queues_.at(index).push_back(std::move(command));
}

void Device::launch(lms::Stream stream, std::function<void()> work) {
  push_(stream, {std::move(work), nullptr, nullptr});
}

EventPtr Device::record(lms::Stream stream) {
  const auto index = reinterpret_cast<std::uintptr_t>(stream) - 1;
  std::lock_guard<std::mutex> lock(mutex_);
  auto event = std::make_shared<Event>(*this, stream, ++recorded_.at(index));
  queues_[index].push_back({nullptr, event, nullptr});
  return event;
}

void Device::wait(lms::Stream stream, const lms::FencePtr& event) {
  push_(stream, {nullptr, nullptr, std::static_pointer_cast<Event>(event)});
}

void Device::order(lms::Stream after, lms::Stream before) {
  if (after != before) wait(after, record(before));
}

bool Device::step_() {
  Command command;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (random_.one_in(16)) lagging_ = random_.below(queues_.size());
    const std::size_t count = queues_.size(), first = random_.below(count);
    for (std::size_t i = 0; i <= count; ++i) {
      const std::size_t index = i < count ? (first + i) % count : lagging_;
      if (i < count && index == lagging_) continue;
      auto& queue = queues_[index];
      if (queue.empty() || (queue.front().wait && !queue.front().wait->done())) continue;
      command = std::move(queue.front());
      queue.pop_front();
      // Under the lock: commands of two streams never overlap in time.
      if (command.work) command.work();
      if (command.record) command.record->done_ = true;
      return true;
    }
  }
  return false;
}

std::size_t Device::run(std::size_t count) {
  std::size_t ran = 0;
  while (ran < count && step_()) ++ran;
  return ran;
}

void Device::drain() {
  while (step_()) {
  }
}

void Device::set_seed(std::uint64_t seed) {
  std::lock_guard<std::mutex> lock(mutex_);
  random_ = Random(seed);
  lagging_ = random_.below(queues_.size());
}

void Device::fail(const std::string& what) {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failure_.empty()) failure_ = what;
}

std::string Device::failure() {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

// ---- memory

constexpr std::size_t Arena::kAlignment;

Arena::Arena(std::size_t bytes) : memory_(new unsigned char[bytes + kAlignment]) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  base_ = memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
  spans_[0] = {bytes, true, {}};
}

void* Arena::allocate(std::size_t bytes) {
  const std::size_t want = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (auto& span : spans_) {
    if (!span.second.free || span.second.bytes < want) continue;
    const std::size_t rest = span.second.bytes - want;
    const lms::Owed taken = span.second.owed.split(want);
    if (rest > 0) spans_[span.first + want] = {rest, true, span.second.owed};
    span.second = {want, false, taken.whole()};
    return base_ + span.first;
  }
  return nullptr;
}

void Arena::free(void* ptr) {
  auto span = spans_.find(static_cast<std::size_t>(static_cast<unsigned char*>(ptr) - base_));
  if (span == spans_.end() || span->second.free) throw std::logic_error("freed what is not in use");
  span->second.free = true;
  const auto next = std::next(span);
  if (next != spans_.end() && next->second.free) {
    span->second.owed.append(next->second.owed, span->second.bytes);
    span->second.bytes += next->second.bytes;
    spans_.erase(next);
  }
  if (span == spans_.begin()) return;
  const auto previous = std::prev(span);
  if (previous->second.free) {
    previous->second.owed.append(span->second.owed, previous->second.bytes);
    previous->second.bytes += span->second.bytes;
    spans_.erase(span);
  }
}

lms::Owed& Arena::owed(const void* ptr) {
  const auto offset = static_cast<const unsigned char*>(ptr) - base_;
  Span& span = spans_.at(static_cast<std::size_t>(offset));
  if (span.free) throw std::logic_error("asked for what is not in use");
  return span.owed;
}

bool Arena::contains(const void* ptr) const {
  const auto& last = *spans_.rbegin();
  return ptr >= base_ && ptr < base_ + last.first + last.second.bytes;
}

bool Arena::empty() const { return spans_.size() == 1 && spans_.begin()->second.free; }

std::size_t Arena::bytes() const {
  const auto& last = *spans_.rbegin();
  return last.first + last.second.bytes;
}

std::vector<Arena::Block> Arena::blocks() const {
  std::vector<Block> blocks;
  for (const auto& span : spans_) {
    blocks.push_back({base_ + span.first, span.second.bytes, span.second.free});
  }
  return blocks;
}

lms::HostMemory::Space HostMemory::reserve() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (no_space) return {};
  std::unique_ptr<unsigned char[]> bytes(new unsigned char[space_]);
  char* begin = reinterpret_cast<char*>(bytes.get());
  spaces_[begin] = std::move(bytes);
  return {begin, space_};
}

void HostMemory::unreserve(Space space) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spaces_.erase(space.begin) == 0) throw std::logic_error("no such address space");
}

bool HostMemory::commit(char* segment, std::size_t bytes, int node) {
  const auto call = on_the_way;  // which may take itself away
  if (call) call();
  const std::lock_guard<std::mutex> lock(mutex_);
  requests.push_back(bytes);
  if (refusals > 0) {
    --refusals;
    return false;
  }
  if (used > capacity || bytes > capacity - used) return false;
  const auto next = segments_.lower_bound(segment);
  const bool overlaps = (next != segments_.end() && next->first < segment + bytes) ||
                        (next != segments_.begin() &&
                         std::prev(next)->first + std::prev(next)->second.bytes > segment);
  if (overlaps) throw std::logic_error("there is memory already");
  used += bytes;
  const auto full = full_nodes.find(node);
  segments_[segment] = {bytes, full == full_nodes.end() ? node : full->second};
  std::memset(segment, 0xcd, bytes);
  return true;
}

void HostMemory::decommit(char* segment, std::size_t bytes) {
  const auto call = on_the_way;  // which may take itself away
  if (call) call();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end() || found->second.bytes != bytes) {
    throw std::logic_error("gave back what there was not");
  }
  std::memset(segment, 0xdd, bytes);
  used -= bytes;
  segments_.erase(found);
}

int HostMemory::node_of(const char* segment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return segments_.at(const_cast<char*>(segment)).node;
}

// ---- storages

StorageRef::StorageRef(const StorageRef& other) : storage_(other.storage_) {
  if (storage_ != nullptr) ++storage_->strong;
}

namespace {
void drop_weak(Storage* storage) {
  if (--storage->weak == 0) delete storage;
}
}  // namespace

StorageRef::~StorageRef() {
  if (storage_ == nullptr || --storage_->strong > 0) return;
  storage_->owner->dispose_(storage_);
  drop_weak(storage_);
}

namespace {
struct Acquired {
  std::vector<StorageRef> storages;
  int depth = 0;
};
Acquired& acquired() {
  thread_local Acquired mine;
  return mine;
}
}  // namespace

Scope::Scope() { ++acquired().depth; }

Scope::~Scope() {
  if (--acquired().depth > 0) return;
  std::vector<StorageRef> storages;
  storages.swap(acquired().storages);
}

// ---- the backend

Backend::Backend(Device& device, std::size_t streams, std::size_t pool_bytes,
                 std::size_t segment_bytes)
    : device_(device), streams_(streams), pools_(streams), segment_bytes_(segment_bytes) {
  if (segment_bytes > 0) {
    device_left_ = streams * pool_bytes;
  } else {
    for (Pool& pool : pools_) pool.emplace_back(pool_bytes);
  }
}

void Backend::attach(lms::Engine* engine, lms::HostPool* host) {
  engine_ = engine;
  host_ = host;
}

Backend::Pool& Backend::pool_(lms::Stream home) {
  return pools_.at(reinterpret_cast<std::uintptr_t>(home) - 1);
}

lms::Marks Backend::owed_to_others(const lms::Extent& at) {
  return at.place == lms::Place::kDevice && at.ptr != nullptr ? ready_(at.ptr).others
                                                              : lms::Marks();
}

StorageRef Backend::create(std::size_t bytes, lms::Stream home, int device) {
  void* ptr = allocate_(bytes, home);
  StorageRef storage(new Storage);
  storage->owner = this;
  storage->place = lms::Place::kDevice;
  storage->ptr = ptr;
  storage->bytes = bytes;
  storage->home = home;
  storage->device = device;
  return storage;
}

void* Backend::take_free_(std::size_t bytes, lms::Stream home, For user) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  for (Arena& segment : pool_(home)) {
    void* ptr = segment.allocate(bytes);
    if (ptr == nullptr) continue;
    if (user == For::kOp) {
      lms::Owed& owed = segment.owed(ptr);
      for (const lms::MarkPtr& copy : owed.whole().copies()) device_.wait(home, copy);
      owed.take();
      // The new owner may write at once, as far as its own stream is concerned.
      device_.launch(home, [ptr, bytes] { std::memset(ptr, 0xee, bytes); });
    }
    return ptr;
  }
  return nullptr;
}

namespace {
std::size_t segment_of(std::size_t bytes, std::size_t usual) {
  const std::size_t need = (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
  return std::max(need, usual);
}
}  // namespace

bool Backend::grow_(std::size_t bytes, std::size_t usual, lms::Stream home) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  const std::size_t size = segment_of(bytes, usual);
  if (size > device_left_) return false;
  device_left_ -= size;
  pool_(home).emplace_back(size);
  return true;
}

class Backend::Lists final : public lms::BlockLists {
 public:
  Lists(Backend& backend, std::size_t bytes, lms::Stream home, For user)
      : backend_(backend),
        bytes_(bytes),
        home_(home),
        user_(user),
        usual_(backend.segment_bytes_) {}

  void* taken() const { return taken_; }

  bool take_free_block() override {
    if (over_limit() == 0) taken_ = backend_.take_free_(bytes_, home_, user_);
    return taken_ != nullptr;
  }

  bool take_new_segment() override {
    return backend_.grow_(bytes_, usual_, home_) && take_free_block();
  }

  bool shrink_segment() override {
    const bool larger = segment_of(bytes_, usual_) > segment_of(bytes_, 0);
    usual_ = 0;
    return larger;
  }

  std::vector<lms::Segment> segments(const lms::IdleMap& idle) override {
    std::lock_guard<std::mutex> lock(backend_.allocator_mutex_);
    listed_.clear();
    std::vector<lms::Segment> result;
    for (Pool& pool : backend_.pools_) {
      for (const Arena& arena : pool) {
        lms::Segment segment;
        segment.can_hold = &pool == &backend_.pool_(home_);
        segment.releasable = backend_.segment_bytes_ > 0;
        for (const Arena::Block& block : arena.blocks()) {
          segment.blocks.push_back(block.free ? lms::free_block(block.bytes)
                                              : lms::used_block(block.ptr, block.bytes, idle));
        }
        result.push_back(std::move(segment));
        listed_.push_back(arena.blocks().front().ptr);
      }
    }
    return result;
  }

  void release_segments(const std::vector<std::size_t>& indices) override {
    std::vector<const void*> chosen;
    for (const std::size_t index : indices) chosen.push_back(listed_.at(index));
    release_if_([&](const Arena& segment) {
      return std::any_of(chosen.begin(), chosen.end(),
                         [&](const void* ptr) { return segment.contains(ptr); });
    });
  }

  void settle_and_release() override {
    release_if_([](const Arena&) { return true; });
  }

  std::size_t shortfall() override {
    if (backend_.segment_bytes_ == 0) return 0;
    std::lock_guard<std::mutex> lock(backend_.allocator_mutex_);
    const std::size_t size = segment_of(bytes_, usual_), left = backend_.device_left_;
    return size > left ? size - left : 1;
  }

  std::size_t over_limit() override {
    const std::size_t wanted = backend_.in_use() + segment_of(bytes_, 0), limit = backend_.limit;
    return limit > 0 && wanted > limit ? wanted - limit : 0;
  }

 private:
  template <class Chosen>
  void release_if_(const Chosen& chosen) {
    if (backend_.segment_bytes_ == 0) return;
    backend_.device_.drain();  // as a device does before it takes memory back
    std::lock_guard<std::mutex> lock(backend_.allocator_mutex_);
    for (Pool& pool : backend_.pools_) {
      for (auto segment = pool.begin(); segment != pool.end();) {
        const bool goes = segment->empty() && chosen(*segment);
        if (goes) backend_.device_left_ += segment->bytes();
        segment = goes ? pool.erase(segment) : std::next(segment);
      }
    }
  }

  Backend& backend_;
  const std::size_t bytes_;
  const lms::Stream home_;
  const For user_;
  std::size_t usual_;  // of a new segment
  void* taken_ = nullptr;
  std::vector<const void*> listed_;  // a block of each of the last `segments()`
};

// What needs no reclaim; null when there is nothing.
void* Backend::allocate_free_(std::size_t bytes, lms::Stream home, For user) {
  if (limit > 0) return nullptr;
  if (void* ptr = take_free_(bytes, home, user)) return ptr;
  while (grow_(bytes, segment_bytes_, home)) {
    if (void* ptr = take_free_(bytes, home, user)) return ptr;  // unless another thread took it
  }
  return nullptr;
}

void* Backend::allocate_(std::size_t bytes, lms::Stream home, For user) {
  if (void* ptr = allocate_free_(bytes, home, user)) return ptr;
  Scope scope;
  lms::RoomRequest request;
  request.bytes = bytes;
  Lists lists(*this, bytes, home, user);
  make_room_(request, &lists);
  if (lists.taken() == nullptr) throw OutOfMemory();
  return lists.taken();
}

void* Backend::make_room(lms::RoomRequest request, lms::Stream home, lms::Route* route) {
  Lists lists(*this, request.bytes, home, For::kOp);
  *route = make_room_(request, &lists);
  return lists.taken();
}

lms::Route Backend::make_room_(lms::RoomRequest request, Lists* lists) {
  request.bytes = segment_of(request.bytes, 0);
  const lms::Route route = lms::make_room(*engine_, *lists, request);
  routes.count(route);
  return route;
}

std::size_t Backend::in_use() {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  std::size_t bytes = 0;
  for (const Pool& pool : pools_) {
    for (const Arena& segment : pool) {
      for (const Arena::Block& block : segment.blocks()) bytes += block.free ? 0 : block.bytes;
    }
  }
  return bytes;
}

std::size_t Backend::segments() {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  std::size_t count = 0;
  for (const Pool& pool : pools_) count += pool.size();
  return count;
}

Arena& Backend::segment_of_(const void* ptr, lms::Stream* home) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    *home = stream(i);
    for (Arena& segment : pools_[i]) {
      if (segment.contains(ptr)) return segment;
    }
  }
  throw std::logic_error("used what is no block");
}

// By the program: after all that it has queued there.
void Backend::free_block_(void* ptr) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  lms::Stream home;
  Arena& segment = segment_of_(ptr, &home);
  lms::Ready ready = segment.owed(ptr).whole();
  ready.home = device_.record(home);
  segment.owed(ptr) = ready;
  segment.free(ptr);
}

void Backend::free_settled_(void* ptr, const lms::Ready& ready) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  lms::Stream home;
  Arena& segment = segment_of_(ptr, &home);
  segment.owed(ptr) = ready;
  segment.free(ptr);
}

lms::Ready Backend::ready_(const void* ptr) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  lms::Stream home;
  return segment_of_(ptr, &home).owed(ptr).whole();
}

void Backend::set_ready_(const void* ptr, const lms::Ready& ready) {
  std::lock_guard<std::mutex> lock(allocator_mutex_);
  lms::Stream home;
  segment_of_(ptr, &home).owed(ptr) = ready;
}

void Backend::dispose_(Storage* storage) {
  if (storage->place == lms::Place::kDevice) {
    free_block_(storage->ptr);
  } else if (storage->place == lms::Place::kHost) {
    // Work that got the host pointer past the op boundary may still be queued on its home stream.
    for (const lms::MarkPtr& mark : storage->written) device_.wait(storage->home, mark);
    host_->free(storage->range, device_.record(storage->home));
  }
  storage->place = lms::Place::kForeign;
  storage->ptr = nullptr;
  storage->written = lms::Marks();
}

void Backend::replace(Storage* storage, std::size_t bytes,
                      const std::function<void(const void* from, void* to)>& work) {
  void* to = allocate_(bytes, storage->home);  // may move the old bytes
  const void* from = storage->ptr;
  device_.launch(storage->home, [work, from, to] { work(from, to); });
  dispose_(storage);
  storage->place = lms::Place::kDevice;
  storage->ptr = to;
  storage->bytes = bytes;
  storage->intact = false;
}

void Backend::exchange(Storage* a, Storage* b) {
  std::swap(a->place, b->place);
  std::swap(a->ptr, b->ptr);
  std::swap(a->bytes, b->bytes);
  std::swap(a->home, b->home);
  std::swap(a->range, b->range);
  std::swap(a->written, b->written);
  a->intact = b->intact = false;
}

void* Backend::write_pointer(Storage* storage) {
  storage->intact = false;
  return storage->ptr;
}

void Backend::retain(lms::Key key) {
  ++static_cast<Storage*>(key)->weak;
  const std::lock_guard<std::mutex> lock(retained_mutex_);
  if (retained.count(key) > 0 && !static_cast<Storage*>(key)->renumbered) {
    device_.fail("retained twice");
  }
  retained.insert(key);
}

void Backend::release(lms::Key key) {
  {
    const std::lock_guard<std::mutex> lock(retained_mutex_);
    const auto one = retained.find(key);
    if (one == retained.end()) throw std::logic_error("released what was not retained");
    retained.erase(one);
  }
  drop_weak(static_cast<Storage*>(key));
}

bool Backend::acquire(lms::Key key) {
  ++looks;
  auto* storage = static_cast<Storage*>(key);
  if (storage->out_of_reach) return false;
  int strong = storage->strong.load();
  while (strong > 0 && !storage->strong.compare_exchange_weak(strong, strong + 1)) {
  }
  if (strong == 0) return false;
  acquired().storages.emplace_back(storage);
  return true;
}

bool Backend::dead(lms::Key key) { return static_cast<Storage*>(key)->strong == 0; }

lms::Extent Backend::locate(lms::Key key) {
  const auto* storage = static_cast<Storage*>(key);
  return {storage->place, storage->ptr, storage->bytes, storage->device};
}

std::size_t Backend::bytes_of(lms::Key key) { return static_cast<Storage*>(key)->bytes; }

void Backend::guard(lms::Key key) {
  auto* storage = static_cast<Storage*>(key);
  if (storage->place != lms::Place::kDevice) return;
  storage->guarded = storage->intact = true;
}

bool Backend::unguard(lms::Key key) {
  auto* storage = static_cast<Storage*>(key);
  const bool intact = storage->guarded && storage->intact && !blind;
  storage->guarded = storage->intact = false;
  return intact;
}

bool Backend::movable(const lms::Extent&, const lms::StreamSet&) { return !immovable; }

void Backend::page_out(lms::Key key, const lms::Extent& from, lms::HostRange host, bool copy,
                       const lms::StreamSet& used) {
  auto* storage = static_cast<Storage*>(key);
  if (fail_page_out > 0 && --fail_page_out == 0) throw BackendError();
  if (storage->held > 0) device_.fail("evicted while the program relies on its pointer");
  if (storage->place != lms::Place::kDevice || storage->ptr != from.ptr ||
      storage->bytes != from.bytes || host.bytes < from.bytes) {
    device_.fail("page_out is told a wrong extent");
  }
  if (storage->guarded) device_.fail("evicted with the write barrier armed");
  const lms::Stream home = storage->home;
  const std::size_t bytes = from.bytes;
  void* source = from.ptr;
  knew_last_uses = std::all_of(used.begin(), used.end(),
                               [](const lms::StreamUse& use) { return use.last != nullptr; });
  const bool known = !unseen && knew_last_uses;
  lms::StreamSet users;
  bool at_home = false;
  for (const lms::StreamUse& use : used) {
    users.add({use.stream, known ? use.last : nullptr});
    at_home = at_home || use.stream == home;
  }
  if (!at_home) users.add({home, nullptr});
  if (!known) users.add({current, nullptr});
  lms::Ready ready;
  bool waits = copy;
  const lms::Stream out = next_out_();
  for (const lms::StreamUse& use : users) {
    lms::MarkPtr last = use.last;
    if (!last) last = device_.record(use.stream);
    if (!copy && use.stream == home) {
      ready.home = last;
      ready.others.add(last);
    } else {
      waits = true;
      device_.wait(out, last);
    }
  }
  lms::Marks written = ready.out = ready_(source).out;  // if it was paged out ahead
  if (copy) {
    device_.launch(out, [host, source, bytes] { std::memcpy(host.ptr, source, bytes); });
    ++counts.outs;
    counts.out_bytes += static_cast<std::int64_t>(bytes);
  } else {
    ++counts.clean_outs;
    counts.clean_bytes += static_cast<std::int64_t>(bytes);
  }
  if (waits) {
    const EventPtr over = device_.record(out);
    ready.out.add(over);
    if (copy) written = lms::Marks(over);
    if (copy && unseen) {
      device_.wait(home, over);
      device_.wait(current, over);
    }
  }
  storage->place = lms::Place::kHost;
  storage->ptr = host.ptr;
  storage->range = host;
  storage->written = std::move(written);
  free_settled_(source, ready);
  if (journaling) journal.push_back(copy ? "out" : "clean");
}

lms::FencePtr Backend::page_out_ahead(lms::Key key, const lms::Extent& from, lms::HostRange host,
                                      const lms::StreamSet& used) {
  auto* storage = static_cast<Storage*>(key);
  if (unseen) return nullptr;
  if (fail_page_out > 0 && --fail_page_out == 0) throw BackendError();
  if (storage->place != lms::Place::kDevice || storage->ptr != from.ptr ||
      storage->bytes != from.bytes || host.bytes < from.bytes) {
    device_.fail("page_out_ahead is told a wrong extent");
  }
  const lms::Stream out = next_out_();
  device_.order(out, storage->home);
  for (const lms::StreamUse& use : used) device_.order(out, use.stream);
  const std::size_t bytes = from.bytes;
  void* source = from.ptr;
  device_.launch(out, [host, source, bytes] { std::memcpy(host.ptr, source, bytes); });
  ++counts.outs;
  ++counts.ahead;
  counts.ahead_bytes += static_cast<std::int64_t>(bytes);
  counts.out_bytes += static_cast<std::int64_t>(bytes);
  lms::Ready ready = ready_(source);
  const EventPtr copied = device_.record(out);
  ready.out.add(copied);
  set_ready_(source, ready);
  if (journaling) journal.push_back("ahead");
  return copied;
}

lms::HostRange Backend::page_in(lms::Key key, bool copy, lms::Stream user, lms::Reclaim reclaim,
                                lms::FencePtr* arrival) {
  auto* storage = static_cast<Storage*>(key);
  if (storage->place != lms::Place::kHost) device_.fail("page_in of what is not on the host");
  if (fail_page_in > 0 && --fail_page_in == 0) throw OutOfMemory();
  const lms::Stream home = storage->home;
  void* ptr = reclaim == lms::Reclaim::kNone ? allocate_free_(storage->bytes, home, For::kPageIn)
                                             : allocate_(storage->bytes, home, For::kPageIn);
  if (ptr == nullptr) return {};
  const lms::Ready ready = ready_(ptr);
  const lms::HostRange range = storage->range;
  const std::size_t bytes = storage->bytes;
  const lms::Stream first = copy ? in() : user;
  if (ready.home) device_.wait(first, ready.home);
  for (const lms::MarkPtr& mark : ready.copies()) device_.wait(first, mark);
  for (const lms::MarkPtr& mark : storage->written) device_.wait(first, mark);
  if (unseen) {
    device_.order(first, home);
    device_.order(first, user);
  }
  if (copy) {
    device_.launch(in(), [ptr, range, bytes] { std::memcpy(ptr, range.ptr, bytes); });
    const EventPtr copied = device_.record(in());
    *arrival = copied;
    device_.wait(user, *arrival);
    if (unseen) device_.wait(home, *arrival);
    lms::Ready after;
    after.in.add(copied);
    set_ready_(ptr, after);
    ++counts.ins;
    counts.in_bytes += static_cast<std::int64_t>(bytes);
  } else {
    *arrival = device_.record(user);
    ++counts.overwrites;
    counts.overwrite_bytes += static_cast<std::int64_t>(bytes);
  }
  storage->place = lms::Place::kDevice;
  storage->ptr = ptr;
  storage->range = lms::HostRange();
  storage->written = lms::Marks();
  if (journaling) journal.push_back(copy ? "in" : "overwrite");
  return range;
}

void Backend::refill(lms::Key key, lms::HostRange host, lms::Stream user, lms::FencePtr* arrival) {
  auto* storage = static_cast<Storage*>(key);
  if (storage->place != lms::Place::kDevice) device_.fail("refill of what is not on the device");
  if (fail_page_in > 0 && --fail_page_in == 0) throw BackendError();
  void* ptr = storage->ptr;
  const std::size_t bytes = storage->bytes;
  device_.launch(user, [ptr, host, bytes] { std::memcpy(ptr, host.ptr, bytes); });
  *arrival = device_.record(user);
  device_.wait(storage->home, *arrival);
  --counts.overwrites;
  counts.overwrite_bytes -= static_cast<std::int64_t>(bytes);
  ++counts.ins;
  counts.in_bytes += static_cast<std::int64_t>(bytes);
  if (journaling) journal.push_back("refill");
}

void Backend::join(lms::Stream user, const lms::FencePtr& arrival) { device_.wait(user, arrival); }

void Backend::mark(int device, lms::Stream user, std::size_t, lms::MarkPtr* mark) {
  if (before_mark) before_mark(device);
  if (fail_mark > 0 && --fail_mark == 0) throw BackendError();
  *mark = moves ? device_.record(user) : nullptr;
}

}  // namespace fake
