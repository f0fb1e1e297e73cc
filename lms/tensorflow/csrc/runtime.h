// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/core/host_pool.h"
#include "tensorflow/core/common_runtime/lms/core/host_share.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/exclusions.h"
#include "tensorflow/core/common_runtime/lms/host_memory.h"
#include "tensorflow/core/common_runtime/lms/pools.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/common_runtime/lms/tracker.h"
#include "tensorflow/core/common_runtime/lms/variables.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow {
namespace lms {

using ::lms::EngineLock;

// What the process has one of; the switch, which ops ask most, is beside it (switch.h). Leaked:
// tensors may die after static destructors ran.
// Lock order: a variable's mutex, the engine, an allocator.
class Runtime {
 public:
  static Runtime& Get();

  // Called by each device that is made, with the allocator of its memory and, unless it is the CPU,
  // how its copies are made. Turns Large Model Support on when the session's options ask for it.
  void OnDevice(const SessionOptions& options, const std::string& name, Allocator* allocator,
                std::unique_ptr<Transport> transport);
  bool devices_made() const { return devices_made_; }

  HostBytes host_bytes;
  ::lms::HostPool host{host_bytes, ::lms::HostPool::kSegmentBytes,
                       ::lms::HostPool::Tended::kByThread};
  const ::lms::HostShare host_share = ::lms::host_share();  // the limit unless one is set
  Backend backend;
  ::lms::Engine engine{backend, host};
  Pools pools;
  Tracker tracker;
  Exclusions exclusions;
  VariableUsers variables;
  // Ops that hold pins, or are about to.
  ::lms::Turns turns{[] { lms_switch.retire(); }};

 private:
  Runtime();

  std::atomic<bool> devices_made_{false};
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_RUNTIME_H_
