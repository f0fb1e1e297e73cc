// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// For where each op comes by: what hardly ever happens is put out of the way of the rest, and what
// always does is no call. Jumps and calls took an eighth of the time.
#define LMS_LIKELY(condition) __builtin_expect(static_cast<bool>(condition), 1)
#define LMS_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), 0)
#define LMS_ALWAYS_INLINE __attribute__((always_inline)) inline

namespace lms {

// Identity of a storage. Opaque to the core: the adaptor knows what it points to.
using Key = void*;

// A device stream. Opaque to the core, compared by value only.
using Stream = void*;

// Where the bytes of a storage are. The adaptor derives this from the framework's own object, never
// from a flag kept beside it, so that a storage whose pointer was replaced behind the engine's back
// is still described correctly.
enum class Place : std::uint8_t {
  kDevice,   // in a block of the framework's allocator
  kHost,     // in a range of the engine's host pool
  kForeign,  // anywhere else: not the engine's to move
};

struct Extent {
  Place place;
  void* ptr;
  std::size_t bytes;
  int device;
};

// How an op uses a storage.
enum class Access : std::uint8_t {
  kRead,
  kWrite,      // reads and writes: the host copy is stale afterwards
  kOverwrite,  // writes every byte before it reads any: no need to bring the old bytes back
  kHold,       // does not look at the bytes: they only have to be there
  kInPlace,    // reads them where they are, also in host memory, and there they stay meanwhile
};

// Of one storage by an op.
struct Use {
  Key key;
  Access access;
  Stream stream;
};

// Whether other storages may make way for one that comes in.
enum class Reclaim : std::uint8_t {
  kAllowed,  // an op waits for it
  kNone,     // it comes ahead of need, if room is free
};

// Which storages may be evicted, by their size.
enum class Sizes : std::uint8_t {
  kFromMinimum,  // those of the minimum size or more
  kAny,
};

// A sequence of ops of which each begins when the one before it is over: those of a thread. Lane 0
// is of all that say no other.
using Lane = std::uint32_t;

// An op of a lane, by its number; the first is 1.
struct Moment {
  Lane lane;
  std::uint64_t op;
};

// Work queued on a stream. Shared because a range of host memory, a storage and a pending free can
// all wait for the same copy.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};
using FencePtr = std::shared_ptr<Fence>;

// A point in the work of a stream. Those of one stream are numbered in the order of its work.
class Mark : public Fence {
 public:
  virtual Stream stream() const = 0;
  virtual std::uint64_t number() const = 0;
};
using MarkPtr = std::shared_ptr<Mark>;

// A stream that a storage was used on, and what is after its last use there; null: not known, so
// all that is queued.
struct StreamUse {
  Stream stream;
  MarkPtr last;
  bool unordered = false;  // it has yet to wait for copies into and out of the storage's memory
  bool unmarked = false;  // its last use is over before anything has moved: the first move marks it
};

// The few streams a storage was used on since it came to the device: mostly one, which is kept in
// place, as every op asks for it.
class StreamSet {
 public:
  StreamUse* begin() { return one_alone_ ? &one_ : more_.data(); }
  StreamUse* end() { return begin() + size(); }
  const StreamUse* begin() const { return one_alone_ ? &one_ : more_.data(); }
  const StreamUse* end() const { return begin() + size(); }
  std::size_t size() const { return one_alone_ ? 1 : more_.size(); }
  bool empty() const { return size() == 0; }
  // The one on `stream`, or null.
  StreamUse* find(Stream stream) {
    if (LMS_UNLIKELY(!one_alone_)) return find_among_more_(stream);
    return LMS_UNLIKELY(one_.stream != stream) ? nullptr : &one_;
  }

  void clear() { *this = StreamSet(); }
  // It alone.
  void assign(StreamUse use) {
    clear();
    add(std::move(use));
  }
  // One that is not among them.
  StreamUse* add(StreamUse use) {
    if (empty()) {
      one_ = std::move(use);
      one_alone_ = true;
      return &one_;
    }
    if (one_alone_) {
      more_.reserve(2);  // may throw, what follows does not
      more_.push_back(std::move(one_));
      one_alone_ = false;
    }
    more_.push_back(std::move(use));
    return &more_.back();
  }

 private:
  StreamUse* find_among_more_(Stream stream) {
    for (StreamUse& use : more_) {
      if (use.stream == stream) return &use;
    }
    return nullptr;
  }

  StreamUse one_{nullptr, nullptr};
  bool one_alone_ = false;       // there are no others than it
  std::vector<StreamUse> more_;  // all, where there are several
};

}  // namespace lms
