// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.h"
#include "host_pool.h"
#include "ready.h"
#include "reclaim.h"
#include "types.h"

// A framework and a device for the engine to run on. Memory holds real bytes, and a stream is a
// queue whose commands run late and in any order that streams and events allow: an ordering edge
// that is missing shows as wrong bytes.
namespace fake {

// Same numbers everywhere, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// The bytes of a storage are told by a tag; different tags differ in nearly every byte.
void fill(void* ptr, std::size_t bytes, std::uint64_t tag);
bool holds(const void* ptr, std::size_t bytes, std::uint64_t tag);

struct OutOfMemory : std::runtime_error {
  OutOfMemory() : std::runtime_error("out of device memory") {}
};
struct BackendError : std::runtime_error {
  BackendError() : std::runtime_error("injected fault") {}
};

inline lms::Stream stream(std::size_t index) { return reinterpret_cast<void*>(index + 1); }

class Device;

class Event final : public lms::Mark {
 public:
  Event(Device& device, lms::Stream stream, std::uint64_t number)
      : device_(device), stream_(stream), number_(number) {}
  bool done() override { return done_.load(); }
  void wait() override;
  lms::Stream stream() const override { return stream_; }
  std::uint64_t number() const override { return number_; }

 private:
  friend class Device;
  Device& device_;
  const lms::Stream stream_;
  const std::uint64_t number_;  // among those recorded on its stream
  std::atomic<bool> done_{false};
};
using EventPtr = std::shared_ptr<Event>;

class Device {
 public:
  Device(std::uint64_t seed, std::size_t streams)
      : random_(seed), queues_(streams), recorded_(streams) {}

  void launch(lms::Stream stream, std::function<void()> work);
  EventPtr record(lms::Stream stream);
  void wait(lms::Stream stream, const lms::FencePtr& event);
  // Makes later work on `after` wait for all work queued so far on `before`.
  void order(lms::Stream after, lms::Stream before);

  // Runs up to `count` commands of randomly chosen streams. Returns how many.
  std::size_t run(std::size_t count);
  void drain();
  void set_seed(std::uint64_t seed);

  // Called by work that finds wrong bytes; the first message is kept.
  void fail(const std::string& what);
  std::string failure();
  std::size_t host_waits() const { return host_waits_.load(); }

 private:
  friend class Event;
  struct Command {
    std::function<void()> work;
    EventPtr record;
    EventPtr wait;
  };
  bool step_();
  void push_(lms::Stream stream, Command command);

  std::mutex mutex_;
  std::mutex failure_mutex_;
  Random random_;
  std::vector<std::deque<Command>> queues_;
  std::vector<std::uint64_t> recorded_;  // events, by stream
  std::size_t lagging_ = 0;              // this stream runs only when no other can, for a while
  std::string failure_;
  std::atomic<std::size_t> host_waits_{0};
};

// Real bytes cut into blocks, first fit. Neighbouring free blocks are merged, and each part owes
// what it owed.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;
  explicit Arena(std::size_t bytes);
  void* allocate(std::size_t bytes);  // nullptr when there is no room
  void free(void* ptr);
  lms::Owed& owed(const void* ptr);  // by the block there, which is in use
  bool contains(const void* ptr) const;
  bool empty() const;
  std::size_t bytes() const;

  struct Block {
    void* ptr;
    std::size_t bytes;
    bool free;
  };
  std::vector<Block> blocks() const;

 private:
  struct Span {
    std::size_t bytes;
    bool free;
    lms::Owed owed;
  };
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* base_;
  std::map<std::size_t, Span> spans_;
};

// A machine's memory, with a capacity that can change, and address space for each NUMA node. What
// is given back is overwritten, so that whoever still uses it notices; misuse throws.
class HostMemory final : public lms::HostMemory {
 public:
  explicit HostMemory(std::size_t bytes, std::size_t space = 0)
      : capacity(bytes), space_(space > 0 ? space : 4 * bytes) {}
  Space reserve() override;
  void unreserve(Space space) override;
  bool commit(char* segment, std::size_t bytes, int node) override;
  void decommit(char* segment, std::size_t bytes) override;
  int node_of(const char* segment) override;
  int node_near(int device) override { return device; }

