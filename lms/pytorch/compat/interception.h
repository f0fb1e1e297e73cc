// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// Seam: how ops are intercepted. From `install` on every call of an op that can reach device memory
// goes through `at_boundary` (boundary.h): in every thread, below autograd, so that backward ops do
// as well, with all of its arguments, just before its kernel is called. A call may come by more
// than once on its way, one without an operand on the device need not. What an implementation
// cannot tell of an argument it reports as Access::kWrite.
//
// Before `install` nothing is changed, and nothing costs. There is no way back: what calls begin
// with must not change under those that run. Off is the switch's, which `at_boundary` asks first.
namespace torch::lms {

// Returns the number of ops that are intercepted from now on and were not before. Calls that had
// begun by then may have been missed. Thread-safe.
size_t install();
// The same for ops that came to be since, if any; before `install` does nothing.
size_t install_pending();

}  // namespace torch::lms
