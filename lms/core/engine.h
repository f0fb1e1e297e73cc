// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cost.h"
#include "crowd.h"
#include "host_pool.h"
#include "ready.h"
#include "types.h"
#include "victims.h"

namespace lms {

// The lock of an engine, in parts. Who needs the state of one device alone takes its part, which
// comes to be the own of a thread that does so again and again; all others take the whole, which is
// every part. The whole is recursive.
class EngineMutex {
 public:
  void lock() {
    whole_.lock();
    if (depth_++ > 0) return;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    for (BiasedMutex* part : parts_) part->lock();
  }
  void unlock() {
    if (--depth_ == 0) {
      for (BiasedMutex* part : parts_) part->unlock();
      owner_.store(std::thread::id(), std::memory_order_relaxed);
    }
    whole_.unlock();
  }
  // Whether this thread has the whole.
  bool is_mine() const {
    const std::thread::id owner = owner_.load(std::memory_order_relaxed);
    return owner != std::thread::id() && owner == std::this_thread::get_id();
  }
  // For who has the whole, as for the other parts.
  void add(BiasedMutex* part) {
    part->lock();
    parts_.push_back(part);
  }
  // With the whole: no thread owns a part.
  void disown_parts() {
    for (BiasedMutex* part : parts_) part->disown();
  }
  // In the child of a fork, before which the thread that forks took the whole: it is free.
  void forked() {
    new (&whole_) std::recursive_mutex;
    for (BiasedMutex* part : parts_) new (part) BiasedMutex;
    depth_ = 0;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
  }

 private:
  std::recursive_mutex whole_;  // before the parts, which are taken in their order
  std::vector<BiasedMutex*> parts_;
  int depth_ = 0;  // how often its owner has taken the whole
  std::atomic<std::thread::id> owner_{};
};
using EngineLock = std::lock_guard<EngineMutex>;

// What the engine asks of a framework and its device. Every call is made with the engine's lock
// held; none may wait for a lock that can be held by a thread that waits for the engine's. For the
// ops of two devices, of which each has the part of its own, two may be made at once of retain,
// release, acquire, dead, locate, is_resident_at, bytes_of, guard, unguard, join, owed_to_others,
// mark and set_candidate.
class Backend {
 public:
  virtual ~Backend() = default;

  // Keeps the identity `key` from being reused, but not the storage alive.
  virtual void retain(Key key) = 0;
  virtual void release(Key key) = 0;

  // Keeps the storage alive until the engine's lock is released. False when it is dead, or when to
  // take it would mean to wait: the engine then leaves it alone for now.
  virtual bool acquire(Key key) = 0;
  virtual bool dead(Key key) = 0;

  virtual Extent locate(Key key) = 0;
  // Whether that is on the device, at this address, with so many bytes: the same, for less.
  virtual bool is_resident_at(Key key, const void* ptr, std::size_t bytes) {
    const Extent at = locate(key);
    return at.place == Place::kDevice && at.ptr == ptr && at.bytes == bytes;
  }
  // Of its memory, wherever that is; also of one that is dead.
  virtual std::size_t bytes_of(Key key) = 0;

  // Arms the write barrier of a resident storage whose host copy is valid.
  virtual void guard(Key key) = 0;
  // Disarms it. False when the storage was written, or replaced, since, or might have been.
  virtual bool unguard(Key key) = 0;

  // Whether the block may be freed at all (not while a graph is captured, not of a private pool),
  // and the uses waited for (not while one of their streams is captured).
  virtual bool movable(const Extent& from, const StreamSet& used) = 0;

  // Queues the copy to `host` (unless the bytes there are already the storage's, or will be, by
  // `page_out_ahead`), ordered after the uses in `used`, hands the range to the storage and frees
  // its block, which may be reused only after those and the copy.
  virtual void page_out(Key key, const Extent& from, HostRange host, bool copy,
                        const StreamSet& used) = 0;

  // Queues that copy and leaves the storage where it is; its block may be reused only after the
  // copy. Null, and nothing is queued, where that cannot be.
  virtual FencePtr page_out_ahead(Key, const Extent&, HostRange, const StreamSet&) {
    return nullptr;
  }

