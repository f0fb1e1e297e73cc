// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "types.h"

namespace lms {

// Marks on the streams of one device: of each stream the last, which is after the others.
class Marks {
 public:
  Marks() = default;
  Marks(MarkPtr mark) { add(std::move(mark)); }

  bool empty() const { return last_.empty(); }
  bool done() const {
    return std::all_of(last_.begin(), last_.end(),
                       [](const MarkPtr& mark) { return mark->done(); });
  }
  std::vector<MarkPtr>::const_iterator begin() const { return last_.begin(); }
  std::vector<MarkPtr>::const_iterator end() const { return last_.end(); }
  bool operator==(const Marks& other) const { return last_ == other.last_; }

  void add(MarkPtr mark) {
    for (MarkPtr& last : last_) {
      if (last->stream() != mark->stream()) continue;
      if (mark->number() > last->number()) last = std::move(mark);
      return;
    }
    last_.push_back(std::move(mark));
  }
  void add(const Marks& others) {
    for (const MarkPtr& mark : others) add(mark);
  }

 private:
  std::vector<MarkPtr> last_;
};

// What device memory owes: work that must be over before its next owner uses it. Who takes it for
// an op makes the stream of its pool wait for the copies, and owes them to the other streams; who
// takes it for a page-in makes that copy wait for all.
struct Ready {
  MarkPtr home;      // on the stream of its pool
  bool all = false;  // or all that is queued there, because nobody knows
  // A program has freed it, or a part, since a copy in was made to fill it, and may have used that
  // on streams of which it did not tell: what it uses the pool for next comes after that.
  bool freed = false;
  Marks out;  // on the streams of the engine's copies
  Marks in;
  // What the stream of its pool is after, and no other: copies for which it was made to wait and,
  // where bytes left without one, their last use. Memory that a user frees is as in any program:
  // who uses it next on another stream has ordered that.
  Marks others;
  // Number of the mark after its last use on the stream of its pool, whoever waits for that: what
  // went idle earlier can be written earlier.
  std::uint64_t idle_since = 0;

  // Whether an op's stream has to wait, that of the pool or another.
  bool owes_streams() const { return !out.empty() || !in.empty() || !others.empty(); }
  Marks copies() const {
    Marks both = out;
    both.add(in);
    return both;
  }
  bool copies_done() const { return out.done() && in.done(); }
  // Whether nobody need wait for it.
  bool over() const { return !all && (!home || home->done()) && copies_done() && others.done(); }

  bool operator==(const Ready& other) const {
    return home == other.home && all == other.all && freed == other.freed && out == other.out &&
           in == other.in && others == other.others && idle_since == other.idle_since;
  }

  void merge(const Ready& other) {
    all = all || other.all;
    freed = freed || other.freed;
    idle_since = std::max(idle_since, other.idle_since);
    keep_later(&home, other.home);
    out.add(other.out);
    in.add(other.in);
    others.add(other.others);
  }

 private:
  static void keep_later(MarkPtr* mark, const MarkPtr& other) {
    if (other && (!*mark || other->number() > (*mark)->number())) *mark = other;
  }
};

// What a block of an allocator owes, free or in use. What was one block before it was merged with
// its neighbours owes what it owed, and no more: who takes a part of a large free block waits for
// that part alone.
class Owed {
 public:
  // Parts of a block. More would let a part of a block that was merged of so many be taken without
  // waiting for its neighbours, and take longer to look through.
  static constexpr std::size_t kMostParts = 32;

  Owed() = default;
  Owed(Ready ready) : first_(std::move(ready)) {}

  bool owes_streams() const {
    bool owes = false;
    each_(0, SIZE_MAX, [&](const Ready& ready) { owes = owes || ready.owes_streams(); });
    return owes;
  }

  // What all of it owes.
  Ready whole() const {
    Ready whole = first_;
    for (const Part& part : others_) whole.merge(part.ready);
    return whole;
  }

  // An op has it, and the stream of its pool waits for the copies: only others have yet to. That it
  // was freed stays so: nobody tells whether the op uses it.
  void take() {
    Ready taken;
    each_(0, SIZE_MAX, [&taken](const Ready& ready) {
      taken.freed = taken.freed || ready.freed || ready.all;
      taken.others.add(ready.copies());
      taken.others.add(ready.others);
    });
    if (taken.others.done()) taken.others = Marks();
    *this = Owed(std::move(taken));
  }

  // Of what lies from one place in the block to another.
  std::uint64_t idle_since(std::size_t begin, std::size_t end) const {
    std::uint64_t since = 0;
    each_(begin, end, [&](const Ready& ready) { since = std::max(since, ready.idle_since); });
    return since;
  }
  bool copies_done(std::size_t begin, std::size_t end) const {
    bool done = true;
    each_(begin, end, [&](const Ready& ready) { done = done && ready.copies_done(); });
    return done;
  }

  // Where parts begin, but for the first.
  std::vector<std::size_t> begins() const {
    std::vector<std::size_t> begins;
    for (const Part& part : others_) begins.push_back(part.begin);
    return begins;
  }

