// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPTIONS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorflow/core/lib/core/status.h"

namespace tensorflow {
namespace lms {

// By the names of the C interface.
Status SetOption(const std::string& name, int64_t value);
// -1 when there is no such option.
int64_t GetOption(const std::string& name);

// What of each pool may be in use; 0 for all of it.
size_t DeviceLimit();

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPTIONS_H_
