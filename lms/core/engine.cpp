// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include "rhythm.h"
#include "victims.h"

namespace lms {
namespace {

// How many host copies are looked at, in turn, after each op: one whose storage has died is gone
// after half as many ops as there are copies. More makes each op take longer, fewer keeps host
// memory of the dead for longer.
constexpr int kCopiesLookedAt = 2;

// A frame is trimmed when it has this many pins more than twice what it was left with: as much work
// as pins were added. With a larger number the dead stay in a short frame for longer, with a
// smaller one short frames are trimmed for little.
constexpr std::size_t kPinsBeforeTrim = 256;

// How many uses ahead of the one that is looked at the next one's entry is asked for. With fewer it
// has not come by then, with more it has gone again.
constexpr std::size_t kAhead = 4;

// More than any op uses, so that its mark is shared with none.
constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max() / 2;

}  // namespace

constexpr std::uint64_t ThrashWatch::kUses;

namespace {

std::uint64_t last_mark(const StreamSet& uses) {
  const bool known = uses.size() == 1 && uses.begin()->last;
  return known ? uses.begin()->last->number() : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

// What every op reads and writes comes first, so that it is in few lines of the cache.
struct Engine::Entry {
  Key key = nullptr;
  Device* on = nullptr;
  int pins = 0;
  std::size_t bytes = 0;        // as last located
  std::uint8_t size_class = 0;  // of that
  bool foreseen = false;        // it is to be learned how its idleness ends
  bool guarded = false;
  bool written = false;   // perhaps, by an op that has it pinned, which may give it more bytes, too
  bool in_place = false;  // an op reads it where it is: it stays there until nobody has it pinned
  bool dead = false;      // out of the table, kept for the frames that still hold pins of it
  bool exposed = false;   // somebody outside of ops has its device pointer
  bool excluded = false;  // by the user
  void* ptr = nullptr;    // its memory, of which these are the uses
  StreamSet streams;      // on which it was used since it arrived
  Rhythm rhythm;          // of its uses by ops, on the device's clock
  Link idle;              // in one of the lists of its device, while it is resident
  std::uint64_t order = 0;  // among all that came to be idle
  Moment last_use{0, 0};
  std::uint64_t last_clock = 0;  // the device's clock then
  HostRange copy;                // valid while the storage is resident and unwritten

  void* copy_of = nullptr;     // the device pointer whose bytes `copy` holds
  std::size_t copy_bytes = 0;  // and how many
  FencePtr copied;             // when `copy` has them, if they were paged out ahead
  Link clean;                  // while it has a host copy
  FencePtr arrival;            // of the last page-in
  Marks settled;               // what this memory owed when the storage was given it
  std::uint64_t uses = 0;      // if there is a predictor: before it went idle
  int held = 0;                // pins by the user

  Entry() { idle.entry = clean.entry = this; }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
};

inline void Engine::List::put(Link* link) {
  if (LMS_UNLIKELY(ends_.previous == link)) return;
  take(link);
  link->previous = ends_.previous;
  link->next = &ends_;
  ends_.previous->next = link;
  ends_.previous = link;
}

inline void Engine::List::take(Link* link) {
  if (LMS_UNLIKELY(link->next == nullptr)) return;
  link->previous->next = link->next;
  link->next->previous = link->previous;
  link->previous = link->next = nullptr;
}

Engine::Engine(Backend& backend, HostPool& host, std::vector<std::size_t> size_classes)
    : backend_(backend),
      host_(host),
      size_classes_(std::move(size_classes)),
      keep_clean_(policy().keeps_copies()),
      tells_candidates_(backend.counts_candidates()),
      predictor_(policy().predictor()) {
  if (size_classes_.size() > UINT8_MAX) throw std::length_error("too many size classes");
}

Engine::~Engine() {
  for (auto& on : devices_) {
    for (auto& item : on->entries) {
      drop_copy_(item.second);
      backend_.release(item.first);
      delete item.second;
    }
  }
}

// ---- the lock

// The part of one device or, where there is none, the whole.
class Engine::Held {
 public:
  Held(Engine& engine, Device* on, Frame* frame)
      : engine_(engine), part_(on == nullptr ? nullptr : &on->part) {
    if (LMS_LIKELY(part_ != nullptr)) {
      locked_by_ = part_->lock(frame == nullptr || frame->lane_ == 0 ? nullptr : &frame->hand_);
    } else {
      engine_.mutex_.lock();
    }
  }
  ~Held() {
    if (LMS_LIKELY(part_ != nullptr)) {
      part_->unlock(locked_by_);
    } else {
      engine_.mutex_.unlock();
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool is_whole() const { return part_ == nullptr; }
  // From now on the whole. Meanwhile others have it: what is not pinned may have moved.
  void widen() {
    if (part_ == nullptr) return;
    part_->unlock(locked_by_);
    part_ = nullptr;
    engine_.mutex_.lock();
  }

 private:
  Engine& engine_;
  BiasedMutex* part_;
  BiasedMutex::Hand* locked_by_ = nullptr;
};

// The device whose part is enough for an op that uses, or makes, so many of `device`: where it has
// pinned nothing of others, and needs no more than what ops of that device change.
inline Engine::Device* Engine::part_of_(const Frame* frame, std::size_t count, int device) {
  if (LMS_UNLIKELY(predictor_ || chaos_ || mutex_.is_mine())) return nullptr;
  if (frame == nullptr || frame->empty()) return known_(device);
  const bool same = !frame->several_ && (count == 0 || frame->device_->index == device);
  return same ? frame->device_ : nullptr;
}

inline void Engine::Frame::add_(Entry* entry, Stream stream) {
  pins_.push_back({entry, stream});
  if (LMS_UNLIKELY(device_ != entry->on)) {
    several_ = several_ || device_ != nullptr;
    device_ = entry->on;
  }
}

inline void Engine::Frame::clear_() {
  pins_.clear();
  bytes_ = trimmed_ = 0;
  device_ = nullptr;
  several_ = false;
}

// ---- the op boundary

void Engine::enter(Frame& frame, const Use* uses, std::size_t count, Overwritten* old,
                   const char* op, int device) {
  Device* const part = part_of_(&frame, count, device);
  Held held(*this, part, &frame);
  maybe_trim_(&frame);
  const std::size_t first = frame.pins_.size();
  // Two passes: paging one operand in must not push another one of the same op out. Mostly all are
  // there, and the first is enough.
  if (count == 0) return;
  OpUse first_use;  // of most ops there are no others
  std::vector<OpUse> others;
  OpUse* of = &first_use;
  if (part != nullptr) {
    first_use.on = part;
    first_use.paged_in_before = part->stats.paged_in_bytes;
  }
  bool all_there = true;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) look_ahead_(part, uses[i + kAhead].key);
    Entry* entry = track_(uses[i].key, part);
    // Before the pin: if it throws, nothing is left pinned.
    frame.add_(entry, uses[i].stream);
    const Place place = begin_pin_(entry);
    const std::size_t bytes = entry->bytes;
    frame.bytes_ += bytes;
    const Access access = uses[i].access;
    const bool looks = access != Access::kHold && access != Access::kInPlace;
    if (looks && access != Access::kRead) entry->written = true;
    if (LMS_UNLIKELY(of->on != entry->on)) of = use_of_(*entry->on, &first_use, &others);
    if (entry->pins == 1 && looks && bytes >= min_bytes_) {
      ++of->count;
      of->bytes += bytes;
    }
    if (LMS_UNLIKELY(!looks || place != Place::kDevice)) {
      all_there = false;
      continue;
    }
    note_use_(entry);
    use_resident_(entry, access, uses[i].stream);
  }
  first_use.on->pins.note_peaks();
  for (const OpUse& use : others) use.on->pins.note_peaks();
  if (LMS_UNLIKELY(!all_there)) {
    held.widen();
    first_use.paged_in_before = first_use.on->stats.paged_in_bytes;
    bring_in_operands_(&frame.pins_[first], uses, count, old);
  }
  tell_use_(first_use, op);
  for (const OpUse& use : others) tell_use_(use, op);
}

Engine::OpUse* Engine::use_of_(Device& on, OpUse* first, std::vector<OpUse>* others) {
  if (first->on == &on) return first;
  OpUse* use = first;
  if (first->on != nullptr) {
    const auto other = std::find_if(others->begin(), others->end(),
                                    [&on](const OpUse& one) { return one.on == &on; });
    if (other != others->end()) return &*other;
    others->emplace_back();
    use = &others->back();
  }
  use->on = &on;
  use->paged_in_before = on.stats.paged_in_bytes;
  return use;
}

LMS_ALWAYS_INLINE void Engine::tell_use_(const OpUse& use, const char* op) {
  Device& on = *use.on;
  on.stats.used += static_cast<std::int64_t>(use.count);
  on.stats.used_bytes += static_cast<std::int64_t>(use.bytes);
  const auto brought = static_cast<std::size_t>(on.stats.paged_in_bytes - use.paged_in_before);
  if (!chaos_ && on.watch.op(use.count, use.bytes, brought, op)) ++thrashing_;
}

// The op does not run when a page-in fails, so bytes may stay behind only once none can: at the
// last page-in. What is overwritten comes last, and all of it but the last with its bytes.
void Engine::bring_in_operands_(const Frame::Pin* pins, const Use* uses, std::size_t count,
                                Overwritten* old) {
  std::size_t last = count;
  for (std::size_t i = 0; i < count; ++i) {
    if (uses[i].access == Access::kHold) continue;
    if (uses[i].access == Access::kInPlace) {
      pins[i].entry->in_place = true;
      continue;
    }
    note_use_(pins[i].entry);
    if (uses[i].access == Access::kOverwrite && old != nullptr) {
      if (last != count) bring_in_(pins[last].entry, Access::kWrite, uses[last].stream);
      last = i;
    } else {
      bring_in_(pins[i].entry, uses[i].access, uses[i].stream);
    }
  }
  if (last == count) return;
  bring_in_(pins[last].entry, Access::kOverwrite, uses[last].stream, Reclaim::kAllowed, old);
}

bool Engine::tell_thrashing(int* device, Traffic* traffic) {
  const EngineLock lock(mutex_);
  for (auto& on : devices_) {
    *device = on->index;
    if (!on->watch.tell(traffic)) continue;
    --thrashing_;
    return true;
  }
  return false;
}

void Engine::overwrote(Overwritten* old) {
  const EngineLock lock(mutex_);
  host_.free(old->range, old->arrival);
  *old = Overwritten();
}

void Engine::restore(Overwritten* old) {
  const EngineLock lock(mutex_);
  const Overwritten from = *old;
  *old = Overwritten();
  Entry* entry = find_(from.key);  // pinned by the op
  const Extent now = backend_.locate(from.key);
  FencePtr arrival = from.arrival;
  if (entry != nullptr && now.place == Place::kDevice && now.ptr == from.extent.ptr) {
    try {
      backend_.refill(from.key, from.range, from.stream, &arrival);
    } catch (...) {
      host_.free(from.range, from.arrival);
      throw;
    }
    drop_copy_(entry);
    entry->streams.assign({from.stream, nullptr});
    entry->arrival = arrival;
    EngineStats& stats = stats_of_(now.device);
    const auto bytes = static_cast<std::int64_t>(now.bytes);
    --stats.overwrites;
    stats.overwrite_bytes -= bytes;
    ++stats.paged_in;
    stats.paged_in_bytes += bytes;
  }
  host_.free(from.range, arrival);
}

void Engine::leave(Frame& frame, const Use* made, std::size_t count, int device) {
  Device* const part = part_of_(&frame, count, device);
  const Held held(*this, part, &frame);
  for (std::size_t i = 0; i < count; ++i) {
    try {
      pin_made_(&frame, made[i].key, made[i].stream, part);
    } catch (...) {  // frames are left in destructors; the first op that uses it makes it known
    }
  }
  count_op_(frame, part);
  // All that the op has queued on a stream is over when the mark is, so it is the end of each use
  // there. What is below the minimum size moves so rarely that no mark is set for it.
  Device* marked = nullptr;  // a device, and a stream of it that its mark is on
  Stream stream = nullptr;
  for (const Frame::Pin& pin : frame.pins_) {
    Entry* entry = pin.entry;
    if (LMS_UNLIKELY(entry->bytes < min_bytes_)) {
      forget_last_uses_(entry);
    } else if (LMS_LIKELY(!entry->dead)) {
      if (marked != entry->on || pin.stream != stream) {
        marked = entry->on;
        stream = pin.stream;
        mark_(marked->index, stream, frame.bytes_, &marked->mark);
      }
      if (StreamUse* use = entry->streams.find(stream)) {
        if (use->last != marked->mark) use->last = marked->mark;
        use->unmarked = !marked->mark;
      }
    }
    end_pin_(entry, frame.lane_);
  }
  Device* const last = frame.device_;
  frame.clear_();
  if (last == nullptr) return;
  look_for_dead_copies_(*last);
  if (chaos_ && held.is_whole()) {
    try {
      evict_all(last->index, Sizes::kAny);
    } catch (...) {  // frames are left in destructors; what did not move stays as it was
    }
  }
  maybe_purge_(*last);
}

// On each device that it has used.
inline void Engine::count_op_(const Frame& frame, Device* part) {
  const auto count = [&frame](Device& on) {
    LaneTime& lane = on.lanes[frame.lane_];
    ++on.clock;
    ++lane.ops;
    if (lane.open || frame.lane_ == 0) return;
    lane.open = true;
    ++on.open_lanes;
  };
  if (part != nullptr) return count(*part);
  for (auto& on : devices_) {
    const bool used =
        std::any_of(frame.pins_.begin(), frame.pins_.end(),
                    [&on](const Frame::Pin& pin) { return pin.entry->on == on.get(); });
    if (used || frame.empty()) count(*on);
  }
}

void Engine::note(Frame* frame, Key key, Stream stream, Lane lane, int device) {
  Device* const part = part_of_(frame, 1, device);
  const Held held(*this, part, frame);
  if (frame != nullptr) {
    pin_made_(frame, key, stream, part);
  } else {
    note_unpinned_(key, stream, lane, part);
  }
}

void Engine::pin_made_(Frame* frame, Key key, Stream stream, Device* part) {
  Entry* entry = track_(key, part);
  maybe_trim_(frame);
  frame->add_(entry, stream);
  pin_(entry);
  frame->bytes_ += entry->bytes;
  used_at_once_(entry, stream);
}

void Engine::note_unpinned_(Key key, Stream stream, Lane lane, Device* part) {
  Entry* entry = track_(key, part);
  found_at_(entry, backend_.locate(key));
  used_at_once_(entry, stream);
  forget_last_uses_(entry);
  if (entry->pins == 0) {
    size_(entry, backend_.locate(key).bytes);  // the op may have given it more
    push_idle_(entry, lane);
  }
  maybe_purge_(*entry->on);  // no op may ever be over
}

// What makes a storage uses it. The first stream to do so is the one that it is made for.
void Engine::used_at_once_(Entry* entry, Stream stream) {
  if (entry->streams.empty()) entry->streams.add({stream, nullptr});
  use_on_(entry, stream);
  note_use_(entry);
}

// Null, so that all that is queued is waited for, where it cannot be set: frames are left in
// destructors.
void Engine::mark_(int device, Stream stream, std::size_t bytes, MarkPtr* mark) {
  try {
    backend_.mark(device, stream, bytes, mark);
  } catch (...) {
    mark->reset();
  }
}

// Somebody used it of whom no op tells when that is over.
inline void Engine::forget_last_uses_(Entry* entry) {
  for (StreamUse& use : entry->streams) {
    use.last.reset();
    use.unmarked = false;
  }
}

// Marks cost every op, so none is set before they are needed. Then one on each stream is after all
// uses that have ended there.
void Engine::begin_to_move_() {
  if (has_moved_) return;
  has_moved_ = true;
  backend_.begin_to_move();
  for (auto& on : devices_) {
    std::map<Stream, MarkPtr> marks;
    for (const auto& known : on->entries) {
      for (StreamUse& use : known.second->streams) {
        if (!use.unmarked) continue;
        auto found = marks.find(use.stream);
        if (found == marks.end()) {
          found = marks.emplace(use.stream, nullptr).first;
          mark_(on->index, use.stream, kAnyBytes, &found->second);
        }
        use.last = found->second;
        use.unmarked = false;
      }
    }
  }
}

// An op that runs others for long, as one written in Python may, pins everything once, and nothing
// that has died.
inline void Engine::maybe_trim_(Frame* frame) {
  if (LMS_UNLIKELY(frame->pins_.size() > 2 * frame->trimmed_ + kPinsBeforeTrim)) trim_(frame);
}

void Engine::trim_(Frame* frame) {
  auto& pins = frame->pins_;
  std::set<std::pair<Entry*, Stream>> seen;
  auto kept = pins.begin();
  for (const Frame::Pin& pin : pins) {
    if (!seen.insert({pin.entry, pin.stream}).second) {
      --pin.entry->pins;  // the first one is kept
    } else {
      *kept++ = pin;
    }
  }
  pins.erase(kept, pins.end());
  pins.erase(std::remove_if(pins.begin(), pins.end(),
                            [this](const Frame::Pin& pin) {
                              Entry* entry = pin.entry;
                              const bool known = !entry->dead;
                              if (entry->pins > 1 || (known && !backend_.dead(entry->key))) {
                                return false;
                              }
                              unpin_(entry);
                              if (known) forget_(entry);
                              return true;
                            }),
             pins.end());
  frame->trimmed_ = pins.size();
}

Lane Engine::open_lane() {
  const EngineLock lock(mutex_);
  if (!closed_lanes_.empty()) {
    const Lane lane = closed_lanes_.back();
    closed_lanes_.pop_back();
    return lane;
  }
  for (auto& on : devices_) on->lanes.emplace_back();
  return static_cast<Lane>(lane_count_++);
}

void Engine::close_lane(Frame& frame) {
  const EngineLock lock(mutex_);
  const Lane lane = std::exchange(frame.lane_, 0);
  for (auto& on : devices_) {
    if (!on->lanes[lane].open) continue;
    on->lanes[lane].open = false;
    --on->open_lanes;
  }
  mutex_.disown_parts();  // the frame is about to go
  closed_lanes_.push_back(lane);
}

bool Engine::page_in(Key key, Stream stream, Reclaim reclaim) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr || !backend_.acquire(key)) return false;
  const Place place = backend_.locate(key).place;
  if (place != Place::kHost) return place == Place::kDevice;
  pin_(entry);
  bool arrived = false;
  try {
    arrived = bring_in_(entry, Access::kRead, stream, reclaim);
  } catch (...) {
    unpin_(entry);
    throw;
  }
  unpin_(entry);
  return arrived;
}

// ---- pins and exclusions by the user

void Engine::pin(Key key, Stream stream) {
  const EngineLock lock(mutex_);
  Entry* entry = track_(key);
  pin_(entry);
  entry->written = true;
  try {
    // Whoever pins may write through the pointer, and the barrier is not armed meanwhile.
    bring_in_(entry, Access::kWrite, stream);
  } catch (...) {
    unpin_(entry);
    throw;
  }
  ++entry->held;
}

void Engine::unpin(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr || entry->held == 0) return;
  --entry->held;
  forget_last_uses_(entry);
  unpin_(entry);
}

