// SPDX-License-Identifier: Apache-2.0
#include "host_share.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace lms {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// How many processes a launcher began on this machine: torchrun, Open MPI, MVAPICH, Intel MPI,
// IBM's jsrun, Horovod, Slurm. The nearest to the process comes first. Slurm's may read "4(x2)".
constexpr const char* kLocalProcesses[] = {
    "LOCAL_WORLD_SIZE",          "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",           "JSM_NAMESPACE_LOCAL_SIZE",   "HOROVOD_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"};

std::size_t local_processes(const Environment& environment) {
  for (const char* name : kLocalProcesses) {
    const char* value = environment(name);
    const long processes = value == nullptr ? 0 : std::strtol(value, nullptr, 10);
    if (processes > 0) return static_cast<std::size_t>(processes);
  }
  return 1;
}

std::size_t machine_bytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  for (std::size_t kib = 0; file >> name >> kib; file.ignore(kNone, '\n')) {
    if (name == "MemTotal:") return kib << 10;
  }
  return 0;
}

// "max", or no such file: none.
std::size_t bytes_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t bytes = 0;
  return file >> bytes ? bytes : kNone;
}

// The least of those of a group and of all above it. A container may see its own group as the root,
// and be told of it by its place on the host: then only the root is there.
std::size_t least_upwards(const std::string& mount, std::string group, const char* file) {
  std::size_t least = kNone;
  for (;;) {
    least = std::min(least, bytes_in(mount + group + "/" + file));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.erase(slash);
  }
}

// Of cgroup v1's hierarchy for memory, and of v2's.
std::size_t cgroup_bytes(const std::string& root) {
  std::size_t least = kNone;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:group
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers == ",,") {
      least = std::min(least, least_upwards(mount, group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, least_upwards(mount + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

}  // namespace

HostShare host_share(const std::string& root, const Environment& environment) {
  HostShare share;
  const std::size_t machine = machine_bytes(root), cgroup = cgroup_bytes(root);
  share.of_cgroup = machine == 0 ? cgroup != kNone : cgroup < machine;
  share.memory = share.of_cgroup ? cgroup : machine;
  share.processes = local_processes(environment);
  return share;
}

HostShare host_share() {
  return host_share("", [](const char* name) { return std::getenv(name); });
}

std::string text(const HostShare& share, std::size_t limit) {
  if (limit == 0 || limit != share.limit()) return "";
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << "3/4 of the " << (share.of_cgroup ? "cgroup" : "machine") << "'s "
      << static_cast<double>(share.memory) / (std::size_t{1} << 30) << " GiB";
  if (share.processes > 1) out << ", among " << share.processes << " processes";
  return out.str();
}

}  // namespace lms
