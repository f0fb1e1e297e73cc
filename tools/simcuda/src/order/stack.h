// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace simcuda::order {

// Of the thread's Python, the latest call first, as faulthandler writes it; empty where there is
// none. Takes no lock of Python's: CUDA is called with other locks held.
std::string python_stack();
// `signal` makes faulthandler write the stack to `file`, which can be read back.
void set_python_stack(int file, int signal);

}  // namespace simcuda::order