void Engine::expose(Key key, Stream stream) { keep_resident_(key, stream, &Entry::exposed); }

void Engine::unexpose(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr) return;
  entry->exposed = false;
  forget_last_uses_(entry);
  tell_candidate_(entry);
}

void Engine::exclude(Key key, Stream stream) { keep_resident_(key, stream, &Entry::excluded); }

void Engine::include(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr) return;
  entry->excluded = false;
  tell_candidate_(entry);
}

void Engine::keep_resident_(Key key, Stream stream, bool Entry::* mark) {
  const EngineLock lock(mutex_);
  pin(key, stream);
  Entry* entry = find_(key);
  entry->*mark = true;
  unpin(key);
  maybe_purge_(*entry->on);  // no op may ever be over
}

bool Engine::exposed(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  return entry != nullptr && entry->exposed;
}

bool Engine::excluded(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  return entry != nullptr && entry->excluded;
}

// ---- eviction

// In ops of the lane that used it last. A lane that does not go on, or hardly, would keep what it
// used young for ever: there the ops of all count, as if all lanes were as fast.
std::uint64_t Engine::age_(const Entry* entry) const {
  const Device& on = *entry->on;
  const std::uint64_t own = on.lanes[entry->last_use.lane].ops - entry->last_use.op;
  const std::uint64_t all = on.clock - entry->last_clock;
  return std::max(own, all / std::max<std::size_t>(on.open_lanes, 1));
}