  // Allocates a block, queues the copy from the host (if `copy`), ordered after all earlier work on
  // the block and the copy to the host, and before all later work on `stream`, and rebinds the
  // storage. `arrival` is what
  // other streams must wait for. Returns the host range, which is the engine's again and still
  // being read until `arrival`. When there is no room, leaves everything as it was and throws the
  // framework's out-of-memory error or, with Reclaim::kNone, returns an empty range.
  virtual HostRange page_in(Key key, bool copy, Stream stream, Reclaim reclaim,
                            FencePtr* arrival) = 0;

  // Queues the copy from the host into a storage that is resident, after all work queued so far on
  // `stream` and before all later work there. `arrival` is what other streams must wait for.
  virtual void refill(Key key, HostRange host, Stream stream, FencePtr* arrival) = 0;

  // Makes later work on `stream` wait for `arrival`.
  virtual void join(Stream stream, const FencePtr& arrival) = 0;

  // What the memory of a storage owes to each stream but that of its pool, which is after it.
  virtual Marks owed_to_others(const Extent&) { return {}; }
  // The host waits for all that memory owes to streams, whoever has it.
  virtual void finish_owed() {}

  // `mark` becomes what is after all work queued so far on `stream`, where an op ends that has used
  // `bytes`. Null where that cannot be told: uses are then not known to end before anything that is
  // queued; or where nothing has ever moved: it is then asked for when something is about to. Ops
  // that use little share one, so mostly it is what `mark` is from the op before.
  virtual void mark(int, Stream, std::size_t, MarkPtr* mark) { mark->reset(); }

  // Something is about to move, for the first time.
  virtual void begin_to_move() {}

  // Before host memory comes from the machine, which takes long, for a storage of so many bytes on
  // `device`. What it throws leaves the engine, whose lock can be let go then; when it returns, the
  // memory comes under that lock.
  virtual void before_host_growth(std::size_t, int) {}

  // For adaptors that count the bytes of candidates: whether `set_candidate` is to be called.
  // Always the same.
  virtual bool counts_candidates() { return false; }
  // The storage is a candidate from now on, if it is resident, or is none. A call may say what the
  // one before it said.
  virtual void set_candidate(Key, bool) {}
};

// As PyTorch's statistics have them: the last two since the last reset.
struct Counter {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(std::int64_t n) {
    current += n;
    allocated += n;
    if (current > peak) peak = current;
  }
  void decrease(std::int64_t n) {
    current -= n;
    freed += n;
  }
  void reset_peak() { peak = current; }
};

// Storages in use by an op, or held by the user.
struct Pinned {
  Counter count, bytes;
};

// Counts them by their size classes. Each operand of an op comes by here twice, so what can be
// worked out from these sums is, when somebody asks.
class PinCounts {
 public:
  explicit PinCounts(std::size_t size_classes) : of_class_(size_classes) {}

  void begin(std::size_t size_class, std::size_t bytes) { of_class_[size_class].begun.add(bytes); }
  void end(std::size_t size_class, std::size_t bytes) { of_class_[size_class].ended.add(bytes); }
  // After some have begun: of an op's, once for all.
  void note_peaks() {
    Sum all;
    for (Sums& sums : of_class_) {
      const Sum now = sums.now();
      sums.peak.raise_to(now);
      all += now;
    }
    peak_.raise_to(all);
  }

  std::size_t classes() const { return of_class_.size(); }
  Pinned of(std::size_t size_class) const { return of_class_[size_class].told(); }
  Pinned of_all() const { return sum_().told(); }
  void reset_peaks() {
    for (Sums& sums : of_class_) sums.peak = sums.now();
    peak_ = sum_().now();
  }
  void reset_accumulated() {
    for (Sums& sums : of_class_) {
      sums.begun_before = sums.begun;
      sums.ended_before = sums.ended;
    }
  }

