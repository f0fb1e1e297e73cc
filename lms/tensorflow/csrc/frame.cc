// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/frame.h"

#include <functional>
#include <memory>
#include <utility>

#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/placement.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/op_facts.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/lib/core/errors.h"

namespace tensorflow {
namespace lms {
namespace {

thread_local OpFrame* running = nullptr;  // the frame of the kernel that this thread runs

}  // namespace

OpFrame::OpFrame(OpKernel* kernel, OpKernelContext* context)
    : kernel_(kernel),
      context_(context),
      pool_(Runtime::Get().pools.Of(context->device()->GetAllocator(AllocatorAttributes()))),
      operands_(kernel, context, pool_) {}

OpFrame::~OpFrame() {
  if (pool_ != nullptr) pool_->admission.end(&op_, ::lms::Demand::kUnknown);
}

bool OpFrame::RunsOnHost() { return running != nullptr && FactsOf(*running->kernel_).on_host; }

void OpFrame::CountTaken(const Pool* pool, size_t bytes) {
  if (running != nullptr && running->pool_ == pool) running->taken_ += bytes;
}

void OpFrame::NoteShortage(const Pool* pool, size_t bytes) {
  if (running == nullptr || running->pool_ != pool) return;
  running->refused_ = Shortage(pool, bytes);
}

// The kernel's own words say no more than the shape that it could not have.
void OpFrame::Explain() {
  if (refused_.empty() || !errors::IsResourceExhausted(context_->status())) return;
  // The context offers no way to say more of an error.
  errors::AppendToMessage(const_cast<Status*>(&context_->status()), refused_);
}

void OpFrame::Run(const std::function<void()>& kernel) {
  outer_ = running;
  running = this;
  kernel();
  running = outer_;
}

int OpFrame::Depth() {
  int depth = 0;
  for (const OpFrame* frame = running; frame != nullptr; frame = frame->outer_) ++depth;
  return depth;
}

// A kernel may be where another was, and have the name of another.
::lms::OpId OpFrame::Id() const {
  return std::hash<std::string>()(kernel_->name()) ^ std::hash<const OpKernel*>()(kernel_);
}

void OpFrame::AwaitReservation() {
  const bool nested = running != nullptr;  // part of an op that has its own
  if (pool_ == nullptr || nested || pool_->admission.begins_unseen()) return;
  op_.id = Id();
  op_.operand_bytes = operands_.Bytes();
  op_.gathers = FactsOf(*kernel_).gathers;
  pool_->admission.ask(&op_);
}

bool OpFrame::pin() {
  try {
    operands_.Pin();
    return true;
  } catch (const OutOfMemory& error) {
    shortage_ = error.what();
  }
  operands_.Unpin();
  return false;
}

void OpFrame::unpin() {
  operands_.Unpin();
  shortage_ = "operands of other operations are in the way";
}

Status OpFrame::Enter() {
  op_.independent = kernel_->AsAsync() == nullptr && !operands_.kept();
  AwaitReservation();
  ::lms::Turns& turns = Runtime::Get().turns;
  bool begun = false;
  if (pool_ == nullptr) {
    begun = turns.begin([this](::lms::Patience) { return pin(); }, [] { return false; });
  } else {
    ::lms::Placement placement(*pool_, pool_->admission, *this);
    const auto place = [&](::lms::Patience patience) {
      if (placement.place(op_, patience)) return true;
      pool_->admission.suspend(&op_);
      return false;
    };
    begun = turns.begin(place, [this] { return pool_->admission.others_end(); });
  }
  if (!begun) {
    return errors::ResourceExhausted("OOM when bringing in the inputs of ", kernel_->name(), " (",
                                     std::string(kernel_->type_string()), "): ", shortage_);
  }
  if (pool_ != nullptr) pool_->admission.run(&op_);
  return Ok();
}

void OpFrame::Exit() {
  Explain();
  operands_.NoteResults();
  operands_.Unpin();
  if (pool_ != nullptr) {
    pool_->admission.end(&op_, context_->status().ok() ? taken_ : ::lms::Demand::kUnknown);
  }
  Runtime::Get().turns.end();
}

void Compute(OpKernel* kernel, OpKernelContext* context, const std::function<void()>& run) {
  if (!Active()) {
    const ::lms::UnpinnedOp counted;
    if (!Active()) return run();  // still: enabling waits for this op now
  }
  if (OpFrame::IsTransparent(*kernel, context)) {
    run();
    return;
  }
  OpFrame frame(kernel, context);
  const Status status = frame.Enter();
  if (!status.ok()) {
    context->SetStatus(status);
    return;
  }
  frame.Run(run);
  frame.Exit();
}

void Compute(OpKernel* kernel, OpKernelContext* context) {
  Compute(kernel, context, [kernel, context] { kernel->Compute(context); });
}

void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done,
                  const std::function<void(AsyncOpKernel::DoneCallback)>& run) {
  // Not counted before the first enable: such an op may wait for others for ever, and holds
  // references to its inputs, which keeps them from becoming movable.
  if (!EverActive() || OpFrame::IsTransparent(*kernel, context)) {
    run(std::move(done));
    return;
  }
  auto* frame = new OpFrame(kernel, context);
  const Status status = frame->Enter();
  if (!status.ok()) {
    delete frame;
    context->SetStatus(status);
    done();
    return;
  }
  run([frame, done]() {
    frame->Exit();
    delete frame;
    done();
  });
}

void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context,
                  AsyncOpKernel::DoneCallback done) {
  ComputeAsync(kernel, context, std::move(done), [kernel, context](AsyncOpKernel::DoneCallback d) {
    kernel->ComputeAsync(context, std::move(d));
  });
}

