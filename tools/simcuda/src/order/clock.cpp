// SPDX-License-Identifier: Apache-2.0
#include "clock.h"

#include <algorithm>

namespace simcuda::order {

bool Clock::knows(const Clock& other) const {
  for (Actor actor = 0; actor < other.counts_.size(); actor++) {
    if (of(actor) < other.counts_[actor]) return false;
  }
  return true;
}

void Clock::join(const Clock& other) {
  if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); i++) {
    counts_[i] = std::max(counts_[i], other.counts_[i]);
  }
}

uint64_t Clock::advance(Actor actor) {
  if (counts_.size() <= actor) counts_.resize(actor + 1);
  return ++counts_[actor];
}

Actor Clocks::add() {
  all_.emplace_back();
  return static_cast<Actor>(all_.size() - 1);
}

const Clock& Clocks::of(Actor actor) {
  Entry& entry = all_[actor];
  if (actor != kHost && entry.host_version != host_version_) {
    entry.clock.join(all_[kHost].clock);
    entry.host_version = host_version_;
  }
  return entry.clock;
}

Epoch Clocks::advance(Actor actor) {
  of(actor);
  if (actor == kHost) host_version_++;
  return {actor, all_[actor].clock.advance(actor)};
}

void Clocks::join(Actor actor, const Clock& other) {
  Clock& clock = all_[actor].clock;
  if (clock.knows(other)) return;
  clock.join(other);
  if (actor == kHost) host_version_++;
}

void Clocks::order(Actor first, Actor then) {
  if (first != then) join(then, of(first));
}

void Clocks::wait(Actor actor, const Snapshot& recorded) {
  if (recorded) join(actor, *recorded);
}

}  // namespace simcuda::order
