// SPDX-License-Identifier: Apache-2.0
// Who touched which memory last, as far as somebody may still have to be ordered after it.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "clock.h"
#include "region.h"

namespace simcuda::order {

// One command, or one use of memory by the host. `name` lives as long as the process.
struct Operation {
  const char* name;
  uint64_t number;  // the how-manieth operation of the process
  Epoch when;
};

struct Access {
  Operation operation;
  bool write;
  std::shared_ptr<const Region> part = nullptr;  // null: all of the range that it is noted at
};

class History {
 public:
  // An earlier access that should have been ordered before the new one, and where both are.
  using Conflict = std::function<void(const Access& earlier, uintptr_t begin, uintptr_t end)>;

  // Tells the conflicts of an access that comes after what is `known`.
  void check(const Region& region, bool write, const Clock& known, const Conflict& conflict) const;
  // The same, and remembers the access. `host`: what everything issued from now on comes after.
  void note(const Region& region, const Operation& operation, bool write, const Clock& known,
            const Clock& host, const Conflict& conflict);
  // The memory is gone: what is at these addresses later is other memory.
  void forget(uintptr_t begin, uintptr_t end);

  size_t ranges() const { return table_.size(); }
  uint64_t dropped() const { return dropped_; }

 private:
  struct Range {
    uintptr_t end;
    std::vector<Access> accesses;
  };
  using Table = std::map<uintptr_t, Range>;

  void split(uintptr_t at);
  void sweep(const Clock& host);
  void limit(std::vector<Access>& accesses, const Clock& host);

  Table table_;  // ranges that do not overlap, by address
  size_t sweep_at_ = 4096;
  uint64_t dropped_ = 0;
};

}  // namespace simcuda::order
