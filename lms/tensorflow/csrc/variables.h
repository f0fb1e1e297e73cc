// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_VARIABLES_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_VARIABLES_H_

#include <unordered_map>

#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tensorflow {
namespace lms {

class Operands;

// Which ops that run use which variables. One of them may give a variable another buffer: it is
// pinned for all who may come by it. Under the engine's lock.
class VariableUsers {
 public:
  void Add(Var* var, Operands* user) { users_.emplace(var, user); }
  void Remove(Var* var, Operands* user);
  // The variable has a buffer that is, or becomes, movable: pins it for all users.
  void PinFor(Var* var, MovableBuffer* buffer);

 private:
  std::unordered_multimap<Var*, Operands*> users_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_VARIABLES_H_