// What is too small moves so rarely that its rhythm is not worth the memory.
LMS_ALWAYS_INLINE void Engine::note_use_(Entry* entry) {
  if (LMS_UNLIKELY(entry->bytes < min_bytes_)) return;
  Device& on = *entry->on;
  const Rhythm::Said said = entry->rhythm.use(on.clock);
  if (said == Rhythm::Said::kRight) ++on.stats.predicted;
  if (said == Rhythm::Said::kWrong) ++on.stats.mispredicted;
}

// Of those whose next use is known, the age that each would have if the one used latest from now
// on had been used first: what is used in a cycle would else leave just before it is used. Against
// the others, of which the future is as long as the past, they stand as before.
std::vector<Engine::Age> Engine::ages_(const std::vector<Entry*>& entries) const {
  std::vector<Age> ages;
  std::vector<std::uint64_t> known_ages;
  std::vector<std::pair<std::uint64_t, std::size_t>> known;  // until the next use, whose
  ages.reserve(entries.size());
  for (const Entry* entry : entries) {
    const std::uint64_t age = age_(entry), until = entry->rhythm.until_next(entry->on->clock);
    if (until != Rhythm::kUnknown) {
      known.emplace_back(until, ages.size());
      known_ages.push_back(age);
    }
    ages.push_back({age, until == Rhythm::kUnknown ? age : until});
  }
  std::sort(known.begin(), known.end());
  std::sort(known_ages.begin(), known_ages.end());
  for (std::size_t i = 0; i < known.size(); ++i) ages[known[i].second].age = known_ages[i];
  return ages;
}

