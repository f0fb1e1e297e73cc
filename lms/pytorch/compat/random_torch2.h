// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 2.6 and later; included by random.h.

namespace torch::lms {

using CudaGenerator = at::Generator;

inline std::mutex& mutex_of(CudaGenerator& generator) { return generator.mutex(); }

inline uint64_t random_offset(CudaGenerator& generator) { return generator.get_offset(); }

inline void set_random_offset(CudaGenerator& generator, uint64_t offset) {
  generator.set_offset(offset);
}

}  // namespace torch::lms
