// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "victims.h"

namespace lms {

// Storages that are too small to move keep the free memory between large ones apart. They have
// slabs of their own: how large those are, and where they lie.

// The least that a slab has, and what is asked for where anything will do. A larger one finds a
// place less often; a smaller one holds few slots, and is full soon.
constexpr std::size_t kLeastSlab = std::size_t{64} << 10;

// Set aside when a pool is made: a 64th of it, up to 8 MiB. More is lost to programs with few small
// storages; less has to find its place among large ones later.
std::size_t first_slab_bytes(std::size_t pool_bytes);

// The next one, when all are full: as much again as there is, up to 8 MiB, so that few slabs do.
std::size_t next_slab_bytes(std::size_t all_slabs_bytes);

// Whether another slab may be made wherever there is room for it, as far as a device limit allows
// one at all. `evicting`: idle storages can make way for one at a better place. Then that is tried
// first in a pool under pressure, where any other place is between large storages.
enum class SlabPlace : std::uint8_t { kNowhere, kAnywhere };
enum class Resort : std::uint8_t { kFirst, kLast };  // last: a better place was tried
struct SlabRequest {
  bool over_limit = false;  // the least slab is beyond the device limit
  bool under_pressure = false;
  bool evicting = false;
  Resort resort = Resort::kFirst;
};
SlabPlace place_of_slab(const SlabRequest& request);

// The idle storages (Block::victim) that make way for `bytes` as near to the end of the pool as can
// be: anywhere else a slab would keep apart the holes that large requests need. `segments` in the
// order of addresses.
struct LastRun {
  bool found = false;
  std::vector<std::size_t> victims;
};
LastRun last_run(const std::vector<Segment>& segments, std::size_t bytes);

}  // namespace lms
