// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "host_pool.h"

namespace lms {

// What there is to say about one device: for statistics, and for whoever is out of memory.
struct Report {
  Census census;
  EngineStats stats;
  HostStats host;
  std::size_t min_bytes = 0;

  // For the adaptor to fill in, in bytes.
  std::size_t device_limit = 0;  // 0: none
  std::size_t wanted = 0;        // by the request that failed; 0: not known here
  std::string pool;              // where it failed, when `wanted` is known
  std::size_t pool_bytes = 0;    // of all that it has and could have; 0: not known here
  std::size_t pool_in_use = 0;   // in blocks, which may be larger than what was asked for
  std::size_t pool_requested = std::numeric_limits<std::size_t>::max();  // where it is known
  std::size_t pool_elsewhere = 0;  // of that, in segments of a kind that the request cannot be in
  std::size_t pool_granule = 1;    // segments of either kind are of whole ones
  bool own_known = false;          // the next are
  std::size_t own_bytes = 0;       // in use by the op that makes the request
  bool own_complete = true;        // with what its kernel has allocated so far, else pinned alone
};

// One look at the engine, under its lock.
Report report(Engine& engine, const HostPool& host, int device);

// Of the pool, in use by no storage that the engine knows; where `pool_in_use` is known.
std::size_t unknown_bytes(const Report& report);

// Copies and census by the names that both frameworks' statistics have for them.
std::vector<std::pair<const char*, std::int64_t>> fields(const Report& report);

// What a framework's users know things as.
struct Words {
  const char* storages;          // "storages"
  const char* ops;               // "operators"
  const char* raise_host_limit;  // how, as in "raise it with ..."
  const char* need_less;  // "use smaller inputs ...": what helps when what is pinned is too much
  const char* unexpose;   // what lets exposed storages move again; "": nothing does
  const char* held_by;    // who else pins storages, as in "pinned by ..."
  // Where `own_known`:
  const char* unknown = "";  // what memory in use may be that no known storage has
  const char* join = "";     // what else helps when what is free is in pieces
  const char* others = "";   // what helps when it is not the op that uses too much
  const char* alone = "";    // that it is not, to follow on the last
  const char* immovable = "are in pools that nothing may leave";
};

// Why there is no room, and what helps: whole sentences, each with a space after it.
std::string shortage(const Report& report, const Words& words);

// That a device thrashes, and what helps.
std::string thrashing(const std::string& device, const Traffic& traffic, const Words& words);

// "1.50 MiB"
std::string mib(std::size_t bytes);

}  // namespace lms
