// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

using namespace simcuda;

namespace simcuda {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;

// Copies that this thread issues are of an operator's, which has said what it uses.
thread_local bool t_in_op = false;

}  // namespace

Trace::Trace(int file, std::string path)
    : file_(file), path_(std::move(path)), process_(getpid()) {}

Trace::~Trace() {
  begin(kEnd);
  put(commands_);
  write();
  close(file_);
}

void Trace::put(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

void Trace::put_signed(int64_t value) {
  put((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
}

void Trace::put_name(const std::string& name) {
  auto [it, fresh] = names_.emplace(name, names_.size());
  put(it->second);
  if (!fresh) return;
  put(name.size());
  bytes_ += name;
}

void Trace::put_stream(const Stream& stream) {
  auto [it, fresh] = streams_.emplace(&stream, streams_seen_);
  if (fresh) streams_seen_++;
  put(static_cast<uint64_t>(stream.device));
  put(it->second);
}

// Each record begins with what it is and how much later it is than the one before.
void Trace::begin(Kind kind) {
  if (bytes_.size() > kBuffer) write();
  clock::Clock& clock = *state().clock;
  auto since = static_cast<uint64_t>(clock.now() - time_);
  time_ = clock.now();
  if (auto waited = clock.waited() - waited_) {
    waited_ = clock.waited();
    put(kWaited);
    put(since);
    put(static_cast<uint64_t>(waited));
    since = 0;
  }
  put(kind);
  put(since);
}

void Trace::write() {
  if (getpid() == process_ && !failed_) {  // a fork has what its parent will write
    for (size_t done = 0; done < bytes_.size();) {
      ssize_t more = ::write(file_, bytes_.data() + done, bytes_.size() - done);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) {
        fprintf(stderr, "simcuda: the trace %s cannot be written: %s; it is cut off there\n",
                path_.c_str(), strerror(errno));
        failed_ = true;
        break;
      }
      done += static_cast<size_t>(more);
    }
  }
  bytes_.clear();
}

const Trace::Ranges::value_type* Trace::range_of(const Ranges& ranges, const void* at) {
  auto address = reinterpret_cast<uintptr_t>(at);
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &*it : nullptr;
}

uint64_t Trace::allocation_of(const void* at) const {
  const auto* range = range_of(live_, at);
  return range ? range->second.number + 1 : 0;
}

void Trace::op(const char* name, const Stream& stream, const SimcudaUse* uses, size_t count,
               bool timed) {
  begin(kOp);
  put_name(name);
  put_stream(stream);
  put(timed);
  put(count);
  for (size_t i = 0; i < count; i++) {
    const SimcudaUse& use = uses[i];
    uint64_t place = allocation_of(use.data);
    bool fresh = use.storage >= places_.size();
    if (fresh) places_.resize(use.storage + 1, UINT64_MAX);
    fresh = places_[use.storage] == UINT64_MAX;
    bool moved = places_[use.storage] != place;
    put(use.storage << 4 | static_cast<uint64_t>(fresh) << 3 | static_cast<uint64_t>(moved) << 2 |
        static_cast<uint64_t>(use.access));
    if (fresh) put(use.bytes);
    if (moved) put(place);
    places_[use.storage] = place;
  }
  commands_ += timed;
}

void Trace::command(const Stream& stream, const Command& command) {
  begin(kCommand);
  put_name(command.name);
  put(static_cast<uint64_t>(command.unit));
  put_stream(stream);
  put(command.bytes);
  put(allocation_of(command.at));
  put(t_in_op);
  commands_++;
}

void Trace::issued(uint64_t number) { numbers_.emplace(number, commands_ - 1); }

void Trace::ran(uint64_t number, clock::Nanoseconds from, clock::Nanoseconds to) {
  auto it = numbers_.find(number);
  if (it == numbers_.end()) return;
  begin(kRan);
  put(it->second);
  put_signed(from - began_);
  put(static_cast<uint64_t>(to - from));
  began_ = from;
  numbers_.erase(it);
}

void Trace::allocated(uintptr_t at, size_t bytes, const Stream& stream) {
  begin(kAllocated);
  live_[at] = {allocations_++, bytes};
  put(bytes);
  put_stream(stream);
  const auto* segment = range_of(segments_live_, reinterpret_cast<void*>(at));
  put(segment ? segment->second.number + 1 : 0);
  put(segment ? at - segment->first : 0);
}

void Trace::freed(uintptr_t at) {
  auto it = live_.find(at);
  if (it == live_.end()) return;
  begin(kFreed);
  put(it->second.number);
  live_.erase(it);
}

void Trace::segment_made(int device, uintptr_t at, size_t bytes) {
  begin(kSegment);
  segments_live_[at] = {segments_++, bytes};
  put(static_cast<uint64_t>(device));
  put(bytes);
}

// Of what was mapped together a part can go.
void Trace::segment_gone(uintptr_t at, size_t bytes) {
  for (auto it = segments_live_.lower_bound(at);
       it != segments_live_.end() && it->first < at + bytes;) {
    begin(kSegmentGone);
    put(it->second.number);
    it = segments_live_.erase(it);
  }
}

void Trace::mark(const char* name) {
  begin(kMark);
  put_name(name);
}

}  // namespace simcuda

extern "C" {

int simcuda_trace_start(const char* path) {
  Lock lock(state().mutex);
  auto& g = state();
  int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (!dry() || file < 0) return -1;
  g.trace = std::make_unique<Trace>(file, path);
  g.clock->watch([](uint64_t number, clock::Nanoseconds begin, clock::Nanoseconds end) {
    if (state().trace) state().trace->ran(number, begin, end);
  });
  return 0;
}

void simcuda_trace_end() {
  Lock lock(state().mutex);
  if (!tracing()) return;
  drain_device(lock, -1);
  state().trace.reset();
}

int simcuda_tracing() { return tracing(); }

void simcuda_trace_op(void* handle, int device, const char* name, const SimcudaUse* uses,
                      size_t count) {
  Lock lock(state().mutex);
  if (tracing()) state().trace->op(name, resolve(handle, device), uses, count, false);
  t_in_op = true;
}

void simcuda_trace_op_end() { t_in_op = false; }

void simcuda_trace_memory(int event, int device, uintptr_t at, size_t bytes, void* handle) {
  Lock lock(state().mutex);
  if (!tracing()) return;
  Trace& trace = *state().trace;
  switch (event) {
    case SIMCUDA_ALLOCATED:
      return trace.allocated(at, bytes, resolve(handle, device));
    case SIMCUDA_FREED:
      return trace.freed(at);
    case SIMCUDA_SEGMENT:
      return trace.segment_made(device, at, bytes);
    case SIMCUDA_SEGMENT_GONE:
      return trace.segment_gone(at, bytes);
  }
}

void simcuda_trace_mark(const char* name) {
  Lock lock(state().mutex);
  if (tracing()) state().trace->mark(name);
}

}  // extern "C"
