// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/options.h"

#include <unistd.h>

#include <atomic>

#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/report.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/lib/core/errors.h"

namespace tensorflow {
namespace lms {
namespace {

std::atomic<size_t> device_limit{0};

Status SetLimit(int64_t bytes) {
  for (const Pool* pool : Runtime::Get().pools) {
    if (bytes <= pool->bytes()) continue;
    return errors::InvalidArgument("Large Model Support cannot limit the memory of ", pool->name,
                                   " to ", ::lms::mib(bytes), " because it has only ",
                                   ::lms::mib(pool->bytes()), "; use less, or 0");
  }
  device_limit = static_cast<size_t>(bytes);
  return Ok();
}

Status SetHostLimit(int64_t bytes) {
  const int64_t all = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  if (bytes > all) {
    return errors::InvalidArgument("host_limit cannot be ", ::lms::mib(bytes),
                                   " because this machine has ", ::lms::mib(all),
                                   " of memory; use less, or 0 for no limit");
  }
  Runtime::Get().host.set_limit(static_cast<size_t>(bytes));
  return Ok();
}

Status SetMinSize(int64_t bytes) {
  Runtime::Get().engine.set_min_bytes(static_cast<size_t>(bytes));
  return Ok();
}

struct Option {
  const char* name;
  Status (*set)(int64_t value);
  int64_t (*get)();
};

const Option kOptions[] = {
    {"limit", &SetLimit, [] { return static_cast<int64_t>(DeviceLimit()); }},
    {"host_limit", &SetHostLimit,
     [] { return static_cast<int64_t>(Runtime::Get().host.stats().limit); }},
    {"min_size", &SetMinSize,
     [] { return static_cast<int64_t>(Runtime::Get().engine.min_bytes()); }},
    {"chaos", [](int64_t value) { return SetChaos(value != 0); },
     [] { return static_cast<int64_t>(lms_switch.chaos()); }},
};

const Option* Find(const std::string& name) {
  for (const Option& option : kOptions) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

}  // namespace

size_t DeviceLimit() { return device_limit.load(std::memory_order_relaxed); }

Status SetOption(const std::string& name, int64_t value) {
  const Option* option = Find(name);
  if (option == nullptr) {
    return errors::InvalidArgument("Large Model Support has no option ", name,
                                   "; it has limit, host_limit, min_size and chaos");
  }
  if (value < 0) {
    return errors::InvalidArgument("Large Model Support cannot set ", name, " to ", value,
                                   " because it is negative; use 0 for no limit");
  }
  return option->set(value);
}

int64_t GetOption(const std::string& name) {
  const Option* option = Find(name);
  return option == nullptr ? -1 : option->get();
}

}  // namespace lms
}  // namespace tensorflow