 private:
  struct Sum {
    std::int64_t count = 0, bytes = 0;
    void add(std::size_t its_bytes) {
      ++count;
      bytes += static_cast<std::int64_t>(its_bytes);
    }
    void raise_to(const Sum& other) {
      if (count < other.count) count = other.count;
      if (bytes < other.bytes) bytes = other.bytes;
    }
    void operator+=(const Sum& other) {
      count += other.count;
      bytes += other.bytes;
    }
    Sum operator-(const Sum& other) const { return {count - other.count, bytes - other.bytes}; }
  };
  struct Sums {
    Sum begun, ended, peak;
    Sum begun_before, ended_before;  // when they were last reset
    Sum now() const { return begun - ended; }
    Pinned told() const {
      const Sum current = now(), since = begun - begun_before, freed = ended - ended_before;
      return {{current.count, peak.count, since.count, freed.count},
              {current.bytes, peak.bytes, since.bytes, freed.bytes}};
    }
  };

  Sums sum_() const {
    Sums all;
    for (const Sums& sums : of_class_) {
      all.begun += sums.begun;
      all.ended += sums.ended;
      all.begun_before += sums.begun_before;
      all.ended_before += sums.ended_before;
    }
    all.peak = peak_;
    return all;
  }

  std::vector<Sums> of_class_;
  Sum peak_;  // of all together
};

struct EngineStats {
  Pinned pinned;                // of all sizes
  std::vector<Pinned> by_size;  // of each of the adaptor's size classes
  std::int64_t reclaimed = 0;   // storages moved out since the last reset
  std::int64_t reclaimed_bytes = 0;
  std::int64_t paged_out = 0, paged_out_bytes = 0;    // copies to the host
  std::int64_t paged_in = 0, paged_in_bytes = 0;      // copies to the device
  std::int64_t clean_evictions = 0, clean_bytes = 0;  // evictions that needed no copy
  std::int64_t overwrites = 0, overwrite_bytes = 0;   // page-ins that needed no copy
  std::int64_t used = 0, used_bytes = 0;  // that ops began to use, from the minimum size on
  std::int64_t silent_writes = 0;         // writes that only the write barrier saw
  std::int64_t predicted = 0;             // uses that came when they were expected
  std::int64_t mispredicted = 0;          // and those that did not
  std::int64_t host_refused = 0;          // evictions given up because host memory was at its limit
  bool host_short = false;                // whether the last one that needed host memory was
};

// A storage the engine could move out now.
struct Candidate {
  Key key;
  Extent extent;
  double cost;
};

struct Census {
  std::size_t tracked = 0;
  std::size_t pinned = 0, pinned_bytes = 0;
  std::size_t held = 0, held_bytes = 0;  // of the pinned, by the user
  std::size_t largest_pinned = 0;        // of the others
  std::size_t idle = 0, idle_bytes = 0;
  std::size_t on_host = 0, on_host_bytes = 0;
  std::size_t exposed = 0, exposed_bytes = 0;
  std::size_t excluded = 0, excluded_bytes = 0;
  std::size_t small = 0, small_bytes = 0;          // idle but below the minimum size
  std::size_t immovable = 0, immovable_bytes = 0;  // in a pool that nothing may leave, as a graph's
};

// What ops used on a device, and what of it had to come in first.
struct Traffic {
  std::uint64_t uses = 0;
  std::size_t used_bytes = 0, brought_bytes = 0;
  std::size_t most_bytes = 0;  // that were brought in for one op
  std::string most_op;         // its name
};

// What holes have cost more than segments that are of no use to the requests would have, but for
// the price of replacing them, since that was last done. What they cost less is taken from it, so
// that neither chance nor what is free for a part of a step adds up.
class Forgone {
 public:
  void add(double cost, std::size_t bytes) {
    cost_ += cost;
    if (cost > 0) bytes_ += bytes;
    if (cost_ <= 0) reset();
  }
  void reset() { *this = {}; }
  double cost() const { return cost_; }
  std::size_t bytes() const { return bytes_; }

 private:
  double cost_ = 0;
  std::size_t bytes_ = 0;
};

// Whether a device thrashes: what its ops use is hardly ever there. Swapping that pays brings a
// storage in once for several uses.
class ThrashWatch {
 public:
  // Uses that are judged together. More leave out what lasts for a part of an iteration, fewer
  // judge one part of it, as the step of an optimiser, alone.
  static constexpr std::uint64_t kUses = 4096;

