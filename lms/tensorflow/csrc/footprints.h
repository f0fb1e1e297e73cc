// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// What kernels took from their pools when they ran, in bytes: by kernel, and by the size of their
// operands, because an eager one is shared by operands of all shapes.
class Footprints {
 public:
  static constexpr int64_t kUnknown = -1;

  int64_t Expect(const OpKernel& kernel, int64_t operands) {
    mutex_lock lock(mu_);
    const auto found = known_.find(Tag(kernel, operands));
    return found == known_.end() ? kUnknown : found->second;
  }

  // Whether the kernel is asked about for the first time with operands of about that size. Not of
  // just that size: where it is always another, it would always be the first time.
  bool IsFirst(const OpKernel& kernel, int64_t operands) {
    int64_t about = 1;
    while (about < operands) about *= 2;
    mutex_lock lock(mu_);
    if (seen_.size() == kMost) seen_.clear();
    return seen_.insert(Tag(kernel, about)).second;
  }

  void Note(const OpKernel& kernel, int64_t operands, int64_t taken) {
    mutex_lock lock(mu_);
    if (known_.size() == kMost) known_.clear();  // most are of kernels that are gone
    int64_t& known = known_[Tag(kernel, operands)];
    known = std::max(known, taken);
  }

 private:
  static constexpr size_t kMost = 1 << 16;

  // A kernel may be where another was, and have the name of another.
  static size_t Tag(const OpKernel& kernel, int64_t operands) {
    const size_t of_kernel =
        std::hash<std::string>()(kernel.name()) ^ std::hash<const OpKernel*>()(&kernel);
    return of_kernel + static_cast<size_t>(operands) * 0x9E3779B97F4A7C15u;
  }

  mutex mu_;
  std::unordered_map<size_t, int64_t> known_;
  std::unordered_set<size_t> seen_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FOOTPRINTS_H_
