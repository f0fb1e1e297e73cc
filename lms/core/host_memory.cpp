// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace lms {
namespace {

// Address space costs nothing, and holes too small for a request then cost none of the memory. With
// more, less of it is to be had by others in the process; with less, large ranges find no place.
constexpr std::size_t kSpacePerMemory = 4;
// A machine with less gets as much as one with this: a limit may be beyond its memory, which is
// another machine's where a dry device stands for that. With more, others in the process have less;
// with less, a limit as high as that is not reached.
constexpr std::size_t kLeastMemory = std::size_t{1} << 40;
constexpr std::size_t kLeastSpace = std::size_t{1} << 30;

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// A node that is full gives way to others: slower memory is better than none.
void prefer(char* memory, std::size_t bytes, int node) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[16] = {};
  const auto number = static_cast<std::size_t>(node);
  if (node < 0 || number >= 16 * kBits) return;
  nodes[number / kBits] = 1UL << (number % kBits);
  // Fails where the kernel knows no nodes.
  syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, 16 * kBits + 1, 0);
}

}  // namespace

constexpr int HostMemory::kAnyNode;

HostMemory::Space MappedMemory::reserve() {
  const auto memory = static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L)) *
                      static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  // Less where the process may not have so much (RLIMIT_AS).
  for (std::size_t bytes = kSpacePerMemory * std::max(memory, kLeastMemory); bytes >= kLeastSpace;
       bytes /= 2) {
    void* begin = mmap(nullptr, bytes, PROT_NONE, kReserved, -1, 0);
    if (begin != MAP_FAILED) return {static_cast<char*>(begin), bytes};
  }
  return {};
}

void MappedMemory::unreserve(Space space) { munmap(space.begin, space.bytes); }

bool MappedMemory::commit(char* segment, std::size_t bytes, int node) {
  if (mprotect(segment, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  prefer(segment, bytes, node);
  if (pin(segment, bytes)) return true;
  decommit_unpinned(segment, bytes);
  return false;
}

void MappedMemory::decommit(char* segment, std::size_t bytes) {
  unpin(segment, bytes);
  decommit_unpinned(segment, bytes);
}

// A new mapping in place of the old: its pages go, and what they count for.
void MappedMemory::decommit_unpinned(char* segment, std::size_t bytes) {
  if (mmap(segment, bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0) == MAP_FAILED) {
    madvise(segment, bytes, MADV_DONTNEED);  // too many mappings: at least the pages go
  }
}

int MappedMemory::node_of(const char* segment) {
  int node = 0;
  // Of the first page, which comes with this look at it. Fails where the kernel knows no nodes.
  const auto failed =
      syscall(SYS_get_mempolicy, &node, nullptr, 0, segment, MPOL_F_NODE | MPOL_F_ADDR);
  return failed ? 0 : node;
}

int node_of_pci(std::string address, const std::string& root) {
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  int node = HostMemory::kAnyNode;
  return file >> node ? node : HostMemory::kAnyNode;
}

}  // namespace lms
