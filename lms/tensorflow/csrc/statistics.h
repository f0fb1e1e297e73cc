// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STATISTICS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STATISTICS_H_

#include <cstddef>
#include <string>

#include "tensorflow/core/common_runtime/lms/pool.h"

namespace tensorflow {
namespace lms {

// Raises the peaks of a pool to what is so now. To be called when bytes in use have become more, or
// candidates fewer.
void NotePeaks(Pool* pool);
// The peaks are what is so now, and allocations are counted anew.
void ResetPeaks();

// JSON.
std::string Statistics();

// Why `bytes` could not be had of a pool, and what would help.
std::string Shortage(const Pool* pool, size_t bytes);

// Warns the user of a pool that thrashes.
void WarnOfThrashing();

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_STATISTICS_H_
