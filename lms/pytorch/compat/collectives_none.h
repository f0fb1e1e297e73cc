// SPDX-License-Identifier: Apache-2.0
#pragma once

// No operator of PyTorch 1.5 is a collective: torch.distributed calls its libraries past the
// dispatcher, and tells the allocator of their streams by recordStream. Included by collectives.h.

#include <torch/csrc/lms/compat/definitions.h>
#include <torch/csrc/lms/operands.h>

namespace torch::lms {

template <class Call>
void run_collective(Call& call, const Operands&) {
  call.run();
}

inline void define_collectives(Definitions&) {}

}  // namespace torch::lms
