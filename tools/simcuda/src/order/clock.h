// SPDX-License-Identifier: Apache-2.0
// What happened before what: one vector clock per stream, and one for the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace simcuda::order {

// A stream, or the host. All host threads are one: what one of them knows, all know.
using Actor = uint32_t;
constexpr Actor kHost = 0;

// The `count`th thing that an actor did.
struct Epoch {
  Actor actor;
  uint64_t count;
};

// How much of each actor's work is known to be done.
class Clock {
 public:
  uint64_t of(Actor actor) const { return actor < counts_.size() ? counts_[actor] : 0; }
  bool knows(const Epoch& epoch) const { return of(epoch.actor) >= epoch.count; }
  bool knows(const Clock& other) const;
  void join(const Clock& other);
  uint64_t advance(Actor actor);

 private:
  std::vector<uint64_t> counts_;
};

using Snapshot = std::shared_ptr<const Clock>;

// The clocks of all actors. What the host knows when it issues a command, the command's stream
// knows as well.
class Clocks {
 public:
  Clocks() : all_(1) {}
  Actor add();
  const Clock& of(Actor actor);
  // The actor does something: its place in the order.
  Epoch advance(Actor actor);
  // From now on, `then` comes after all that `first` has done.
  void order(Actor first, Actor then);
  Snapshot record(Actor actor) { return std::make_shared<const Clock>(of(actor)); }
  void wait(Actor actor, const Snapshot& recorded);

 private:
  struct Entry {
    Clock clock;
    uint64_t host_version = 0;  // of the host's clock when it was last joined
  };
  void join(Actor actor, const Clock& other);

  std::vector<Entry> all_;
  uint64_t host_version_ = 1;
};

}  // namespace simcuda::order
