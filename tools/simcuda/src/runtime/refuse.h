// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace simcuda {

// The thread's last refusal as an error text; it lives until the thread's next refusal.
const char* last_refusal();

}  // namespace simcuda