std::vector<Candidate> Engine::candidates(int device, Sizes sizes, const Cost& cost) {
  const EngineLock lock(mutex_);
  std::vector<Candidate> result;
  const std::vector<Entry*> idle = idle_on_(on_(device), sizes);
  const std::vector<Age> ages = ages_(idle);
  std::uint64_t oldest = 0;
  for (const Age& age : ages) oldest = std::max(oldest, age.age);
  std::vector<Eviction> evictions;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < idle.size(); ++i) {
    Entry* entry = idle[i];
    if (!evictable_(entry) || !backend_.acquire(entry->key)) continue;
    const Extent extent = backend_.locate(entry->key);
    if (extent.place != Place::kDevice || extent.device != device || extent.bytes == 0) continue;
    bytes += extent.bytes;
    evictions.push_back({extent.bytes, static_cast<bool>(entry->copy), ages[i].age, oldest, 0,
                         ages[i].until, last_mark(entry->streams)});
    result.push_back({entry->key, extent, 0});
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    evictions[i].candidates = bytes;
    result[i].cost = cost.evict(evictions[i]);
  }
  return result;
}

bool Engine::may_evict_early(int device) {
  const EngineLock lock(mutex_);
  return on_(device).link.is_worth_more();
}

void Engine::evicted_early(int device, std::size_t bytes) {
  const EngineLock lock(mutex_);
  Device& on = on_(device);
  on.link.evicted_early(bytes, on.clock);
}

bool Engine::evict(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr || entry->pins > 0 || !evictable_(entry)) return false;
  if (!backend_.acquire(key)) return false;
  const Extent extent = backend_.locate(key);
  return extent.place == Place::kDevice && extent.bytes > 0 && evict_(entry, extent);
}

std::size_t Engine::evict_all(int device, Sizes sizes) {
  const EngineLock lock(mutex_);
  std::size_t bytes = 0;
  for (const Candidate& candidate : candidates(device, sizes)) {
    if (evict(candidate.key)) bytes += candidate.extent.bytes;
  }
  return bytes;
}