namespace {

// The pin of a buffer that is copied outside of an op.
class CopyPin {
 public:
  CopyPin(MovableBuffer* buffer, Pool* pool) : buffer_(buffer), pool_(pool) {}

  // False when it cannot be brought in, not even after ops have ended.
  bool Begin() {
    const auto others_end = [this] { return pool_->admission.others_end(); };
    const auto pin = [this](::lms::Patience) { return Pin(); };
    if (!Runtime::Get().turns.begin(pin, others_end)) return false;
    NotePeaks(pool_);
    return true;
  }
  void End() {
    Runtime::Get().engine.leave(frame_);
    Runtime::Get().turns.end();
  }
  const std::string& shortage() const { return shortage_; }

 private:
  bool Pin() {
    ::lms::Engine& engine = Runtime::Get().engine;
    const ::lms::Engine::Use use{buffer_, ::lms::Access::kRead, 0, Tracker::StreamOf(buffer_)};
    try {
      engine.enter(frame_, &use, 1);
      return true;
    } catch (const OutOfMemory& error) {
      shortage_ = error.what();
    }
    engine.leave(frame_);
    return false;
  }

  MovableBuffer* const buffer_;
  Pool* const pool_;
  ::lms::Engine::Frame frame_;
  std::string shortage_;
};

}  // namespace

bool PinForCopy(const Tensor& tensor, std::function<void(const Status&)>* done) {
  if (!Active()) return true;
  MovableBuffer* buffer = Tracker::Manageable(tensor);
  if (buffer == nullptr || !buffer->tracked()) return true;
  auto pin = std::make_shared<CopyPin>(buffer, Runtime::Get().pools.Of(buffer->allocator()));
  if (!pin->Begin()) {
    (*done)(errors::ResourceExhausted("OOM when copying a tensor: ", pin->shortage()));
    return false;
  }
  const auto then = *done;
  *done = [pin, then](const Status& status) {
    pin->End();
    then(status);
  };
  return true;
}

void NoteConstant(const Tensor& tensor) {
  if (!Active()) return;
  Runtime& runtime = Runtime::Get();
  MovableBuffer* buffer = Tracker::Manageable(tensor);
  if (buffer == nullptr) return;
  EngineLock lock(runtime.engine.mutex());
  runtime.tracker.Track(buffer);
}

Status ConstantShortage(const Allocator* allocator, const TensorProto& constant) {
  const Pool* pool = Active() ? Runtime::Get().pools.Of(allocator) : nullptr;
  if (pool == nullptr || !TensorShape::IsValid(constant.tensor_shape())) return Ok();
  const int64_t bytes =
      TensorShape(constant.tensor_shape()).num_elements() * DataTypeSize(constant.dtype());
  if (pool->has(bytes)) return Ok();
  return errors::ResourceExhausted("OOM when making a constant: ",
                                   Shortage(pool, static_cast<size_t>(bytes)));
}

Allocator* AllocatorOfKernel(Allocator* usual) {
  return OpFrame::RunsOnHost() && Runtime::Get().pools.Of(usual) != nullptr ? cpu_allocator_base()
                                                                            : usual;
}

bool OpFrame::IsTransparent(const OpKernel& kernel, OpKernelContext* context) {
  const OpFacts& facts = FactsOf(kernel);
  if (facts.returns) return !ReturnsToExternalCaller(context);
  if (facts.sends) return SendsWithinProcess(kernel);
  if (!facts.by_reference) return false;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->has_input(i) && context->input_is_ref(i)) return false;
  }
  return true;
}

}  // namespace lms
}  // namespace tensorflow
