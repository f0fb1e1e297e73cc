// SPDX-License-Identifier: Apache-2.0
// Names of functions that a library does not show.
#pragma once

namespace simcuda {

// The name that the library's own table of symbols has for the function at this address; null
// where there is none, or no such library. It lives as long as the process.
const char* symbol_at(const void* function);

}  // namespace simcuda
