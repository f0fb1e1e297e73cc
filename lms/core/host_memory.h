// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace lms {

// Where the memory of the host pool comes from: address space first, then memory behind parts of
// it, which are its segments.
class HostMemory {
 public:
  // Where it does not matter, or nobody can tell.
  static constexpr int kAnyNode = -1;

  struct Space {
    char* begin = nullptr;  // null: there is none
    std::size_t bytes = 0;
  };

  virtual ~HostMemory() = default;
  // Address space with nothing behind it, as much as can be had.
  virtual Space reserve() = 0;
  virtual void unreserve(Space space) = 0;
  // Puts memory behind a part of a space: of NUMA node `node`, as far as that has any. False when
  // it cannot be had; then all is as before. Slow, so the pool calls it, and `decommit`, with no
  // lock of its own; one at a time, from any thread.
  virtual bool commit(char* segment, std::size_t bytes, int node) = 0;
  virtual void decommit(char* segment, std::size_t bytes) = 0;
  // The NUMA node that a segment is on in fact.
  virtual int node_of(const char*) { return 0; }
  // That nearest to a device.
  virtual int node_near(int) { return kAnyNode; }
};

// The operating system's. Adaptors make it fit for the copies of their device.
class MappedMemory : public HostMemory {
 public:
  Space reserve() override;
  void unreserve(Space space) override;
  bool commit(char* segment, std::size_t bytes, int node) override;
  void decommit(char* segment, std::size_t bytes) override;
  int node_of(const char* segment) override;

 protected:
  // Around the life of a segment. What is pinned at once is called a registration: a copy must not
  // go from one to the next (for_parts).
  virtual bool pin(char*, std::size_t) { return true; }
  virtual void unpin(char*, std::size_t) {}

 private:
  void decommit_unpinned(char* segment, std::size_t bytes);
};

// The NUMA node of the device at a PCI address such as "0000:3B:00.0"; kAnyNode when the machine
// does not say. `root`: of the file system.
int node_of_pci(std::string address, const std::string& root = "");

}  // namespace lms