  // An op uses so many storages. Whether the device is now found to thrash: more than two thirds of
  // what was used had to come in. Half is what a backward pass comes to of which everything but its
  // gradients had left. Found once, and nothing is counted after it.
  bool op(std::uint64_t uses, std::size_t used_bytes, std::size_t brought_bytes, const char* name) {
    if (thrashes_) return false;
    now_.uses += uses;
    now_.used_bytes += used_bytes;
    now_.brought_bytes += brought_bytes;
    if (brought_bytes > now_.most_bytes) {
      now_.most_bytes = brought_bytes;
      now_.most_op = name;
    }
    if (now_.uses < kUses) return false;
    thrashes_ = now_.brought_bytes > now_.used_bytes / 3 * 2;
    if (!thrashes_) now_ = Traffic();
    return thrashes_;
  }

  // True once, when it is found to thrash: to whom it says so is to tell the user.
  bool tell(Traffic* traffic) {
    if (!thrashes_ || told_) return false;
    told_ = true;
    *traffic = now_;
    return true;
  }

 private:
  Traffic now_;
  bool thrashes_ = false, told_ = false;
};

// What a link has had to copy of late: what is older counts less. Time is in ops.
class LinkLoad {
 public:
  void copied_in(std::size_t bytes, std::uint64_t now) { add_(&in_, bytes, now); }
  void copied_out(std::size_t bytes, std::uint64_t now) { add_(&out_, bytes, now); }
  void evicted_early(std::size_t bytes, std::uint64_t now) { add_(&early_, bytes, now); }
  // Whether more may be evicted early: what is copied out for it holds up nothing that has to
  // leave, and what comes back for it is little beside what comes in anyway. All fade alike.
  bool is_worth_more() const { return out_ < kLittle * in_ && early_ < kLess * in_; }

 private:
  // After so many ops a copy counts half. With more, a backward pass that copies nothing out is
  // known late; with 64, a few ops of others looked like one, and steps of two models at a seventh
  // of their peak took a tenth longer.
  static constexpr double kHalfLife = 128;
  // As a part of what is copied in. With more, what leaves early holds up what has to leave, with
  // less hardly anything leaves early.
  static constexpr double kLittle = 0.5;
  // The same of what leaves early. With more, a program whose tensors would almost all stay copies
  // more to no end, with less more copies wait for an op.
  static constexpr double kLess = 0.25;

  void add_(double* to, std::size_t bytes, std::uint64_t now) {
    const double left = std::exp2(-static_cast<double>(now - last_) / kHalfLife);
    last_ = now;
    for (double* one : {&in_, &out_, &early_}) *one *= left;
    *to += static_cast<double>(bytes);
  }

  double in_ = 0, out_ = 0, early_ = 0;  // bytes
  std::uint64_t last_ = 0;
};

// Which storages are in use, which may leave, and what it costs: the state machine of Large Model
// Support, without a framework. Invariants:
//  - a storage with a pin is on the device, and no pinned storage is ever a victim;
//  - the storages of an op are all pinned before the first of them is brought in;
//  - a host copy is kept only while no write to the storage has been seen or can go unseen.
// One lock guards it, of which an op whose operands are all on one device, and there, takes that
// device's part; whatever moves takes the whole. Lock order: engine, then the framework's
// allocator, then leaves.
class Engine {
  struct Device;

 public:
  struct Entry;

  // The pins that one thread holds for the op it is running. Nested ops add to the outermost frame,
  // so that what an inner op touched stays put while the outer one may still hold its pointer. That
  // of a lane that was opened is the thread's for all its ops, until the lane is closed.
  class Frame {
   public:
    explicit Frame(Lane lane = 0) : lane_(lane) {}
    bool empty() const { return pins_.empty(); }

   private:
    friend class Engine;
    struct Pin {
      Entry* entry;
      Stream stream;  // that the op uses it on
    };
    void add_(Entry* entry, Stream stream);
    void clear_();

    std::vector<Pin> pins_;
    std::size_t bytes_ = 0;     // of all that was ever pinned for the op
    std::size_t trimmed_ = 0;   // pins that were left when it was last trimmed
    Device* device_ = nullptr;  // of the pins; null: there were none
    bool several_ = false;      // of several devices
    Lane lane_;
    BiasedMutex::Hand hand_;
  };