  // Takes the first `bytes` off, and returns what they owe.
  Owed split(std::size_t bytes) {
    Owed taken(first_), left;
    const Ready* at = &first_;  // the part that begins at `bytes`, or before
    for (const Part& part : others_) {
      if (part.begin < bytes) taken.others_.push_back(part);
      if (part.begin <= bytes) {
        at = &part.ready;
      } else {
        left.others_.push_back({part.begin - bytes, part.ready});
      }
    }
    left.first_ = *at;
    *this = std::move(left);
    return taken;
  }

  // The block, of `bytes` so far, is merged with the one that follows.
  void append(const Owed& next, std::size_t bytes) {
    add_(bytes, next.first_);
    for (const Part& part : next.others_) add_(bytes + part.begin, part.ready);
  }

  // It is merged with the one before it, of `bytes`.
  void prepend(Owed before, std::size_t bytes) {
    before.append(*this, bytes);
    *this = std::move(before);
  }

 private:
  struct Part {
    std::size_t begin;
    Ready ready;
  };

  template <class Look>
  void each_(std::size_t begin, std::size_t end, const Look& look) const {
    const Ready* ready = &first_;
    for (const Part& part : others_) {
      if (part.begin > begin) look(*ready);
      if (part.begin >= end) return;
      ready = &part.ready;
    }
    look(*ready);
  }

  void add_(std::size_t begin, const Ready& ready) {
    if ((others_.empty() ? first_ : others_.back().ready) == ready) return;
    others_.push_back({begin, ready});
    if (others_.size() >= kMostParts) join_smallest_();
  }

  // Of two neighbours, to make them one; of the last, whose end is not known here, the other.
  void join_smallest_() {
    std::size_t best = 0, least = SIZE_MAX;
    for (std::size_t i = 0; i + 1 < others_.size(); ++i) {
      const std::size_t bytes = others_[i + 1].begin - (i == 0 ? 0 : others_[i - 1].begin);
      if (bytes >= least) continue;
      least = bytes;
      best = i;
    }
    (best == 0 ? first_ : others_[best - 1].ready).merge(others_[best].ready);
    others_.erase(others_.begin() + static_cast<std::ptrdiff_t>(best));
  }

  Ready first_;  // of its beginning
  std::vector<Part> others_;
};

// Who takes free memory. A page-in waits itself for all that is owed, the last use too, and so
// takes what went idle first. An op waits for copies alone, and leaves that to page-ins: it takes
// what went idle last.
enum class Taker : std::uint8_t { kOp, kPageIn };

// A place in a free block, and how well it suits its taker.
struct Spot {
  std::size_t begin;
  bool copies_done;  // as far as the taker waits for it
  std::uint64_t idle_since;
  Taker taker;

  bool before(const Spot& other) const {
    if (copies_done != other.copies_done) return copies_done;
    return taker == Taker::kPageIn ? idle_since < other.idle_since : idle_since > other.idle_since;
  }
};

// An op may take a block so many times larger than the best fit, to wait for no copy or to leave to
// page-ins what went idle first. With more, large blocks are cut up, for which others then have to
// leave; with less, page-ins begin later.
constexpr double kLargestForOps = 1.25;

// On either side of the place that is taken so much is left free, or nothing: less would hold
// nothing, more would leave fewer places to choose from.
constexpr std::size_t kSmallestLeft = std::size_t{2} << 20;

// Of blocks up to this size, where the smallest that is large enough is of `best_fit`.
inline std::size_t largest_choice(std::size_t best_fit, Taker taker) {
  return taker == Taker::kPageIn
             ? SIZE_MAX
             : static_cast<std::size_t>(static_cast<double>(best_fit) * kLargestForOps);
}

// A copy in goes on beside the ops that come before its own only in memory that went idle before
// those: by so many marks. With more, storages leave early that need not, with fewer more copies
// wait for the end of an op, and the next op for them.
constexpr std::uint64_t kMarksAhead = 4;

// Where there is room for `bytes` that suits their taker best, in a free block of `size` that owes
// this: at its beginning, at its end, or where a part begins.
inline Spot first_ready(const Owed& owed, std::size_t size, std::size_t bytes, Taker taker) {
  const auto at = [&](std::size_t begin) {
    const std::size_t end = begin + bytes;
    const bool done = taker == Taker::kPageIn || owed.copies_done(begin, end);
    return Spot{begin, done, owed.idle_since(begin, end), taker};
  };
  Spot best = at(0);
  const auto look = [&](std::size_t begin) {
    if (begin < kSmallestLeft || size - begin < bytes) return;
    const std::size_t behind = size - begin - bytes;
    if (behind > 0 && behind < kSmallestLeft) return;
    const Spot spot = at(begin);
    if (spot.before(best)) best = spot;
  };
  look(size - bytes);  // before the others: what is left is one piece
  for (const std::size_t begin : owed.begins()) look(begin);
  return best;
}

}  // namespace lms
