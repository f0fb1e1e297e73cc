// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace lms {

// The host memory that this process may take unless its user says how much: a share, because what
// is pinned cannot be swapped, and the machine, the program and its other processes need theirs.
struct HostShare {
  std::size_t memory = 0;     // of the machine or of the cgroup, whichever is less; 0: not known
  bool of_cgroup = false;     // whether it is the cgroup's
  std::size_t processes = 1;  // of one job on this machine, each with a share of its own

  std::size_t limit() const { return memory / 4 * 3 / processes; }  // 0: none
};

// As the files below `root` and the variables of the environment have it (null: not set).
using Environment = std::function<const char*(const char*)>;
HostShare host_share(const std::string& root, const Environment& environment);
// This process's.
HostShare host_share();

// "3/4 of the machine's 15.50 GiB, among 4 processes", of what a limit is the share; "" when
// somebody has set another.
std::string text(const HostShare& share, std::size_t limit);

}  // namespace lms
