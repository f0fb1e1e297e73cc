// SPDX-License-Identifier: Apache-2.0
// Small values that the host has copied to a device whose kernels are unseen. TensorFlow puts
// scalars there and takes them back for what it does on the CPU: the number of elements of a data
// set must not come back as 0. Whatever may have written them since ends them; a kernel may have if
// it was given a pointer to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace simcuda {

class Values {
 public:
  static constexpr size_t kMost = 4096;  // bytes of one

  void put(const void* at, const void* data, size_t bytes);
  // What is at `from`, with zeros for what is not known.
  void get(void* to, const void* from, size_t bytes) const;
  void copy(const void* to, const void* from, size_t bytes);
  void forget(const void* at, size_t bytes);
  // Those that a launch's arguments point to. How many there are is not known: arguments lie on the
  // thread's own stack. Of one that is a structure only the first word is looked at, because
  // Eigen's begins with what it writes; more of the stack would hold pointers of earlier calls.
  void forget_arguments(void** arguments);
  // The same of a kernel whose mangled name tells what it writes.
  void forget_written(const char* kernel, void** arguments);

 private:
  std::map<uintptr_t, std::vector<char>> known_;  // that do not overlap
};

}  // namespace simcuda
