// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/frame.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/backend.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/placement.h"
#include "tensorflow/core/common_runtime/lms/core/turns.h"
#include "tensorflow/core/common_runtime/lms/op_facts.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/mutex.h"

namespace tensorflow {
namespace lms {
namespace {

// How often an op begins anew, each time because others were in its way. More make the error of
// one come later that does not fit, beside ops that begin and end all the time; fewer fail one that
// does.
constexpr int kMostTimesAnew = 4;

thread_local OpFrame* running = nullptr;   // the frame of the kernel that this thread runs
thread_local OpFrame* entering = nullptr;  // the one that it pins
thread_local int kernels = 0;              // that this thread runs, asynchronous ones, too
std::atomic<int> kernels_on_host{0};       // of all threads

// This thread runs a kernel.
class InKernel {
 public:
  explicit InKernel(const OpKernel* kernel) : on_host_(FactsOf(*kernel).on_host) {
    ++kernels;
    if (on_host_) ++kernels_on_host;
  }
  ~InKernel() {
    --kernels;
    if (on_host_) --kernels_on_host;
  }
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;

 private:
  const bool on_host_;
};

// What an op lacks may be Python's to let go of, so a thread does not keep the interpreter while
// its op runs. TensorFlow's own entry for ops does the same; its conversion of arrays does not.
class WithoutInterpreter {
 public:
  WithoutInterpreter() {
    static const auto held = Find<int (*)()>("PyGILState_Check");
    static const auto release = Find<void* (*)()>("PyEval_SaveThread");
    if (held != nullptr && release != nullptr && held()) state_ = release();
  }
  ~WithoutInterpreter() {
    static const auto take = Find<void (*)(void*)>("PyEval_RestoreThread");
    if (state_ != nullptr) take(state_);
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  // Nothing here is linked to Python, and a program need not have any.
  template <typename Function>
  static Function Find(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
  void* state_ = nullptr;
};

// Why a thread outside of ops got no memory: the error is of an op that waits for that thread.
class Outside {
 public:
  void Note(const std::string& why) {
    mutex_lock lock(mu_);
    why_ = why;
    ++count_;
  }
  int64_t count() const { return count_; }
  std::string why() {
    mutex_lock lock(mu_);
    return why_;
  }

 private:
  mutex mu_;
  std::string why_;
  std::atomic<int64_t> count_{0};
};
auto& outside = *new Outside;

// Whether a kernel may be given the tensor to write into.
bool IsSole(const Tensor& tensor) {
  return DMAHelper::buffer(&tensor) != nullptr && Tracker::IsOnly(tensor);
}

// Whether a run that got no memory leaves no trace, but for what it wrote into its inputs.
bool Repeatable(const OpKernel* kernel) {
  const auto plain = [](DataType type) {
    return type != DT_RESOURCE && type != DT_VARIANT && !IsRefType(type);
  };
  const auto& ins = kernel->input_types();
  const auto& outs = kernel->output_types();
  return FactsOf(*kernel).repeatable && std::all_of(ins.begin(), ins.end(), plain) &&
         std::all_of(outs.begin(), outs.end(), plain);
}

}  // namespace

OpFrame::OpFrame(OpKernel* kernel, OpKernelContext* context)
    : kernel_(kernel),
      context_(context),
      pool_(Runtime::Get().pools.Of(context->device()->GetAllocator(AllocatorAttributes()))),
      operands_(kernel, context, pool_),
      nested_(running != nullptr),
      repeatable_(pool_ != nullptr && !nested_ && Repeatable(kernel)),
      outside_before_(outside.count()) {}

OpFrame::~OpFrame() {
  if (pool_ != nullptr) pool_->admission.end(&op_, ::lms::Demand::kUnknown);
}

bool OpFrame::RunsOnHost() { return running != nullptr && FactsOf(*running->kernel_).on_host; }

void OpFrame::CountTaken(const Pool* pool, size_t bytes) {
  if (running != nullptr && running->pool_ == pool) running->taken_ += bytes;
}

void OpFrame::NoteShortage(const Pool* pool, size_t bytes) {
  if (kernels == 0) outside.Note(Shortage(pool, bytes));
  if (running == nullptr || running->pool_ != pool) return;
  running->refused_ = Shortage(pool, bytes);
  running->repeatable_ = running->MayRunAgain();  // a kernel may go on, and write what it gets then
}

void OpFrame::ForgetShortage() {
  if (running != nullptr) running->refused_.clear();
}

size_t OpFrame::OwnBytes(const Pool* pool, size_t bytes) {
  size_t own = 0;
  if (entering != nullptr && entering->pool_ == pool) {
    const size_t all = entering->operands_.PinnedBytes();
    own += all - std::min(all, bytes);
  }
  for (const OpFrame* frame = running; frame != nullptr; frame = frame->outer_) {
    if (frame->pool_ == pool) own += frame->operands_.PinnedBytes() + frame->taken_;
  }
  return own;
}

::lms::Lack OpFrame::LackOfThread() {
  if (running == nullptr) return ::lms::Lack::kOutsideOps;
  if (!running->MayRunAgain()) return ::lms::Lack::kFails;
  return running->op_.alone ? ::lms::Lack::kBeginsAgain : ::lms::Lack::kBeginsAnew;
}

// A kernel may write into an input that nobody else refers to, and cannot be run again then. What
// has other references gets one more, so that it does not come to be the only one meanwhile.
void OpFrame::NoteInputs() {
  if (!repeatable_) return;
  sole_.assign(context_->num_inputs(), false);
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (!context_->has_input(i)) continue;
    sole_[i] = IsSole(context_->input(i));
    if (!sole_[i]) shared_.push_back(context_->input(i));
  }
}

bool OpFrame::MayRunAgain() const {
  if (!repeatable_) return false;
  for (int i = 0; i < context_->num_inputs(); ++i) {
    if (sole_[i] && !IsSole(context_->input(i))) return false;
  }
  return true;
}

bool OpFrame::GotNoMemory() const {
  return !refused_.empty() && errors::IsResourceExhausted(context_->status());
}

// Whoever else lacks memory finds it before the context dies.
void OpFrame::DropOutputs() {
  for (int i = 0; i < context_->num_outputs(); ++i) {
    if (IsRefType(context_->expected_output_dtype(i))) continue;
    delete context_->release_output(i).tensor;
  }
}

// Whether no other op has been in its way since before its operands were placed.
bool OpFrame::WasAlone() const {
  const ::lms::Turns& turns = Runtime::Get().turns;
  return placed_alone_ && turns.alone(1) && turns.ended() == ended_before_;
}

bool OpFrame::BeginsAnew() {
  if (!GotNoMemory() || !Active() || !MayRunAgain()) return false;
  ::lms::Turns& turns = Runtime::Get().turns;
  const bool waited = ::lms::Clock::steady().now() >= begun_ + ::lms::Turns::kLongest;
  const bool in_vain = WasAlone() || waited || times_anew_ == kMostTimesAnew;
  if (op_.alone && in_vain) return false;
  ++times_anew_;
  DropOutputs();
  // The context offers no way to take an error back.
  const_cast<Status&>(context_->status()) = Ok();
  shared_.clear();
  refused_.clear();
  taken_ = 0;
  operands_.Unpin();
  pool_->admission.end(&op_, ::lms::Demand::kUnknown);
  turns.end();
  op_ = ::lms::Admission::Op();
  op_.alone = true;
  return true;
}

// The kernel's own words say no more than the shape that it could not have.
void OpFrame::Explain() {
  const bool may_wait = !op_.independent && outside.count() != outside_before_;
  if (refused_.empty() && may_wait) refused_ = outside.why();
  if (GotNoMemory()) {
    // The context offers no way to say more of an error.
    errors::AppendToMessage(const_cast<Status*>(&context_->status()), refused_);
    DropOutputs();
  }
}

void OpFrame::Run(const std::function<void()>& kernel) {
  NoteInputs();
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
  if (pool_ == nullptr || nested_) return;
  if (!op_.alone && pool_->admission.begins_unseen()) return;
  op_.id = Id();
  op_.operand_bytes = operands_.Bytes();
  op_.gathers = FactsOf(*kernel_).gathers;
  pool_->admission.ask(&op_);
}

bool OpFrame::pin() {
  entering = this;
  try {
    operands_.Pin();
    entering = nullptr;
    return true;
  } catch (const OutOfMemory& error) {
    shortage_ = error.what();
  }
  entering = nullptr;
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
    begun = turns.begin([this](::lms::Patience) { return pin(); }, [] { return false; },
                        /*fits_alone=*/false);
  } else {
    ::lms::Placement placement(*pool_, pool_->admission, *this);
    const auto place = [&](::lms::Patience patience) {
      placed_alone_ = turns.alone(1);
      ended_before_ = turns.ended();
      if (placement.place(op_, patience)) return true;
      pool_->admission.suspend(&op_);
      return false;
    };
    begun = turns.begin(
        place, [this] { return pool_->admission.others_end(); },
        pool_->FitsAlone(operands_.Bytes()));
  }
  if (!begun) {
    return errors::ResourceExhausted("OOM when bringing in the inputs of ", kernel_->name(), " (",
                                     std::string(kernel_->type_string()), "): ", shortage_);
  }
  if (pool_ != nullptr) pool_->admission.run(&op_);
  begun_ = ::lms::Clock::steady().now();
  return Ok();
}

void OpFrame::Exit() {
  Explain();
  shared_.clear();
  operands_.NoteResults();
  operands_.Unpin();
  if (pool_ != nullptr) {
    pool_->admission.end(&op_, context_->status().ok() ? taken_ : ::lms::Demand::kUnknown);
  }
  Runtime::Get().turns.end();
  if (Runtime::Get().engine.thrashing()) WarnOfThrashing();
}

void Compute(OpKernel* kernel, OpKernelContext* context, const std::function<void()>& run) {
  if (!Active()) {
    const ::lms::UnpinnedOp counted;
    if (!Active()) return run();  // still: enabling waits for this op now
  }
  const InKernel in_kernel(kernel);
  if (OpFrame::IsTransparent(*kernel, context)) {
    run();
    return;
  }
  const WithoutInterpreter released;
  OpFrame frame(kernel, context);
  do {
    const Status status = frame.Enter();
    if (!status.ok()) {
      context->SetStatus(status);
      return;
    }
    frame.Run(run);
  } while (frame.BeginsAnew());
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
  const InKernel in_kernel(kernel);
  const WithoutInterpreter released;
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
    const WithoutInterpreter released;
    const auto others_end = [this] { return pool_->admission.others_end(); };
    const auto pin = [this](::lms::Patience) { return Pin(); };
    const bool fits_alone = pool_->FitsAlone(static_cast<int64_t>(buffer_->size()));
    if (!Runtime::Get().turns.begin(pin, others_end, fits_alone)) return false;
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
    const ::lms::Use use{buffer_, ::lms::Access::kRead, Tracker::StreamOf(buffer_)};
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
  if (running != nullptr) {  // its own error says why
    return errors::ResourceExhausted("OOM when making a tensor of ", bytes, " bytes");
  }
  return errors::ResourceExhausted("OOM when making a constant: ",
                                   Shortage(pool, static_cast<size_t>(bytes)));
}

Allocator* AllocatorOfKernel(Allocator* usual) {
  if (!Active()) return usual;
  const Pool* pool = Runtime::Get().pools.Of(usual);
  if (pool == nullptr) return usual;
  const bool filled = !pool->admission.begins_unseen();
  const bool on_host = kernels > 0 ? OpFrame::RunsOnHost() : kernels_on_host > 0 || filled;
  return on_host ? cpu_allocator_base() : usual;
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
