// SPDX-License-Identifier: Apache-2.0
// Values that the host has copied to a device whose kernels are unseen. TensorFlow puts scalars
// there and takes them back for what it does on the CPU: the number of elements of a data set must
// not come back as 0. Whatever may have written them since ends them; a kernel may have if it was
// given a pointer to them.
//
// Small ones alone, unless all are kept: then what is copied is there whatever its size, and what a
// library computes is a fill that is like no other, so that a byte that is lost, or moved to the
// wrong place, shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace simcuda {

class Values {
 public:
  static constexpr size_t kMost = 4096;  // bytes of one, unless all are kept

  void keep_all() { all_ = true; }
  bool keeps_all() const { return all_; }

  void put(const void* at, const void* data, size_t bytes);
  // What is at `from`, with zeros for what is not known.
  void get(void* to, const void* from, size_t bytes) const;
  bool knows(const void* at) const;
  void copy(const void* to, const void* from, size_t bytes);
  // So many bytes are written over, and their neighbours stay.
  void forget(const void* at, size_t bytes);
  // The same, by a library.
  void computed(const void* at, size_t bytes);
  // Those that a launch's arguments point to. How many there are is not known: arguments lie on the
  // thread's own stack. Of one that is a structure only the first word is looked at, because
  // Eigen's begins with what it writes; more of the stack would hold pointers of earlier calls.
  void forget_arguments(void** arguments);
  // The same of a kernel whose mangled name tells what it writes.
  void forget_written(const char* kernel, void** arguments);

 private:
  void forget_whole(uintptr_t at);

  std::map<uintptr_t, std::vector<char>> known_;  // that do not overlap
  bool all_ = false;
  uint64_t fills_ = 0;
};

}  // namespace simcuda
