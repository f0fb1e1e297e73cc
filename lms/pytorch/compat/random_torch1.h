// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 1.13, whose offset is the last number of their state; included by
// random.h.

#include <ATen/core/Tensor.h>

#include <cstring>

namespace torch::lms {

using CudaGenerator = at::Generator;

namespace detail {

inline char* offset_in(const at::Tensor& state) {
  TORCH_INTERNAL_ASSERT(state.nbytes() >= sizeof(uint64_t));
  return static_cast<char*>(state.data_ptr()) + state.nbytes() - sizeof(uint64_t);
}

}  // namespace detail

inline std::mutex& mutex_of(CudaGenerator& generator) { return generator.mutex(); }

inline uint64_t random_offset(CudaGenerator& generator) {
  const at::Tensor state = generator.get_state();
  uint64_t offset = 0;
  std::memcpy(&offset, detail::offset_in(state), sizeof(offset));
  return offset;
}

inline void set_random_offset(CudaGenerator& generator, uint64_t offset) {
  const at::Tensor state = generator.get_state();
  std::memcpy(detail::offset_in(state), &offset, sizeof(offset));
  generator.set_state(state);
}

}  // namespace torch::lms