std::size_t Engine::page_in_all(Stream (*stream_of)(int device)) {
  const EngineLock lock(mutex_);
  std::vector<Entry*> out;
  for (const Key key : all_out()) {
    Entry* entry = find_(key);
    if (entry->pins == 0) out.push_back(entry);
  }
  for (Entry* entry : out) {
    pin_(entry);  // the page-in of one must not evict another
    try {
      bring_in_(entry, Access::kWrite, stream_of(entry->on->index));
    } catch (...) {  // it stays out
    }
  }
  for (Entry* entry : out) unpin_(entry);
  return all_out().size();  // counted now: what was resident may have made way
}

std::vector<Key> Engine::all_out() {
  const EngineLock lock(mutex_);
  std::vector<Key> out;
  for (auto& on : devices_) {
    std::vector<Entry*> its;
    for (auto& item : on->entries) {
      if (!backend_.acquire(item.first)) continue;
      if (backend_.locate(item.first).place != Place::kHost) continue;
      if (find_(item.first) == item.second) its.push_back(item.second);
    }
    // Not as the table has them, by their addresses, which differ from run to run.
    std::sort(its.begin(), its.end(),
              [](const Entry* a, const Entry* b) { return a->order > b->order; });
    for (const Entry* entry : its) out.push_back(entry->key);
  }
  return out;
}

void Engine::wait_for_copies() {
  const EngineLock lock(mutex_);
  backend_.finish_owed();
  for (auto& on : devices_) {
    for (auto& item : on->entries) {
      if (!item.second->arrival) continue;
      item.second->arrival->wait();
      item.second->arrival.reset();
    }
  }
}

std::vector<FencePtr> Engine::before_use(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr) return {};
  std::vector<FencePtr> all(entry->settled.begin(), entry->settled.end());
  if (entry->arrival) all.push_back(entry->arrival);
  return all;
}

bool Engine::evictable_(const Entry* entry) const {
  return entry->pins == 0 && !entry->exposed && !entry->excluded;
}

bool Engine::evict_(Entry* entry, const Extent& extent) {
  if (!backend_.movable(extent, entry->streams)) return false;
  disarm_(entry);
  if (entry->ptr != extent.ptr) forget_last_uses_(entry);  // they are of other memory
  if (entry->copy && (entry->copy_of != extent.ptr || entry->copy_bytes != extent.bytes)) {
    drop_copy_(entry);
  }
  const bool clean = static_cast<bool>(entry->copy);
  HostRange range = entry->copy;
  if (!clean) {
    range = host_room_(extent.bytes, extent.device);
    stats_of_(extent.device).host_short = !range;
    if (!range) {
      ++stats_of_(extent.device).host_refused;
      return false;
    }
  }
  try {
    begin_to_move_();
    backend_.page_out(entry->key, extent, range, !clean, entry->streams);
  } catch (...) {
    // The barrier is off, so from now on neither a copy nor the last uses can be trusted.
    forget_last_uses_(entry);
    if (clean) {
      drop_copy_(entry);
    } else {
      host_.free(range, nullptr);
    }
    throw;
  }
  if (clean) give_copy_(entry);
  idleness_over_(entry, /*evicted=*/true);
  entry->streams.clear();
  entry->ptr = nullptr;
  entry->arrival.reset();
  entry->settled = Marks();
  unlink_(entry);
  EngineStats& stats = stats_of_(extent.device);
  const auto bytes = static_cast<std::int64_t>(extent.bytes);
  ++stats.reclaimed;
  stats.reclaimed_bytes += bytes;
  if (clean) {
    ++stats.clean_evictions;
    stats.clean_bytes += bytes;
  } else {
    ++stats.paged_out;
    stats.paged_out_bytes += bytes;
    Device& on = on_(extent.device);
    on.link.copied_out(extent.bytes, on.clock);
  }
  return true;
}

// What the predictor expects to be evicted. Only memory that nothing makes way for is taken.
void Engine::page_out_ahead_(Entry* entry) {
  ++entry->uses;
  entry->foreseen = true;
  if (entry->bytes < min_bytes_ || entry->copy || !evictable_(entry)) return;
  if (!predictor_->evicted({entry->bytes, entry->uses}) || !backend_.acquire(entry->key)) return;
  const Extent extent = backend_.locate(entry->key);
  if (extent.place != Place::kDevice || extent.bytes == 0) return;
  if (!backend_.movable(extent, entry->streams)) return;
  HostRange range;
  FencePtr copied;
  try {  // frames are left in destructors; it may be evicted as if nothing had been tried
    range = host_.allocate(extent.bytes, Growth::kNone, extent.device);
    if (!range) range = host_.allocate(extent.bytes, Growth::kAllowed, extent.device);
    if (range) {
      begin_to_move_();
      copied = backend_.page_out_ahead(entry->key, extent, range, entry->streams);
    }
  } catch (...) {
  }
  if (!copied) {
    if (range) host_.free(range, nullptr);
    return;
  }
  keep_copy_(entry, range, extent);
  entry->copied = std::move(copied);
  backend_.guard(entry->key);
  entry->guarded = true;
  EngineStats& stats = stats_of_(extent.device);
  ++stats.paged_out;
  stats.paged_out_bytes += static_cast<std::int64_t>(extent.bytes);
}

void Engine::idleness_over_(Entry* entry, bool evicted) {
  if (!entry->foreseen) return;
  entry->foreseen = false;
  predictor_->learn({entry->bytes, entry->uses}, evicted);
}

// False only when there was no free room, or it is read where it is.
bool Engine::bring_in_(Entry* entry, Access access, Stream stream, Reclaim reclaim,
                       Overwritten* old) {
  Extent extent = backend_.locate(entry->key);
  if (extent.place == Place::kHost) {
    if (entry->in_place) return false;
    const bool copy = access != Access::kOverwrite || old == nullptr;
    drop_copy_(entry);  // of a pointer it had before; waits for the arrival that is replaced now
    const HostRange range = backend_.page_in(entry->key, copy, stream, reclaim, &entry->arrival);
    if (!range) return false;
    EngineStats& stats = stats_of_(extent.device);
    const auto bytes = static_cast<std::int64_t>(extent.bytes);
    if (copy) {
      ++stats.paged_in;
      stats.paged_in_bytes += bytes;
      Device& on = on_(extent.device);
      on.link.copied_in(extent.bytes, on.clock);
    } else {
      ++stats.overwrites;
      stats.overwrite_bytes += bytes;
    }
    entry->streams.assign({stream, nullptr});
    entry->ptr = backend_.locate(entry->key).ptr;
    entry->settled = Marks();  // the page-in is after all that the memory owed
    if (old != nullptr) {
      *old = {entry->key, backend_.locate(entry->key), range, stream, entry->arrival};
    } else if (access == Access::kRead && keep_clean_) {
      keep_copy_(entry, range, backend_.locate(entry->key));
    } else {
      host_.free(range, entry->arrival);
    }
    return true;
  }
  if (extent.place == Place::kDevice) use_resident_(entry, access, stream);
  return true;
}