  // Statistics are kept by size as well: a class of storages up to each of `size_classes` (bytes,
  // ascending), and one of those that are larger.
  Engine(Backend& backend, HostPool& host, std::vector<std::size_t> size_classes = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The whole of the lock.
  EngineMutex& mutex() { return mutex_; }
  // In the child of a fork, before which the thread that forks took the lock: it is free.
  void forked() { mutex_.forked(); }

  // The bytes that an op is about to overwrite, as long as it may still fail before it does. To be
  // given to `overwrote` or `restore`.
  struct Overwritten {
    Key key = nullptr;  // null: there are none
    Extent extent;      // of the storage, to which they were not brought in
    HostRange range;
    Stream stream = nullptr;  // of the op
    FencePtr arrival;
  };

  // Pins the storages of `uses`, then brings in those that are out. When that throws, the pins are
  // in the frame and the caller leaves it as usual. One that is overwritten comes in without its
  // bytes, which go to `old`; without `old` it comes with them. `op` is the op's name. `device` is
  // what all are of; here and below, -1: they are of several, or the caller does not know.
  void enter(Frame& frame, const Use* uses, std::size_t count, Overwritten* old = nullptr,
             const char* op = "", int device = -1);
  // The op has written: the old bytes are let go.
  void overwrote(Overwritten* old);
  // The op has failed: the storage, which the caller keeps alive, has its old bytes again.
  void restore(Overwritten* old);
  // Makes what the op has made known, and drops the frame's pins. In chaos mode evicts everything
  // idle on `device` of the frame's storages.
  void leave(Frame& frame, const Use* made = nullptr, std::size_t count = 0, int device = -1);
  // Makes the result of an op known: pinned by `frame` until that is left or, without one, as just
  // used by `lane`, nobody knows until when.
  void note(Frame* frame, Key key, Stream stream, Lane lane = 0, int device = -1);

  // Each lane has its own time on each device, which its ops there count. What a lane that is
  // closed used last grows old with the others' ops, as does what one used that runs no op for
  // long.
  Lane open_lane();
  // That of a frame, which is of lane 0 from then on.
  void close_lane(Frame& frame);

  // Brings a storage in ahead of its use, and leaves it idle. Whether it is resident now.
  bool page_in(Key key, Stream stream, Reclaim reclaim);

  // A pin that outlives an op. `pin` brings the storage in.
  void pin(Key key, Stream stream);
  void unpin(Key key);

  // Brings the storage in and keeps it there, with its pointer, until `unexpose`.
  void expose(Key key, Stream stream);
  void unexpose(Key key);
  // Brings the storage in and keeps it there, until `include`.
  void exclude(Key key, Stream stream);
  void include(Key key);
  bool exposed(Key key);
  bool excluded(Key key);

  // What could be evicted on `device` now, in the order in which it came to be idle, each storage
  // kept alive until the lock is released.
  std::vector<Candidate> candidates(int device, Sizes sizes, const Cost& cost = default_cost());
  // Whether the link has so much to bring in, and so little else, that storages may leave so that
  // page-ins need not wait for an op; and that so many bytes did.
  bool may_evict_early(int device);
  void evicted_early(int device, std::size_t bytes);
  // With the lock held.
  Forgone& forgone(int device) { return on_(device).forgone; }
  // Moves one candidate out. False when it cannot be (pinned by now, or no host memory).
  bool evict(Key key);
  // Moves out all that can be. Returns bytes.
  std::size_t evict_all(int device, Sizes sizes);
  // Brings in all that are out, as far as they fit, what was used last first. Returns how many that
  // can be reached stay out.
  std::size_t page_in_all(Stream (*stream_of)(int device));

  void set_min_bytes(std::size_t bytes);
  std::size_t min_bytes();
  void set_keep_clean(bool keep);
  void set_chaos(bool chaos) { chaos_ = chaos; }
  bool chaos() const { return chaos_; }

  // Those that are out, of each device what was used last first, each kept alive until the lock is
  // released.
  std::vector<Key> all_out();

  // Waits for the copies that later uses would otherwise have to be ordered after.
  void wait_for_copies();
  // What a first use of a storage would be ordered after, to be waited for with no lock held.
  std::vector<FencePtr> before_use(Key key);
  // Drops the host copies of resident storages, and with them the write barriers within reach.
  void drop_copies();

  // Forgets storages that are dead.
  void purge();
  // Forgets one that is about to die, for adaptors that see every death. Pins that are still in
  // frames are dropped with them.
  void forget(Key key);
  // Whether an op, or the user, has pinned it.
  bool pinned(Key key);
  // Of what the frame has pinned.
  std::size_t bytes_of(const Frame& frame);
  // The bytes of an idle or pinned storage are about to change, or did: a host copy is stale.
  void written(Key key);
  Census census(int device);
  EngineStats stats(int device);
  void reset_peaks(int device);
  void reset_accumulated(int device);

  // Whether there is a device that thrashes, which nobody was told of.
  bool thrashing() const { return thrashing_.load(std::memory_order_relaxed) > 0; }
  // Which one, and what came and went there. False when somebody else was told.
  bool tell_thrashing(int* device, Traffic* traffic);

 private:
  // Of an entry, for a list that it can be in.
  struct Link {
    Link* previous = nullptr;  // null while it is in none
    Link* next = nullptr;
    Entry* entry = nullptr;
  };
  // Entries by the order in which they were put in.
  class List {
   public:
    List() { ends_.previous = ends_.next = &ends_; }
    List(const List&) = delete;
    List& operator=(const List&) = delete;
    Link* first() { return ends_.next == &ends_ ? nullptr : ends_.next; }
    Link* after(const Link* link) { return link->next == &ends_ ? nullptr : link->next; }
    void put(Link* link);
    static void take(Link* link);

   private:
    Link ends_;
  };
  // Resident storages of one device, by the size that they were last located with: what is below
  // the minimum size need not be looked at before the rest did not suffice. Least recently used
  // first. What is pinned stays in its place until it is idle again: it is passed over.
  struct IdleLists {
    List large, small;
  };
  struct LaneTime {
    std::uint64_t ops = 0;
    bool open = false;  // and has run one of them since
  };
  // What ops of one device change: under its part of the lock, or under the whole.
  struct Device {
    explicit Device(int its_index, std::size_t lane_count, std::size_t size_classes)
        : index(its_index), lanes(lane_count), pins(size_classes) {}

    // Of the entries, by their addresses, those that were looked for last, or null: every operand
    // is looked for. More would be memory that ops read.
    static constexpr std::size_t kFound = 8192;

    BiasedMutex part;  // of the engine's lock
    const int index;
    std::unordered_map<Key, Entry*> entries;
    std::size_t tracked_at_purge = 0;
    std::uint64_t clock = 0;      // ops of all lanes
    std::uint64_t order = 0;      // how many came to be idle
    std::vector<LaneTime> lanes;  // of each
    std::size_t open_lanes = 0;   // that have run an op here
    MarkPtr mark;                 // that the last op set, or shares
    List clean;                   // storages with a host copy, and what is dead of them
    IdleLists idle;
    PinCounts pins;
    EngineStats stats;  // without those of the pins
    ThrashWatch watch;
    LinkLoad link;
    Forgone forgone;
    std::array<Entry*, kFound> found{};
  };
  // What an op holds of the lock.
  class Held;
  // Of an idle storage, in ops: as Eviction has them.
  struct Age {
    std::uint64_t age, until;
  };
  // What an op uses of a device, from the minimum size on.
  struct OpUse {
    Device* on = nullptr;  // none yet
    std::uint64_t count = 0;
    std::size_t bytes = 0;
    std::int64_t paged_in_before = 0;  // bytes
  };

  static Entry*& recent_(Device& on, Key key);
  static Entry* find_on_(Device& on, Key key);
  Entry* find_(Key key);
  void hand_over_(Entry* from, Entry* to);
  Entry* track_(Key key, Device* part = nullptr);
  static void look_ahead_(Device* on, Key key);
  Entry* new_entry_(Device& on, Key key);
  Device* part_of_(const Frame* frame, std::size_t count, int device);
  void pin_made_(Frame* frame, Key key, Stream stream, Device* part);
  void note_unpinned_(Key key, Stream stream, Lane lane, Device* part);
  void used_at_once_(Entry* entry, Stream stream);
  static void erase_(Entry* entry);
  void forget_(Entry* entry);
  void purge_(Device& on);
  void maybe_purge_(Device& on);
  void push_idle_(Entry* entry, Lane lane);
  void link_idle_(Entry* entry);
  std::vector<Entry*> idle_on_(Device& on, Sizes sizes);
  std::uint64_t age_(const Entry* entry) const;
  std::vector<Age> ages_(const std::vector<Entry*>& entries) const;
  void note_use_(Entry* entry);
  OpUse* use_of_(Device& on, OpUse* first, std::vector<OpUse>* others);
  void tell_use_(const OpUse& use, const char* op);
  void bring_in_operands_(const Frame::Pin* pins, const Use* uses, std::size_t count,
                          Overwritten* old);
  void count_op_(const Frame& frame, Device* part);
  void count_(Entry* entry, int device, Census* of);
  void unlink_(Entry* entry);
  void tell_candidate_(Entry* entry);
  void pin_(Entry* entry);
  Place begin_pin_(Entry* entry);
  void unpin_(Entry* entry, Lane lane = 0);
  void end_pin_(Entry* entry, Lane lane);
  void watch_writes_(Entry* entry);
  bool bring_in_(Entry* entry, Access access, Stream stream, Reclaim reclaim = Reclaim::kAllowed,
                 Overwritten* old = nullptr);
  bool evict_(Entry* entry, const Extent& extent);
  void begin_to_move_();
  void page_out_ahead_(Entry* entry);
  void idleness_over_(Entry* entry, bool evicted);
  HostRange host_room_(std::size_t bytes, int device);
  static void keep_copy_(Entry* entry, HostRange range, const Extent& of);
  static HostRange give_copy_(Entry* entry);
  void drop_copy_(Entry* entry);
  void free_copy_(Entry* entry);
  void disarm_(Entry* entry);
  bool drop_useless_copies_();
  void look_for_dead_copies_(Device& on);
  void maybe_trim_(Frame* frame);
  void trim_(Frame* frame);
  void use_resident_(Entry* entry, Access access, Stream stream);
  void use_on_(Entry* entry, Stream stream);
  void order_use_(Entry* entry, Stream stream, StreamUse* use);
  void found_at_(Entry* entry, const Extent& extent);
  void moved_to_(Entry* entry, const Extent& extent);
  void size_(Entry* entry, std::size_t bytes);
  void resize_(Entry* entry, std::size_t bytes);
  void mark_(int device, Stream stream, std::size_t bytes, MarkPtr* mark);
  static void forget_last_uses_(Entry* entry);
  void keep_resident_(Key key, Stream stream, bool Entry::* mark);
  std::size_t drop_copies_(std::size_t bytes);
  bool evictable_(const Entry* entry) const;
  Device* known_(int device) const;
  Device& on_(int device);
  EngineStats& stats_of_(int device) { return on_(device).stats; }

  // As many as a framework can number; with fewer an op on one of more would fail.
  static constexpr std::size_t kMostDevices = 128;

  Backend& backend_;
  HostPool& host_;
  const std::vector<std::size_t> size_classes_;
  EngineMutex mutex_;
  // By their numbers; null: it has not been seen. Each stays where it is.
  std::array<std::atomic<Device*>, kMostDevices> numbered_{};
  std::vector<std::unique_ptr<Device>> devices_;  // as they were seen
  std::size_t min_bytes_ = std::size_t{1} << 20;
  std::size_t lane_count_ = 1;
  std::vector<Lane> closed_lanes_;  // to be used again
  bool keep_clean_;
  bool has_moved_ = false;  // anything, ever
  const bool tells_candidates_;
  const std::unique_ptr<Predictor> predictor_;
  std::atomic<bool> chaos_{false};
  std::atomic<int> thrashing_{0};  // devices of which nobody was told
};

}  // namespace lms
