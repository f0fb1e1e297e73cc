// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generators of PyTorch 2.6 and later; included by random.h.

namespace torch::lms {

inline uint64_t random_offset(at::Generator* generator) { return generator->get_offset(); }

inline void set_random_offset(at::Generator* generator, uint64_t offset) {
  generator->set_offset(offset);
}

}  // namespace torch::lms