inline void Engine::use_resident_(Entry* entry, Access access, Stream stream) {
  use_on_(entry, stream);
  if (access == Access::kRead) return;
  if (LMS_UNLIKELY(entry->copied)) backend_.join(stream, entry->copied);
  drop_copy_(entry);
}

// A stream's first use of the storage's memory comes after the page-in, and after the copies of
// whose memory it was. Its last use there stays what it was until the op is over, or who else uses
// it lets it go.
inline void Engine::use_on_(Entry* entry, Stream stream) {
  StreamUse* use = entry->streams.find(stream);
  if (LMS_UNLIKELY(use == nullptr || use->unordered)) order_use_(entry, stream, use);
}

void Engine::order_use_(Entry* entry, Stream stream, StreamUse* use) {
  if (use == nullptr) use = entry->streams.add({stream, nullptr, /*unordered=*/true});
  if (entry->arrival) backend_.join(stream, entry->arrival);
  for (const MarkPtr& copy : entry->settled) backend_.join(stream, copy);
  use->unordered = false;
}

// Where that is not where it was, it is new, or was given other memory by its user.
inline void Engine::found_at_(Entry* entry, const Extent& extent) {
  if (LMS_UNLIKELY(entry->ptr != extent.ptr)) moved_to_(entry, extent);
}

void Engine::moved_to_(Entry* entry, const Extent& extent) {
  entry->ptr = extent.ptr;
  forget_last_uses_(entry);
  for (StreamUse& use : entry->streams) use.unordered = true;
  entry->settled = backend_.owed_to_others(extent);
}

// ---- host copies

// More memory is taken from the machine only when no copy is kept in vain, and copies that only
// save work make way when there is no more.
HostRange Engine::host_room_(std::size_t bytes, int device) {
  HostRange range = host_.allocate(bytes, Growth::kNone, device);
  if (!range && drop_useless_copies_()) range = host_.allocate(bytes, Growth::kNone, device);
  if (!range && host_.may_grow(bytes)) backend_.before_host_growth(bytes, device);
  if (!range) range = host_.allocate(bytes, Growth::kAllowed, device);
  if (!range && drop_copies_(bytes) > 0) range = host_.allocate(bytes, Growth::kAllowed, device);
  return range;
}

void Engine::keep_copy_(Entry* entry, HostRange range, const Extent& of) {
  entry->copy = range;
  entry->copy_of = of.ptr;
  entry->copy_bytes = of.bytes;
  entry->on->clean.put(&entry->clean);
}

HostRange Engine::give_copy_(Entry* entry) {
  const HostRange range = entry->copy;
  entry->copy = HostRange();
  entry->copy_of = nullptr;
  entry->copied.reset();
  List::take(&entry->clean);
  return range;
}

inline void Engine::drop_copy_(Entry* entry) {
  if (entry->copy) free_copy_(entry);
}

void Engine::free_copy_(Entry* entry) {
  const FencePtr last = entry->copied ? entry->copied : entry->arrival;
  host_.free(give_copy_(entry), last);
}

// Takes the write barrier off. A copy that may be stale goes with it.
void Engine::disarm_(Entry* entry) {
  if (!entry->guarded) return;
  entry->guarded = false;
  if (backend_.unguard(entry->key)) return;
  forget_last_uses_(entry);
  if (!entry->copy) return;
  const Extent now = backend_.locate(entry->key);
  // Else it was given other memory, or none.
  const bool written = now.ptr == entry->copy_of && now.bytes == entry->copy_bytes;
  if (written) ++entry->on->stats.silent_writes;
  drop_copy_(entry);
}

// Drops the copies of storages that have died or changed since. Whether there were any.
bool Engine::drop_useless_copies_() {
  bool any = false;
  for (auto& on : devices_) {
    for (Link* link = on->clean.first(); link != nullptr;) {
      Entry* entry = link->entry;
      link = on->clean.after(link);
      if (entry->pins > 0) continue;
      if (backend_.dead(entry->key)) {
        forget_(entry);
        any = true;
      } else if (entry->guarded && backend_.acquire(entry->key)) {
        disarm_(entry);
        if (entry->copy) {
          backend_.guard(entry->key);
          entry->guarded = true;
        } else {
          any = true;
        }
      }
    }
  }
  return any;
}

// Copies of resident storages only save work: they make way when host memory is at its limit.
// Returns bytes.
std::size_t Engine::drop_copies_(std::size_t bytes) {
  std::size_t dropped = 0;
  for (auto& on : devices_) {
    // The ranges need not be neighbours: go on well past the size that is asked for.
    for (Link* link = on->clean.first(); link != nullptr && dropped < 4 * bytes;) {
      Entry* entry = link->entry;
      link = on->clean.after(link);
      dropped += entry->copy.bytes;
      if (entry->guarded && backend_.acquire(entry->key)) {
        entry->guarded = false;
        backend_.unguard(entry->key);
      }
      drop_copy_(entry);
    }
  }
  return dropped;
}

inline void Engine::look_for_dead_copies_(Device& on) {
  for (int i = 0; i < kCopiesLookedAt; ++i) {
    Link* link = on.clean.first();
    if (link == nullptr) return;
    if (link->entry->pins == 0 && backend_.dead(link->entry->key)) {
      forget_(link->entry);
    } else {
      on.clean.put(link);
    }
  }
}

// ---- the table

// Null: it has not been seen.
inline Engine::Device* Engine::known_(int device) const {
  const auto index = static_cast<std::size_t>(device);
  return index < kMostDevices ? numbered_[index].load(std::memory_order_acquire) : nullptr;
}

