// SPDX-License-Identifier: Apache-2.0
#include "history.h"

#include <algorithm>

namespace simcuda::order {
namespace {

// Strided accesses to one range that are remembered side by side.
constexpr size_t kMost = 64;

bool meet(const Region& region, const Access& access, uintptr_t begin, uintptr_t end) {
  if (access.part) return region.meets(*access.part);
  return region.solid() || region.meets(Region(begin, end - begin));
}

}  // namespace

void History::split(uintptr_t at) {
  auto next = table_.upper_bound(at);
  if (next == table_.begin()) return;
  auto range = std::prev(next);
  if (range->first == at || range->second.end <= at) return;
  Range right = range->second;
  range->second.end = at;
  table_.emplace_hint(next, at, std::move(right));
}

void History::check(const Region& region, bool write, const Clock& known,
                    const Conflict& conflict) const {
  uintptr_t begin = region.begin(), end = region.end();
  auto it = table_.upper_bound(begin);
  if (it != table_.begin() && std::prev(it)->second.end > begin) --it;
  for (; it != table_.end() && it->first < end; ++it) {
    uintptr_t from = std::max(begin, it->first), to = std::min(end, it->second.end);
    for (const Access& earlier : it->second.accesses) {
      if ((write || earlier.write) && !known.knows(earlier.operation.when) &&
          meet(region, earlier, from, to)) {
        conflict(earlier, from, to);
      }
    }
  }
}

void History::note(const Region& region, const Operation& operation, bool write, const Clock& known,
                   const Clock& host, const Conflict& conflict) {
  if (region.empty()) return;
  if (table_.size() >= sweep_at_) sweep(host);
  check(region, write, known, conflict);
  uintptr_t begin = region.begin(), end = region.end();
  Access access{operation, write};
  if (!region.solid()) access.part = std::make_shared<const Region>(region);
  split(begin);
  split(end);
  bool replaces = write && region.solid();
  uintptr_t position = begin;
  auto it = table_.lower_bound(begin);
  while (it != table_.end() && it->first < end) {
    if (replaces) {
      it = table_.erase(it);
      continue;
    }
    auto& accesses = it->second.accesses;
    // Who comes after this access comes after what it covers and comes after.
    auto covered = [&](const Access& earlier) {
      bool within = region.solid() || (earlier.part && *earlier.part == region);
      return within && (write || !earlier.write) && known.knows(earlier.operation.when);
    };
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), covered), accesses.end());
    accesses.push_back(access);
    if (accesses.size() > kMost) limit(accesses, host);
    if (position < it->first) {
      table_.emplace_hint(it, position, Range{it->first, {access}});
    }
    position = it->second.end;
    ++it;
  }
  if (replaces) position = begin;
  if (position < end) table_.emplace_hint(it, position, Range{end, {std::move(access)}});
}

void History::forget(uintptr_t begin, uintptr_t end) {
  split(begin);
  split(end);
  table_.erase(table_.lower_bound(begin), table_.lower_bound(end));
}

// What the host knows to be done is ordered before everything that is still to come.
void History::sweep(const Clock& host) {
  for (auto it = table_.begin(); it != table_.end();) {
    auto done = [&](const Access& access) { return host.knows(access.operation.when); };
    auto& accesses = it->second.accesses;
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), done), accesses.end());
    it = accesses.empty() ? table_.erase(it) : std::next(it);
  }
  sweep_at_ = std::max<size_t>(4096, 2 * table_.size());
}

void History::limit(std::vector<Access>& accesses, const Clock& host) {
  auto done = [&](const Access& access) { return host.knows(access.operation.when); };
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), done), accesses.end());
  if (accesses.size() <= kMost) return;
  accesses.erase(accesses.begin());
  dropped_++;
}

}  // namespace simcuda::order
