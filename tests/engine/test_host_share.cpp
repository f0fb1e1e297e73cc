// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "folder.h"
#include "harness.h"
#include "host_share.h"

namespace {

// The files of a machine, and a program's environment.
class Machine {
 public:
  Machine() { file("/proc/meminfo", "MemTotal:  16 kB\nFree: 1 kB\n"); }

  void file(const std::string& name, const std::string& content) { root_.file(name, content); }
  lms::HostShare share() const {
    return lms::host_share(root_.path(), [this](const char* name) {
      const auto found = environment.find(name);
      return found == environment.end() ? nullptr : found->second.c_str();
    });
  }
  std::map<std::string, std::string> environment;

 private:
  const Folder root_;
};

}  // namespace

TEST(share_is_of_the_machine) {
  const Machine machine;
  CHECK_EQ(machine.share().memory, 16384u);
  CHECK(!machine.share().of_cgroup);
  CHECK_EQ(machine.share().limit(), 12288u);
}

TEST(share_is_of_a_cgroup_of_version_2) {
  Machine machine;
  machine.file("/proc/self/cgroup", "0::/job/step\n");
  machine.file("/sys/fs/cgroup/job/step/memory.max", "max\n");
  CHECK_EQ(machine.share().memory, 16384u);
  machine.file("/sys/fs/cgroup/job/memory.max", "8192\n");  // the group above has the limit
  CHECK_EQ(machine.share().memory, 8192u);
  CHECK(machine.share().of_cgroup);
  machine.file("/sys/fs/cgroup/job/step/memory.max", "4096\n");
  CHECK_EQ(machine.share().memory, 4096u);
}

TEST(share_is_of_a_cgroup_of_version_1) {
  Machine machine;
  // As a container has it: its place on the host, and its own group where the root would be.
  machine.file("/proc/self/cgroup", "3:cpu,cpuacct:/far\n2:hugetlb,memory:/docker/far\n1:pids:/\n");
  machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_EQ(machine.share().memory, 16384u);
  machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2048\n");
  CHECK_EQ(machine.share().memory, 2048u);
  machine.file("/sys/fs/cgroup/memory/docker/far/memory.limit_in_bytes", "1024\n");
  CHECK_EQ(machine.share().memory, 1024u);
}

TEST(share_is_divided_among_processes) {
  Machine machine;
  machine.environment["SLURM_NTASKS_PER_NODE"] = "8";
  CHECK_EQ(machine.share().limit(), 1536u);
  machine.environment["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  CHECK_EQ(machine.share().processes, 4u);
  machine.environment["LOCAL_WORLD_SIZE"] = "2";  // begun by torchrun within Slurm
  CHECK_EQ(machine.share().limit(), 6144u);
  for (const char* wrong : {"", "0", "-3", "many"}) {
    machine.environment["LOCAL_WORLD_SIZE"] = wrong;
    CHECK_EQ(machine.share().processes, 4u);
  }
}

TEST(share_of_what_is_not_known_is_no_limit) {
  Machine machine;
  machine.file("/proc/meminfo", "");
  machine.file("/proc/self/cgroup", "nonsense\n0:");
  CHECK_EQ(machine.share().limit(), 0u);
  CHECK(lms::host_share().limit() > 0);  // of this machine
}

TEST(share_is_told_while_it_is_the_limit) {
  lms::HostShare share;
  CHECK_EQ(text(share, 0), "");
  share.memory = std::size_t{31} << 29;
  CHECK_EQ(text(share, share.limit()), "3/4 of the machine's 15.50 GiB");
  share.of_cgroup = true;
  share.processes = 4;
  CHECK_EQ(text(share, share.limit()), "3/4 of the cgroup's 15.50 GiB, among 4 processes");
  CHECK_EQ(text(share, share.limit() - 1), "");  // somebody has set another
  CHECK_EQ(text(share, 0), "");
}
