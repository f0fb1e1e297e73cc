// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/compat/implementations.h>
#include <c10/util/Exception.h>

// Seam: no warnings of PyTorch's. What `run` warns of on this thread is not shown.
namespace torch::lms {

template <class Run>
void silently(const Run& run);

}  // namespace torch::lms

#include LMS_SILENCE
