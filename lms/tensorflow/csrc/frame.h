// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/core/admission.h"
#include "tensorflow/core/common_runtime/lms/core/engine.h"
#include "tensorflow/core/common_runtime/lms/core/placement.h"
#include "tensorflow/core/common_runtime/lms/op_facts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tensorflow {
namespace lms {

// The op boundary: what a device calls in place of the kernel's own Compute and ComputeAsync. Pins
// what the kernel may reach through its arguments, brings it in, and lets go when the kernel is
// done: for an asynchronous one, before `done` runs. `run` is a device's own way to the kernel.
void Compute(OpKernel* kernel, OpKernelContext* context, const std::function<void()>& run);
void Compute(OpKernel* kernel, OpKernelContext* context);
void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done,
                  const std::function<void(AsyncOpKernel::DoneCallback)>& run);
void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                  AsyncOpKernel::DoneCallback done);

// Pins a tensor of a GPU that is copied outside of an op, until `done` is called. When it cannot be
// brought in, not even after other ops have ended, calls `done` with the error and returns false.
bool PinForCopy(const Tensor& tensor, std::function<void(const Status&)>* done);

// Makes a tensor movable that a device was asked to make for a kernel: its constant, which only ops
// that take it as an operand look at.
void NoteConstant(const Tensor& tensor);

// The pins of one op that runs.
//
// A buffer becomes movable when all who refer to it are known: when it is made as a constant, when
// an op ends and its output is the only reference, or when an op finds that a variable is. From
// then on it is used by ops that pin it, handed on by ops that do not look at it, or handed out
// (HandOut).
class OpFrame final : private ::lms::Pins {
 public:
  OpFrame(OpKernel* kernel, OpKernelContext* context);
  ~OpFrame() override;
  OpFrame(const OpFrame&) = delete;
  OpFrame& operator=(const OpFrame&) = delete;

  // When it fails, nothing is pinned and the kernel must not run.
  Status Enter();
  // The kernel is done. Its context must still be alive.
  void Exit();

  // Whether the op needs no pins because it does not look at its tensors.
  static bool IsTransparent(const OpKernel& kernel, OpKernelContext* context);

  // Keeps a buffer where it is for as long as the op runs. Under the engine's lock.
  void Hold(MovableBuffer* buffer);

  // Runs the kernel, and counts what it takes from the pool meanwhile.
  void Run(const std::function<void()>& kernel);
  // This thread has memory from the pool: counts it for the op that it runs, if any.
  static void CountTaken(const Pool* pool, size_t bytes);
  // It does not get them: the error of its op, if it has one, says why.
  static void NoteShortage(Pool* pool, size_t bytes);

 private:
  struct Operand {
    MovableBuffer* buffer;
    ::lms::Access access;
  };

  void FindVariables();
  bool KeepsInputs() const;
  ::lms::Access VariableAccess(Var* var) const;
  void HoldVariable(Var* var, std::vector<Operand>* operands);
  void PinOperands();
  // Calls `visit` for each tensor in lists that the kernel reads or keeps.
  void ForEachListedOperand(const std::function<void(const Tensor&)>& visit) const;
  int64_t OperandBytes() const;
  ::lms::OpId Id() const;
  void AwaitReservation();
  bool pin() override;
  void unpin() override;
  std::size_t count() const override { return pinned_; }
  void NoteOutputs();
  void NoteVariables();
  void Explain();
  void Leave();

  OpKernel* const kernel_;
  OpKernelContext* const context_;
  const OpFacts facts_;  // a copy: an asynchronous op may outlive the thread that looked it up
  ::lms::Engine::Frame frame_;
  std::vector<Var*> variables_;  // a reference each
  bool other_resources_ = false;
  bool has_variable_ = false;  // or the handle of one that is not made yet
  Pool* const pool_;           // of the device that it runs on, null if that has none of ours
  ::lms::Admission::Op op_;
  size_t pinned_ = 0;     // buffers
  int64_t taken_ = 0;     // bytes of the pool so far, by the thread that runs the kernel
  bool keeps_ = false;    // its inputs, or may wait for other ops
  std::string shortage_;  // why it was not pinned
  std::string refused_;   // why the kernel did not get memory
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_
