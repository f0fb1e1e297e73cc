// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace simcuda {

// The thread's last refusal as an error text; it lives until the thread's next refusal.
const char* last_refusal();
// Makes it this, without a word on stderr.
void remember_refusal(const std::string& what);

}  // namespace simcuda
