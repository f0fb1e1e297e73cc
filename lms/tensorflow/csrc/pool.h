// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOL_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/admission.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/core/reclaim.h"
#include "tensorflow/core/common_runtime/lms/core/slabs.h"
#include "tensorflow/core/common_runtime/lms/small_slabs.h"
#include "tensorflow/core/common_runtime/lms/transport.h"

namespace tensorflow {
namespace lms {

// An allocator of device memory under Large Model Support. Never destroyed.
class Pool final : public ::lms::Space {
 public:
  Pool(int index, std::string name, BfcAllocator* allocator, std::unique_ptr<Transport> transport);

  // What the allocator's AllocateRaw gives. Under no lock.
  void* Allocate(size_t bytes, uint64_t freed_before);
  // Memory for a buffer that an op waits for; null when all that is idle has made way in vain.
  // Under no lock, or the engine's.
  void* TakeOrMakeRoom(size_t bytes, uint64_t freed_before);
  // What is free, within the device limit: no more than is asked for, unless there is plenty.
  void* TakeFree(size_t bytes, uint64_t freed_before);
  bool FitsAlone(int64_t bytes) const { return bytes <= limit(); }

  // What admission and placement may do with it. Bytes.
  int64_t bytes() const override { return bytes_; }
  int64_t limit() const override;
  bool has(int64_t bytes) const override;
  bool make(int64_t bytes) override;
  void evict_idle() override;
  void* set_aside(int64_t bytes) override;
  void give_back(void* hole) override;

  const int index;  // the engine's number of the device
  const std::string name;
  BfcAllocator* const allocator;
  const std::unique_ptr<Transport> transport;
  const bool on_cpu;  // anybody can read its memory
  ::lms::Admission admission{*this};

  // ---- statistics
  std::atomic<int64_t> candidate_bytes{0};  // of what could be evicted
  std::atomic<int64_t> peak_active_bytes{0}, peak_reserved_bytes{0};
  // Under the engine's lock.
  int64_t single_reclaims = 0, full_reclaims = 0;
  ::lms::Counter out_bytes;

 private:
  class Request;
  class Hole;
  // Without a look at the limit.
  void* Take(size_t bytes, uint64_t freed_before, ::lms::Resort resort);
  void* TakeSmall(size_t bytes, uint64_t freed_before, ::lms::Resort resort);
  size_t OverLimit(size_t rounded) const;
  void GrowSlabs();
  void CountReclaim(::lms::Route route);
  void NoteShortage(size_t bytes);

  const int64_t bytes_;
  SmallSlabs slabs_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_POOL_H_