  std::atomic<std::size_t> capacity;
  std::atomic<std::size_t> used{0};
  std::atomic<int> refusals{0};       // so many of the next requests are refused
  std::atomic<bool> no_space{false};  // there is no more address space
  std::vector<std::size_t> requests;  // of `commit`
  std::function<void()> on_the_way;   // called in `commit` and `decommit`
  std::map<int, int> full_nodes;      // whose memory is of another node in fact

 private:
  struct Segment {
    std::size_t bytes;
    int node;
  };
  const std::size_t space_;
  std::mutex mutex_;
  std::map<char*, std::unique_ptr<unsigned char[]>> spaces_;
  std::map<char*, Segment> segments_;
};

class Backend;

// Owned by counted references, like the framework's: without a strong one it gives its memory back,
// without a weak one its identity may be used again.
struct Storage {
  Backend* owner = nullptr;
  std::atomic<int> strong{1};
  std::atomic<int> weak{1};               // one of them for all strong ones
  std::atomic<bool> out_of_reach{false};  // alive, but to take it would mean to wait

  lms::Place place = lms::Place::kForeign;
  void* ptr = nullptr;
  std::size_t bytes = 0;
  lms::Stream home = nullptr;  // the stream whose pool its block is from
  int device = 0;              // that it says it is of: all have the same memory
  bool renumbered = false;     // it was of another
  lms::HostRange range;        // on the host
  lms::Marks written;          // its bytes are in `range` after this
  bool guarded = false;
  bool intact = false;  // not written since it was guarded

  // What the program under test relies on: checked at every page-out.
  std::atomic<int> held{0};
};

class StorageRef {
 public:
  StorageRef() = default;
  explicit StorageRef(Storage* adopted) : storage_(adopted) {}
  StorageRef(StorageRef&& other) noexcept : storage_(other.storage_) { other.storage_ = nullptr; }
  StorageRef& operator=(StorageRef&& other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  StorageRef(const StorageRef& other);
  StorageRef& operator=(const StorageRef&) = delete;
  ~StorageRef();
  Storage* get() const { return storage_; }
  Storage* operator->() const { return storage_; }
  void reset() { StorageRef().swap(*this); }
  void swap(StorageRef& other) { std::swap(storage_, other.storage_); }

 private:
  Storage* storage_ = nullptr;
};

// Around everything that takes the engine's lock: what the engine kept alive while it looked at it
// is let go when the outermost scope of the thread ends, with no lock held.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

struct Counts {
  std::int64_t outs = 0, out_bytes = 0, clean_outs = 0, clean_bytes = 0;
  std::int64_t ahead = 0, ahead_bytes = 0;  // of the page-outs
  std::int64_t ins = 0, in_bytes = 0, overwrites = 0, overwrite_bytes = 0;
};

// Keeps the contract of lms::Backend the way an adaptor does: the lock order is engine, allocator,
// host pool, device. Streams 0 to `streams` - 1 are the program's. Programs that use storages past
// every op, which no pin or exposure makes good for, say so (`unseen`): all that is queued is
// waited for, then.
class Backend final : public lms::Backend {
 public:
  // Each stream's pool is one segment of `pool_bytes`, or gets segments of at least `segment_bytes`
  // from a device that has `pool_bytes` for each stream, and gives them back.
  Backend(Device& device, std::size_t streams, std::size_t pool_bytes,
          std::size_t segment_bytes = 0);
  void attach(lms::Engine* engine, lms::HostPool* host);
  lms::Stream in() const { return stream(streams_); }
  static std::size_t streams_needed(std::size_t streams) { return streams + 1 + kOutStreams; }

  // The framework's allocator: evicts what is idle when its pool is full. Throws OutOfMemory.
  StorageRef create(std::size_t bytes, lms::Stream home, int device = 0);
  // The block of a request that may go less far than `create` does; null when that does not do.
  void* make_room(lms::RoomRequest request, lms::Stream home, lms::Route* route);
  void free(void* ptr) { free_block_(ptr); }
  // New memory for the storage, in the pool of its home; its bytes are whatever `work` makes of the
  // old ones, on its home stream.
  void replace(Storage* storage, std::size_t bytes,
               const std::function<void(const void* from, void* to)>& work);
  // Two storages exchange their memory behind the engine's back.
  void exchange(Storage* a, Storage* b);
  // A mutable access that no op boundary sees.
  void* write_pointer(Storage* storage);

