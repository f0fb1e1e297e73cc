// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOLS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOLS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/pool.h"
#include "tensorflow/core/common_runtime/lms/transport.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// The pools of the process: one of each allocator that devices were made with, as far as it can be
// managed. None is ever removed.
class Pools final : public BfcReclaimer {
 public:
  // Null where the allocator is none of ours. Takes no lock.
  Pool* Of(const Allocator* allocator) const;
  // A new one, with copies of `transport` or, on the CPU, of null. Does nothing where there is one
  // of the allocator, or can be none.
  void Add(const std::string& device, Allocator* allocator, std::unique_ptr<Transport> transport);

  // All, in the order of their index.
  Pool* const* begin() const { return pools_; }
  Pool* const* end() const { return pools_ + count_.load(); }
  bool empty() const { return count_ == 0; }

  // ---- what the allocators call
  bool Manages(const BfcAllocator* allocator) override;
  void* Allocate(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) override;
  bool Waits(const BfcAllocator* allocator) override;
  void* AllocateOrWait(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) override;

 private:
  // Fixed, so that they are read without a lock; a device beyond it has no Large Model Support.
  // More than one machine has.
  static constexpr int kMost = 64;
  mutex adding_;
  Pool* pools_[kMost] = {};
  std::atomic<int> count_{0};
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOLS_H_
