// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/host_memory.h"

namespace tensorflow {
namespace lms {

void HostBytes::SetPinning(const Pinning& pinning, int pool, int node) {
  mutex_lock lock(mu_);
  pinning_ = pinning;
  nodes_[pool] = node;
}

int HostBytes::node_near(int pool) {
  mutex_lock lock(mu_);
  const auto node = nodes_.find(pool);
  return node == nodes_.end() ? kAnyNode : node->second;
}

// Slow, so without the lock.
bool HostBytes::pin(char* segment, size_t bytes) {
  Pinning by;
  {
    mutex_lock lock(mu_);
    by = pinning_;
  }
  if (by.pin == nullptr) return true;
  if (!by.pin(by.device, segment, bytes)) return false;
  mutex_lock lock(mu_);
  pinned_by_[segment] = by;
  return true;
}

void HostBytes::unpin(char* segment, size_t) {
  Pinning by;
  {
    mutex_lock lock(mu_);
    const auto found = pinned_by_.find(segment);
    if (found == pinned_by_.end()) return;
    by = found->second;
    pinned_by_.erase(found);
  }
  by.unpin(by.device, segment);
}

}  // namespace lms
}  // namespace tensorflow
