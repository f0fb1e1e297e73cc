// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace simcuda {

// A kernel of which nothing is known but its name: takes the time of a launch. The name lives as
// long as the process.
void launch_unseen(const char* name, void** arguments, cudaStream_t stream);

// The thread's last refusal as an error text; it lives until the thread's next refusal.
const char* last_refusal();
// Makes it this, without a word on stderr.
void remember_refusal(const std::string& what);

}  // namespace simcuda
