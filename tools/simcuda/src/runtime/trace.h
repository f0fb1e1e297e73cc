// SPDX-License-Identifier: Apache-2.0
// What a dry run did, written to a file as it happens: docs/trace.md has the format. Nothing in it
// depends on where the host's memory lies, so that two runs of one program give the same bytes.
//
// Used with the state's mutex held.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "state.h"

namespace simcuda {

class Trace {
 public:
  // Goes on after the header that is in the file.
  Trace(int file, std::string path);
  ~Trace();  // the end of the trace

  // An operator; a `timed` one is the next command.
  void op(const char* name, const Stream& stream, const SimcudaUse* uses, size_t count, bool timed);
  // A copy, memset or kernel outside of operators: the next command.
  void command(const Stream& stream, const Command& command);
  // What the clock calls the command that was traced last; when it has run.
  void issued(uint64_t number);
  void ran(uint64_t number, clock::Nanoseconds begin, clock::Nanoseconds end);

  void allocated(uintptr_t at, size_t bytes, const Stream& stream);
  void freed(uintptr_t at);
  void segment_made(int device, uintptr_t at, size_t bytes);
  void segment_gone(uintptr_t at, size_t bytes);
  void mark(const char* name);
  void forget(const Stream& stream) { streams_.erase(&stream); }

 private:
  enum Kind {
    kEnd,
    kOp,
    kCommand,
    kRan,
    kWaited,
    kAllocated,
    kFreed,
    kSegment,
    kSegmentGone,
    kMark
  };
  struct Range {
    uint64_t number;
    size_t bytes;
  };
  using Ranges = std::map<uintptr_t, Range>;

  void begin(Kind kind);
  void put(uint64_t value);
  void put_signed(int64_t value);
  void put_name(const std::string& name);
  void put_stream(const Stream& stream);
  static const Ranges::value_type* range_of(const Ranges& ranges, const void* at);
  uint64_t allocation_of(const void* at) const;  // 0: none that is known, else its number + 1
  void write();

  int file_;
  std::string path_;
  bool failed_ = false;  // nothing is written after what could not be
  pid_t process_;
  std::string bytes_;
  clock::Nanoseconds time_ = 0, waited_ = 0, began_ = 0;
  uint64_t commands_ = 0, allocations_ = 0, segments_ = 0;
  std::unordered_map<uint64_t, uint64_t> numbers_;  // the clock's -> that of the command
  std::map<std::string, uint64_t> names_;
  std::map<const Stream*, uint64_t> streams_;
  uint64_t streams_seen_ = 0;
  std::vector<uint64_t> places_;  // of each storage
  Ranges live_, segments_live_;
};

}  // namespace simcuda