// With the whole of the lock, where the device has not been seen.
Engine::Device& Engine::on_(int device) {
  const int index = std::max(device, 0);  // -1: of no device
  if (Device* known = known_(index)) return *known;
  std::atomic<Device*>& numbered = numbered_.at(static_cast<std::size_t>(index));
  devices_.emplace_back(new Device(index, lane_count_, size_classes_.size() + 1));
  mutex_.add(&devices_.back()->part);
  numbered.store(devices_.back().get(), std::memory_order_release);
  return *devices_.back();
}

inline Engine::Entry*& Engine::recent_(Device& on, Key key) {
  const auto address = reinterpret_cast<std::uintptr_t>(key);
  return on.found[(address >> 6 ^ address >> 16) % Device::kFound];
}

inline Engine::Entry* Engine::find_on_(Device& on, Key key) {
  Entry*& recent = recent_(on, key);
  if (LMS_LIKELY(recent != nullptr && recent->key == key)) return recent;
  const auto it = on.entries.find(key);
  return it == on.entries.end() ? nullptr : recent = it->second;
}

// With the whole of the lock. A storage that was given memory of another device has an entry for
// each: what the user holds goes to where it is now, and what ops have pinned stays pinned.
Engine::Entry* Engine::find_(Key key) {
  Entry* found = nullptr;
  for (auto& on : devices_) {
    Entry* entry = find_on_(*on, key);
    if (entry == nullptr) continue;
    if (found == nullptr) {
      found = entry;
      continue;
    }
    Entry* old = entry;
    if (backend_.locate(key).device == on->index) std::swap(found, old);
    hand_over_(old, found);
    if (old->pins > 0 && evictable_(found)) found = old;
  }
  return found;
}

void Engine::hand_over_(Entry* from, Entry* to) {
  for (; from->held > 0; --from->held) {
    pin_(to);
    ++to->held;
    forget_last_uses_(from);
    unpin_(from);
  }
  to->exposed = to->exposed || from->exposed;
  to->excluded = to->excluded || from->excluded;
  from->exposed = from->excluded = false;
  tell_candidate_(from);
  tell_candidate_(to);
}

void Engine::erase_(Entry* entry) {
  Entry*& recent = recent_(*entry->on, entry->key);
  if (recent == entry) recent = nullptr;
  entry->on->entries.erase(entry->key);
}

// That of an op's use which comes soon, on its way into the cache.
inline void Engine::look_ahead_(Device* on, Key key) {
  if (on == nullptr) return;
  const auto* entry = reinterpret_cast<const char*>(recent_(*on, key));
  if (entry == nullptr) return;
  __builtin_prefetch(entry);
  __builtin_prefetch(entry + 64);
  __builtin_prefetch(entry + 128);
}

// `part`: the device that it is of, where no more is held of the lock.
inline Engine::Entry* Engine::track_(Key key, Device* part) {
  Entry* entry = part != nullptr ? find_on_(*part, key) : find_(key);
  if (entry != nullptr) return entry;
  return new_entry_(part != nullptr ? *part : on_(backend_.locate(key).device), key);
}

Engine::Entry* Engine::new_entry_(Device& on, Key key) {
  Entry* entry = new Entry;
  entry->key = key;
  entry->on = &on;
  const Extent extent = backend_.locate(key);
  size_(entry, extent.bytes);
  entry->last_use.op = on.lanes[0].ops;
  entry->last_clock = on.clock;
  backend_.retain(key);
  on.entries.emplace(key, entry);
  if (extent.place == Place::kDevice) push_idle_(entry, 0);
  return entry;
}

void Engine::forget_(Entry* entry) {
  idleness_over_(entry, /*evicted=*/false);
  drop_copy_(entry);
  unlink_(entry);
  backend_.release(entry->key);
  erase_(entry);
  delete entry;
}

void Engine::purge() {
  const EngineLock lock(mutex_);
  for (auto& on : devices_) purge_(*on);
}

void Engine::forget(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr) return;
  if (entry->pins == 0) return forget_(entry);
  drop_copy_(entry);
  unlink_(entry);
  backend_.release(key);
  erase_(entry);
  entry->dead = true;
}

bool Engine::pinned(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  return entry != nullptr && entry->pins > 0;
}

std::size_t Engine::bytes_of(const Frame& frame) {
  const EngineLock lock(mutex_);
  std::size_t bytes = 0;
  std::unordered_set<const Entry*> seen;
  for (const Frame::Pin& pin : frame.pins_) {
    if (seen.insert(pin.entry).second) bytes += pin.entry->bytes;
  }
  return bytes;
}

void Engine::written(Key key) {
  const EngineLock lock(mutex_);
  Entry* entry = find_(key);
  if (entry == nullptr) return;
  forget_last_uses_(entry);
  drop_copy_(entry);
}

void Engine::purge_(Device& on) {
  std::vector<Entry*> dead;
  for (auto& item : on.entries) {
    if (item.second->pins == 0 && backend_.dead(item.first)) dead.push_back(item.second);
  }
  for (Entry* entry : dead) forget_(entry);
  on.tracked_at_purge = on.entries.size();
}

inline void Engine::maybe_purge_(Device& on) {
  // Amortised: as much work as entries were added since the last time.
  if (on.entries.size() > 2 * on.tracked_at_purge + 256) purge_(on);
}

inline void Engine::size_(Entry* entry, std::size_t bytes) {
  if (LMS_UNLIKELY(entry->bytes != bytes)) resize_(entry, bytes);
}

void Engine::resize_(Entry* entry, std::size_t bytes) {
  entry->bytes = bytes;
  entry->size_class = 0;
  for (const std::size_t most : size_classes_) entry->size_class += bytes > most ? 1 : 0;
}

inline void Engine::push_idle_(Entry* entry, Lane lane) {
  Device& on = *entry->on;
  entry->last_use = {lane, on.lanes[lane].ops};
  entry->last_clock = on.clock;
  entry->order = ++on.order;
  link_idle_(entry);
  tell_candidate_(entry);
}

inline void Engine::link_idle_(Entry* entry) {
  IdleLists& lists = entry->on->idle;
  (entry->bytes < min_bytes_ ? lists.small : lists.large).put(&entry->idle);
}

void Engine::unlink_(Entry* entry) {
  if (entry->idle.next == nullptr) return;
  List::take(&entry->idle);
  tell_candidate_(entry);
}

