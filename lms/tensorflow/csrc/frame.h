// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/core/admission.h"
#include "tensorflow/core/common_runtime/lms/core/clock.h"
#include "tensorflow/core/common_runtime/lms/core/placement.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/operands.h"
#include "tensorflow/core/framework/op_kernel.h"

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
// The error of a constant that the device's `allocator` had no room for; ok where that is not why
// it cannot be made.
Status ConstantShortage(const Allocator* allocator, const TensorProto& constant);

// What a device of the CPU gives memory of: `usual`, or none of a pool. That is for kernels which
// run on the host wherever their tensors are, and, unless a pool has plenty, for threads that no op
// waits for in turn: those that read a checkpoint, or make batches of data.
Allocator* AllocatorOfKernel(Allocator* usual);

// One op that runs: when it may begin, and its end.
class OpFrame final : private ::lms::Pins {
 public:
  OpFrame(OpKernel* kernel, OpKernelContext* context);
  ~OpFrame() override;
  OpFrame(const OpFrame&) = delete;
  OpFrame& operator=(const OpFrame&) = delete;

  // When it fails, nothing is pinned and the kernel must not run.
  Status Enter();
  // Whether the kernel got no memory that it may get yet. Then nothing is pinned, the context is as
  // it was, and the op is to Enter again: from now on beside no others.
  bool BeginsAnew();
  // The kernel is done. Its context must still be alive.
  void Exit();

  // Whether the op needs no pins because it does not look at its tensors.
  static bool IsTransparent(const OpKernel& kernel, OpKernelContext* context);

  // Whether this thread runs a kernel that is the host's (OpFacts::on_host).
  static bool RunsOnHost();
  // Runs the kernel, and counts what it takes from the pool meanwhile.
  void Run(const std::function<void()>& kernel);
  // How many frames this thread is in: kernels may run ops.
  static int Depth();
  // This thread has memory from the pool: counts it for the op that it runs, if any.
  static void CountTaken(const Pool* pool, size_t bytes);
  // It does not get them, or it does after all: the error of its op, if it has one, says why.
  static void NoteShortage(const Pool* pool, size_t bytes);
  static void ForgetShortage();
  // What the ops that this thread runs have of the pool, but for `bytes` that are to come in.
  static size_t OwnBytes(const Pool* pool, size_t bytes);
  // What becomes of this thread's op if its kernel gets no memory.
  static ::lms::Lack LackOfThread();

 private:
  ::lms::OpId Id() const;
  void AwaitReservation();
  bool pin() override;
  void unpin() override;
  std::size_t count() const override { return operands_.pinned(); }
  bool GotNoMemory() const;
  void Explain();
  void DropOutputs();
  bool WasAlone() const;
  void NoteInputs();
  bool MayRunAgain() const;

  OpKernel* const kernel_;
  OpKernelContext* const context_;
  OpFrame* outer_ = nullptr;  // of the thread that runs the kernel
  Pool* const pool_;          // of the device that it runs on, null if that has none of ours
  Operands operands_;
  ::lms::Admission::Op op_;
  const bool nested_;  // part of an op that has a reservation
  // Inputs that the kernel cannot be given to write into, because they have another reference; and
  // which of all had none when it began.
  std::vector<Tensor> shared_;
  std::vector<bool> sole_;
  bool repeatable_;
  const int64_t outside_before_;  // shortages of threads outside of ops
  bool placed_alone_ = false;     // when its operands were placed, no other op ran
  uint64_t ended_before_ = 0;     // how many had ended then
  ::lms::Clock::Time begun_{};
  int times_anew_ = 0;
  int64_t taken_ = 0;     // bytes of the pool so far, by the thread that runs the kernel
  std::string shortage_;  // why it was not pinned
  std::string refused_;   // why the kernel did not get memory
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_FRAME_H_
