// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPERANDS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/op_facts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tensorflow {
namespace lms {

// Whether a function's result goes to an external caller, which is not known to pin it: tf.data's
// threads read what their functions return.
bool ReturnsToExternalCaller(OpKernelContext* context);

// The buffers that one op uses: its tensors, what the lists among them hold, and its variables.
//
// A buffer becomes movable when all who refer to it are known: when it is made as a constant, when
// an op ends and its output is the only reference, or when an op finds that a variable is. From
// then on it is used by ops that pin it, passed on by ops that do not look at it, or exposed.
class Operands {
 public:
  Operands(OpKernel* kernel, OpKernelContext* context, Pool* pool);
  ~Operands();
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  // Whether the op may keep its inputs, or wait for other ops.
  bool kept() const { return kept_; }
  // Of those that are in the pool.
  int64_t Bytes() const;
  // Pins all and brings in those that are out. Throws OutOfMemory; what was pinned by then stays so
  // until Unpin.
  void Pin();
  void Unpin();
  // Buffers.
  size_t pinned() const { return pinned_; }
  size_t PinnedBytes() const;
  // Pins one more buffer, where it is. Under the engine's lock.
  void Hold(MovableBuffer* buffer);
  // The kernel is done: what it wrote has no valid host copy, and what it made may be movable. To
  // be called before Unpin, while its context is alive.
  void NoteResults();

 private:
  struct Use {
    MovableBuffer* buffer;
    ::lms::Access access;
  };

  void FindVariables();
  bool AreKept() const;
  ::lms::Access InputAccess(const MovableBuffer* buffer) const;
  ::lms::Access VariableAccess(Var* var) const;
  void HoldVariable(Var* var, std::vector<Use>* operands);
  std::vector<Use> HoldVariables();
  std::vector<Tensor> Referred() const;
  // Under the engine's lock: which inputs move meanwhile, and which do not from now on.
  std::vector<Use> UseInputs();
  // Calls `visit` for each tensor in lists that the kernel reads or keeps.
  void ForEachListedOperand(const std::function<void(const Tensor&)>& visit) const;
  void NoteOutputs();
  void NoteOutput(Tensor* output);
  void AdoptVariable(Var* var);
  void NoteVariables();

  OpKernel* const kernel_;
  OpKernelContext* const context_;
  const OpFacts& facts_;
  Pool* const pool_;  // of the device that the op runs on, null if that has none of ours
  ::lms::Engine::Frame frame_;
  std::vector<Var*> variables_;  // a reference each
  bool other_resources_ = false;
  bool has_variable_ = false;  // or the handle of one that is not made yet
  bool kept_ = false;
  size_t pinned_ = 0;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OPERANDS_H_
