// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_

#include <cstddef>
#include <unordered_map>

#include "tensorflow/core/common_runtime/lms/core/host_pool.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {

// Host memory for what left the device: pageable, or pinned once a GPU gave a way to allocate it.
class HostBytes final : public ::lms::HostMemory {
 public:
  struct Source {
    void* (*allocate)(void* device, size_t bytes) = nullptr;
    void (*release)(void* device, void* ptr) = nullptr;
    void* device = nullptr;
  };
  void SetSource(const Source& source);
  void* allocate(size_t bytes) override;
  void release(void* ptr) override;
  int node(const void* ptr) override;

 private:
  mutex mu_;
  Source source_;
  std::unordered_map<void*, Source> owners_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_HOST_MEMORY_H_
