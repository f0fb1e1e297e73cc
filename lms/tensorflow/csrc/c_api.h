// SPDX-License-Identifier: Apache-2.0
// Large Model Support for callers that are not C++: TensorFlow's Python, by ctypes.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_C_API_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_C_API_H_

#include <stddef.h>
#include <stdint.h>

#define TF_LMS_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Functions with `error` return 0, or another value and a text of at most `error_size` bytes.

TF_LMS_EXPORT int TF_LmsSetEnabled(int on, char* error, size_t error_size);
TF_LMS_EXPORT int TF_LmsGetEnabled(void);

// "limit": bytes of each device; "host_limit": bytes of host memory; 0 for none. "min_size": bytes
// of the smallest tensors that move unless nothing else makes room. "chaos": 1 moves everything
// idle out after every operation.
TF_LMS_EXPORT int TF_LmsSetOption(const char* name, int64_t value, char* error, size_t error_size);
// -1 when there is no such option.
TF_LMS_EXPORT int64_t TF_LmsGetOption(const char* name);

// Keeps the tensor that holds the byte at `data` on the device, or lets go. 0 when done.
TF_LMS_EXPORT int TF_LmsExcludeBuffer(const void* data, int on);

// JSON, to be given back to TF_LmsFree.
TF_LMS_EXPORT char* TF_LmsStatistics(void);
TF_LMS_EXPORT void TF_LmsFree(char* text);
TF_LMS_EXPORT int TF_LmsResetPeaks(void);

// Moves everything idle out. Returns bytes.
TF_LMS_EXPORT int64_t TF_LmsReclaim(void);

#ifdef __cplusplus
}
#endif

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_C_API_H_
