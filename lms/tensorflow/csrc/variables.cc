// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/variables.h"

#include "tensorflow/core/common_runtime/lms/operands.h"

namespace tensorflow {
namespace lms {

void VariableUsers::Remove(Var* var, Operands* user) {
  const auto range = users_.equal_range(var);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second != user) continue;
    users_.erase(it);
    return;
  }
}

void VariableUsers::PinFor(Var* var, MovableBuffer* buffer) {
  const auto range = users_.equal_range(var);
  for (auto it = range.first; it != range.second; ++it) it->second->Hold(buffer);
}

}  // namespace lms
}  // namespace tensorflow
