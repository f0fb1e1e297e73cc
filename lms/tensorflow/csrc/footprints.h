// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// What kernels took from their pools when they ran, in bytes.
class Footprints {
 public:
  static constexpr int64_t kUnknown = -1;

  // Of a kernel that ran with operands at least as large as these.
  int64_t Expect(const OpKernel& kernel, int64_t operands) {
    mutex_lock lock(mu_);
    const auto found = known_.find(Tag(kernel));
    if (found == known_.end() || found->second.operands < operands) return kUnknown;
    return found->second.taken;
  }

  void Note(const OpKernel& kernel, int64_t operands, int64_t taken) {
    mutex_lock lock(mu_);
    if (known_.size() == kMost) known_.clear();  // most are of kernels that are gone
    Footprint& known = known_[Tag(kernel)];
    known.operands = std::max(known.operands, operands);
    known.taken = std::max(known.taken, taken);
  }

 private:
  struct Footprint {
    int64_t operands = 0, taken = 0;
  };
  static constexpr size_t kMost = 1 << 16;

  // A kernel may be where another was, and have the name of another.
  static size_t Tag(const OpKernel& kernel) {
    return std::hash<std::string>()(kernel.name()) ^ std::hash<const OpKernel*>()(&kernel);
  }

  mutex mu_;
  std::unordered_map<size_t, Footprint> known_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
