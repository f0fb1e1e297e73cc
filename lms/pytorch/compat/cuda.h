// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/compat/implementations.h>

// Seam: what c10 has for CUDA and for errors: device_synchronize, OutOfMemoryError,
// make_scope_exit, C10_CUDA_ERROR_HANDLED, C10_CUDA_IGNORE_ERROR, C10_THROW_ERROR,
// C10_ALWAYS_INLINE, C10_NOINLINE, TORCH_CHECK_VALUE, C10_COMPILE_TIME_MAX_GPUS. An implementation
// defines, under the same names, what its version lacks; and lms::capturing(stream), whether what
// is queued on it goes into a graph instead of running, and lms::OutsideCapture, which lives while
// calls are made that are no part of a graph that is captured.
#include LMS_CUDA