// Least recently used first.
std::vector<Engine::Entry*> Engine::idle_on_(Device& on, Sizes sizes) {
  std::vector<Entry*> entries;
  const auto add = [&entries](List& list) {
    for (Link* link = list.first(); link != nullptr; link = list.after(link)) {
      if (link->entry->pins == 0) entries.push_back(link->entry);
    }
  };
  IdleLists& lists = on.idle;
  add(lists.large);
  if (sizes == Sizes::kFromMinimum) return entries;
  const auto large = static_cast<std::ptrdiff_t>(entries.size());
  add(lists.small);
  std::inplace_merge(entries.begin(), entries.begin() + large, entries.end(),
                     [](const Entry* a, const Entry* b) { return a->order < b->order; });
  return entries;
}

inline void Engine::tell_candidate_(Entry* entry) {
  if (LMS_LIKELY(!tells_candidates_)) return;
  backend_.set_candidate(entry->key, entry->idle.next != nullptr && evictable_(entry));
}

void Engine::pin_(Entry* entry) {
  begin_pin_(entry);
  entry->on->pins.note_peaks();
}

// Where it is. The peaks are left to the caller.
LMS_ALWAYS_INLINE Place Engine::begin_pin_(Entry* entry) {
  const bool first = LMS_LIKELY(entry->pins++ == 0);
  if (first) {
    if (LMS_UNLIKELY(entry->foreseen)) idleness_over_(entry, /*evicted=*/false);
    tell_candidate_(entry);
    // While an op runs its schema tells the writes; the barrier watches what no op boundary sees.
    if (LMS_UNLIKELY(entry->guarded)) disarm_(entry);
  }
  Place place = Place::kDevice;
  if (LMS_UNLIKELY(!backend_.is_resident_at(entry->key, entry->ptr, entry->bytes))) {
    const Extent extent = backend_.locate(entry->key);
    found_at_(entry, extent);
    if (first) size_(entry, extent.bytes);
    place = extent.place;
  }
  if (first) entry->on->pins.begin(entry->size_class, entry->bytes);
  return place;
}

void Engine::unpin_(Entry* entry, Lane lane) { end_pin_(entry, lane); }

// Each operand of each op comes by here.
LMS_ALWAYS_INLINE void Engine::end_pin_(Entry* entry, Lane lane) {
  if (LMS_UNLIKELY(--entry->pins > 0)) return;
  entry->in_place = false;
  entry->on->pins.end(entry->size_class, entry->bytes);
  if (LMS_UNLIKELY(entry->dead)) {
    delete entry;
    return;
  }
  if (LMS_UNLIKELY(entry->written &&
                   entry->bytes < min_bytes_)) {  // perhaps the op has given it more
    size_(entry, backend_.bytes_of(entry->key));
  }
  entry->written = false;
  if (entry->copy) watch_writes_(entry);
  push_idle_(entry, lane);
  if (LMS_UNLIKELY(predictor_ != nullptr)) page_out_ahead_(entry);
}

// Of one that no op uses any more.
void Engine::watch_writes_(Entry* entry) {
  if (backend_.acquire(entry->key)) {
    backend_.guard(entry->key);
    entry->guarded = true;
  } else {
    drop_copy_(entry);  // nothing would see a write
  }
}

void Engine::drop_copies() {
  const EngineLock lock(mutex_);
  drop_copies_(SIZE_MAX / 4);
}

// ---- settings and statistics

void Engine::set_min_bytes(std::size_t bytes) {
  const EngineLock lock(mutex_);
  min_bytes_ = bytes;
  for (auto& on : devices_) {
    for (Entry* entry : idle_on_(*on, Sizes::kAny)) link_idle_(entry);
  }
}

std::size_t Engine::min_bytes() {
  const EngineLock lock(mutex_);
  return min_bytes_;
}

void Engine::set_keep_clean(bool keep) {
  const EngineLock lock(mutex_);
  keep_clean_ = keep;
}

Census Engine::census(int device) {
  const EngineLock lock(mutex_);
  Census census;
  for (auto& on : devices_) {
    purge_(*on);
    for (auto& item : on->entries) {
      if (find_(item.first) == item.second) count_(item.second, device, &census);
    }
  }
  return census;
}

void Engine::count_(Entry* entry, int device, Census* of) {
  Census& census = *of;
  if (!backend_.acquire(entry->key)) return;
  const Extent extent = backend_.locate(entry->key);
  if (extent.device != device || extent.place == Place::kForeign) return;
  ++census.tracked;
  if (extent.place == Place::kHost) {
    ++census.on_host;
    census.on_host_bytes += extent.bytes;
  } else if (entry->pins > 0) {
    ++census.pinned;
    census.pinned_bytes += extent.bytes;
    if (entry->held > 0) {
      ++census.held;
      census.held_bytes += extent.bytes;
    } else {
      census.largest_pinned = std::max(census.largest_pinned, extent.bytes);
    }
  } else if (entry->exposed) {
    ++census.exposed;
    census.exposed_bytes += extent.bytes;
  } else if (entry->excluded) {
    ++census.excluded;
    census.excluded_bytes += extent.bytes;
  } else if (!backend_.movable(extent, entry->streams)) {
    ++census.immovable;
    census.immovable_bytes += extent.bytes;
  } else if (extent.bytes < min_bytes_) {
    ++census.small;
    census.small_bytes += extent.bytes;
  } else {
    ++census.idle;
    census.idle_bytes += extent.bytes;
  }
}

EngineStats Engine::stats(int device) {
  const EngineLock lock(mutex_);
  const Device& on = on_(device);
  EngineStats stats = on.stats;
  stats.pinned = on.pins.of_all();
  for (std::size_t i = 0; i < on.pins.classes(); ++i) stats.by_size.push_back(on.pins.of(i));
  return stats;
}

void Engine::reset_peaks(int device) {
  const EngineLock lock(mutex_);
  on_(device).pins.reset_peaks();
}

void Engine::reset_accumulated(int device) {
  const EngineLock lock(mutex_);
  Device& on = on_(device);
  EngineStats fresh;
  fresh.host_short = on.stats.host_short;
  on.stats = fresh;
  on.pins.reset_accumulated();
}

}  // namespace lms
