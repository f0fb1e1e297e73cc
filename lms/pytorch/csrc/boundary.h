// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace torch::lms {

// Puts a boxed kernel on the BackendSelect key of every operator that can reach CUDA memory. That
// key is in every thread's default set and below autograd, so the kernel sees each operator call
// just before its backend kernel, in all threads, and costs nothing before this is called. Never
// removed: dispatch tables are not changed back under running operators. Operators registered later
// are hooked by the next call of a hooked one, or by `install_pending`. Returns the number of
// operators hooked.
size_t install();
size_t install_pending();

// Bytes of tensors that one part of a foreach or fused-optimiser call may pin; 0: never split.
void set_part_bytes(size_t bytes);
size_t part_bytes();

}  // namespace torch::lms
