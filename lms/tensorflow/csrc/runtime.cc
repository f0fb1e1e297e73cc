// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/runtime.h"

#include <cstdlib>
#include <utility>

#include "tensorflow/core/common_runtime/lms/switch.h"

namespace tensorflow {
namespace lms {

Runtime& Runtime::Get() {
  static auto* runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() {
  backend.set_host(&host);
  lms_switch.attach(engine, SwitchOwner());
  // Upstream's own variable for pinned memory is the limit of ours as well.
  const char* limit = std::getenv("TF_GPU_HOST_MEM_LIMIT_IN_MB");
  const int64_t mib = limit == nullptr ? 0 : std::atoll(limit);
  host.set_limit(mib > 0 ? static_cast<size_t>(mib) << 20 : host_share.limit());
}

void Runtime::OnDevice(const SessionOptions& options, const std::string& name, Allocator* allocator,
                       std::unique_ptr<Transport> transport) {
  pools.Add(name, allocator, std::move(transport));
  devices_made_ = true;
  // The devices of a session come one by one, and the CPU's, which is the first, may not be one
  // that can be managed.
  if (!pools.empty()) EnableIfAsked(options);
}

}  // namespace lms
}  // namespace tensorflow
