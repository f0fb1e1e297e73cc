// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 has for CUDA before PyTorch 1.6, and what it lacks; included by the implementations of
// cuda.h.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <type_traits>
#include <utility>

#ifndef C10_COMPILE_TIME_MAX_GPUS
#define C10_COMPILE_TIME_MAX_GPUS 16  // as many as its streams are for
#endif

#ifndef C10_ALWAYS_INLINE
#define C10_ALWAYS_INLINE __attribute__((always_inline)) inline
#endif
#ifndef C10_NOINLINE
#define C10_NOINLINE __attribute__((noinline))
#endif

#ifndef C10_CUDA_ERROR_HANDLED
#define C10_CUDA_ERROR_HANDLED(EXPR) EXPR
#endif

#ifndef C10_CUDA_IGNORE_ERROR
#define C10_CUDA_IGNORE_ERROR(EXPR) \
  do {                              \
    if ((EXPR) != cudaSuccess) {    \
      (void)cudaGetLastError();     \
    }                               \
  } while (0)
#endif

#ifndef TORCH_CHECK  // PyTorch 1.1 has older names for these
#define TORCH_CHECK AT_CHECK
#define TORCH_INTERNAL_ASSERT AT_ASSERT
#define TORCH_WARN AT_WARN
#endif

#ifndef TORCH_CHECK_WITH  // PyTorch 1.4 has no names for these errors
namespace c10 {

class C10_API CUDAOutOfMemoryError : public Error {
  using Error::Error;
};

class C10_API ValueError : public Error {
  using Error::Error;
};

}  // namespace c10

#define TORCH_CHECK_WITH(type, condition, ...)        \
  do {                                                \
    if (C10_UNLIKELY(!(condition))) {                 \
      C10_THROW_ERROR(type, ::c10::str(__VA_ARGS__)); \
    }                                                 \
  } while (0)
#endif

#ifndef TORCH_CHECK_VALUE
#define TORCH_CHECK_VALUE(condition, ...) TORCH_CHECK_WITH(ValueError, condition, __VA_ARGS__)
#endif

#ifndef C10_THROW_ERROR
#define C10_THROW_ERROR(type, message) \
  throw ::c10::type({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message)
#endif

namespace c10 {

using OutOfMemoryError = CUDAOutOfMemoryError;

template <class Act>
class ScopeExit {
 public:
  explicit ScopeExit(Act act) : act_(std::move(act)) {}
  ScopeExit(ScopeExit&& other) noexcept
      : act_(std::move(other.act_)), armed_(std::exchange(other.armed_, false)) {}
  ScopeExit(const ScopeExit&) = delete;
  ScopeExit& operator=(const ScopeExit&) = delete;
  void release() { armed_ = false; }
  ~ScopeExit() {
    if (armed_) {
      act_();
    }
  }

 private:
  Act act_;
  bool armed_ = true;
};

template <class Act>
ScopeExit<std::decay_t<Act>> make_scope_exit(Act&& act) {
  return ScopeExit<std::decay_t<Act>>(std::forward<Act>(act));
}

namespace cuda {

inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

}  // namespace cuda
}  // namespace c10
