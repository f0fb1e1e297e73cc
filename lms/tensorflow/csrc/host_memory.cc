// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/host_memory.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tensorflow/core/platform/mem.h"

namespace tensorflow {
namespace lms {

void HostBytes::SetSource(const Source& source) {
  mutex_lock lock(mu_);
  source_ = source;
}

void* HostBytes::allocate(std::size_t bytes) {
  mutex_lock lock(mu_);
  void* ptr = source_.allocate != nullptr ? source_.allocate(source_.device, bytes)
                                          : port::AlignedMalloc(bytes, ::lms::HostPool::kAlignment);
  if (ptr != nullptr) owners_[ptr] = source_;
  return ptr;
}

void HostBytes::release(void* ptr) {
  mutex_lock lock(mu_);
  const auto owner = owners_.find(ptr);
  if (owner->second.release != nullptr) {
    owner->second.release(owner->second.device, ptr);
  } else {
    port::AlignedFree(ptr);
  }
  owners_.erase(owner);
}

int HostBytes::node(const void* ptr) {
  int node = 0;
  // Of the first page, which comes with this look at it. Fails where the kernel knows no nodes.
  const auto failed = syscall(SYS_get_mempolicy, &node, nullptr, 0, ptr, MPOL_F_NODE | MPOL_F_ADDR);
  return failed ? 0 : node;
}

}  // namespace lms
}  // namespace tensorflow
