// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_

#include <cstddef>
#include <unordered_map>

#include "tensorflow/core/common_runtime/lms/core/host_memory.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// Host memory for what left the device: pageable, or pinned once a GPU gave a way to pin it.
class HostBytes final : public ::lms::MappedMemory {
 public:
  struct Pinning {
    bool (*pin)(void* device, void* memory, size_t bytes) = nullptr;
    void (*unpin)(void* device, void* memory) = nullptr;
    void* device = nullptr;
  };
  // From now on. `node`: the NUMA node nearest to the pool of this index.
  void SetPinning(const Pinning& pinning, int pool, int node);
  int node_near(int pool) override;

 private:
  bool pin(char* segment, size_t bytes) override;
  void unpin(char* segment, size_t bytes) override;

  mutex mu_;
  Pinning pinning_;
  std::unordered_map<char*, Pinning> pinned_by_;
  std::unordered_map<int, int> nodes_;  // by pool
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_
