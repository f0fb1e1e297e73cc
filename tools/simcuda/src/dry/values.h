// SPDX-License-Identifier: Apache-2.0
// Values that the host reads. Each is 0, so what a program decides by one it decides blindly: the
// listener says where.
#pragma once

#include <torch/library.h>

#include <string>

namespace simcuda::dry {

// The host reads a value by this operator. Throws if the listener refuses.
void note_read(const std::string& op);

// item(), and what is made of it: bool(), float(), an index of Python's.
void register_reads(torch::Library& cuda);

}  // namespace simcuda::dry