  void retain(lms::Key key) override;
  void release(lms::Key key) override;
  bool acquire(lms::Key key) override;
  bool dead(lms::Key key) override;
  lms::Extent locate(lms::Key key) override;
  std::size_t bytes_of(lms::Key key) override;
  void guard(lms::Key key) override;
  bool unguard(lms::Key key) override;
  bool movable(const lms::Extent& from, const lms::StreamSet& used) override;
  void page_out(lms::Key key, const lms::Extent& from, lms::HostRange host, bool copy,
                const lms::StreamSet& used) override;
  lms::FencePtr page_out_ahead(lms::Key key, const lms::Extent& from, lms::HostRange host,
                               const lms::StreamSet& used) override;
  lms::HostRange page_in(lms::Key key, bool copy, lms::Stream stream, lms::Reclaim reclaim,
                         lms::FencePtr* arrival) override;
  void refill(lms::Key key, lms::HostRange host, lms::Stream stream,
              lms::FencePtr* arrival) override;
  void join(lms::Stream stream, const lms::FencePtr& arrival) override;
  void begin_to_move() override { moves = true; }
  void mark(int device, lms::Stream stream, std::size_t bytes, lms::MarkPtr* mark) override;
  lms::Marks owed_to_others(const lms::Extent& at) override;
  void before_host_growth(std::size_t bytes, int device) override {
    if (before_growth) before_growth(bytes, device);
  }

  std::function<void(std::size_t bytes, int device)> before_growth;
  std::function<void(int device)> before_mark;
  // Fault injection: the n-th call from now fails; 0: none does.
  std::atomic<int> fail_page_in{0};
  std::atomic<int> fail_page_out{0};
  std::atomic<int> fail_mark{0};
  bool moves = false;  // something has, or is about to
  std::atomic<bool> immovable{false};
  bool unseen = false;
  bool blind = false;  // cannot tell of writes: the write barrier never rules one out

  // Bytes that live blocks and a request may have together; 0: no limit. Under the engine's lock.
  std::size_t limit = 0;
  std::size_t in_use();
  std::size_t segments();
  lms::RouteCounts routes;

  bool knew_last_uses = false;         // of what was evicted last; under the engine's lock
  Counts counts;                       // under the engine's lock
  std::atomic<std::int64_t> looks{0};  // storages acquired to be looked at
  std::multiset<lms::Key> retained;    // under its lock; to be read while no op runs
  std::vector<std::string> journal;    // of the calls that move, when `journaling`
  bool journaling = false;
  lms::Stream current = stream(0);  // of the thread that evicts

 private:
  friend class StorageRef;
  class Lists;
  static constexpr std::size_t kOutStreams = 5;  // that copies out go to in turn
  lms::Stream next_out_() { return stream(streams_ + 1 + outs_++ % kOutStreams); }
  using Pool = std::vector<Arena>;  // segments
  enum class For { kOp, kPageIn };  // which waits itself for what the block owes
  void* allocate_(std::size_t bytes, lms::Stream home, For user = For::kOp);
  void* allocate_free_(std::size_t bytes, lms::Stream home, For user = For::kOp);
  void* take_free_(std::size_t bytes, lms::Stream home, For user);
  bool grow_(std::size_t bytes, std::size_t usual, lms::Stream home);
  lms::Route make_room_(lms::RoomRequest request, Lists* lists);
  void dispose_(Storage* storage);
  void free_block_(void* ptr);
  void free_settled_(void* ptr, const lms::Ready& ready);
  Arena& segment_of_(const void* ptr, lms::Stream* home);
  lms::Ready ready_(const void* ptr);
  void set_ready_(const void* ptr, const lms::Ready& ready);
  Pool& pool_(lms::Stream home);

  Device& device_;
  const std::size_t streams_;
  std::size_t outs_ = 0;
  lms::Engine* engine_ = nullptr;
  lms::HostPool* host_ = nullptr;
  std::mutex retained_mutex_;
  std::mutex allocator_mutex_;
  std::vector<Pool> pools_;  // by home stream
  std::size_t segment_bytes_ = 0;
  std::size_t device_left_ = 0;  // bytes that are in no segment
};

}  // namespace fake
