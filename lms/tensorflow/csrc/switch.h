// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SWITCH_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SWITCH_H_

#include "tensorflow/core/common_runtime/lms/core/switch.h"
#include "tensorflow/core/lib/core/status.h"
#include "tensorflow/core/public/session_options.h"

namespace tensorflow {
namespace lms {

extern ::lms::Switch lms_switch;

// Whether ops must pin.
inline bool Active() { return lms_switch.active(); }
inline bool EverActive() { return lms_switch.ever_active(); }
inline bool Enabled() { return lms_switch.enabled(); }
// Whether something may make way for an op. Also while what does not fit waits to come in again.
inline bool Reclaiming() { return lms_switch.reclaiming(); }

// Fails when ops that were running before do not end.
Status Enable();
void Disable();
// Turns it on when the options of a session ask for it.
void EnableIfAsked(const SessionOptions& options);

// Fails while tensors are in host memory.
Status SetChaos(bool chaos);

::lms::Switch::Owner& SwitchOwner();

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_SWITCH_H_
