// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "types.h"

namespace lms {

// What device memory owes: work that must be over before its next owner uses it. Every block of an
// allocator carries it, free or in use, and so do its parts and what it is merged with. Who takes a
// block for an op makes the stream of its pool wait for the copies, and owes nothing; who takes it
// for a page-in makes that copy wait for all.
struct Ready {
  MarkPtr home;      // on the stream of its pool
  bool all = false;  // or all that is queued there, because nobody knows
  MarkPtr out, in;   // on the streams of the engine's copies
  // Number of the mark after its last use on the stream of its pool, whoever waits for that: what
  // went idle earlier can be written earlier.
  std::uint64_t idle_since = 0;

  bool owes_copies() const { return out != nullptr || in != nullptr; }
  bool copies_done() const { return (!out || out->done()) && (!in || in->done()); }

  void merge(const Ready& other) {
    all = all || other.all;
    idle_since = std::max(idle_since, other.idle_since);
    keep_later(&home, other.home);
    keep_later(&out, other.out);
    keep_later(&in, other.in);
  }

 private:
  static void keep_later(MarkPtr* mark, const MarkPtr& other) {
    if (other && (!*mark || other->number() > (*mark)->number())) *mark = other;
  }
};

}  // namespace lms
