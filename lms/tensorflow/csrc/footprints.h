// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// What kernels took from their pools when they ran, in bytes: by kernel, and by the power of two
// that their operands reach, because an eager one is shared by operands of all sizes.
class Footprints {
 public:
  static constexpr int64_t kUnknown = -1;

  int64_t Expect(const OpKernel& kernel, int64_t operands) {
    mutex_lock lock(mu_);
    const auto found = known_.find(Tag(kernel, operands));
    if (found == known_.end()) return kUnknown;
    const Footprint& known = found->second;
    if (operands <= known.operands) return known.taken;
    return static_cast<int64_t>(static_cast<double>(known.taken) * operands / known.operands);
  }

  void Note(const OpKernel& kernel, int64_t operands, int64_t taken) {
    mutex_lock lock(mu_);
    if (known_.size() == kMost) known_.clear();  // most are of kernels that are gone
    Footprint& known = known_[Tag(kernel, operands)];
    if (operands >= known.operands) known = {operands, taken};
  }

 private:
  struct Footprint {
    int64_t operands, taken;
  };
  static constexpr size_t kMost = 1 << 16;

  // A kernel may be where another was, and have the name of another.
  static size_t Tag(const OpKernel& kernel, int64_t operands) {
    size_t power = 0;
    while (operands >> power > 1) ++power;
    return (std::hash<std::string>()(kernel.name()) ^ std::hash<const OpKernel*>()(&kernel)) +
           power;
  }

  mutex mu_;
  std::unordered_map<size_t, Footprint> known_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
