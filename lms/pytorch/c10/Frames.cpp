// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Backend.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/compat/storage.h>
#include <c10/cuda/lms/core/turns.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// What surrounds an op: its pins, and what is let go when no lock is held any more.
namespace c10::cuda::lms {

// References to storages that are let go when no lock is held.
struct Acquired {
  std::vector<intrusive_ptr<StorageImpl>> strong;
  std::vector<StorageImpl*> weak;
};

namespace {

thread_local detail::Thread thread_of_its_own;

// No object of the thread's: one that is destroyed before may still let tensors go.
Acquired& acquired() {
  detail::Thread& mine = detail::this_thread();
  if (mine.holds == nullptr) {
    mine.holds = new Acquired;
  }
  return *mine.holds;
}

}  // namespace

detail::Thread& detail::this_thread() noexcept { return thread_of_its_own; }

namespace {

// Leaked, as the engine is.
::lms::Turns& turns() {
  static auto* turns = new ::lms::Turns(nullptr);
  return *turns;
}

}  // namespace

// A thread's ops are a lane, up to what it runs when it `ends`.
struct ThreadFrame {
  explicit ThreadFrame(bool ends) : lane(ends ? 0 : engine.open_lane()) {}
  ~ThreadFrame() {
    engine.close_lane(frame);
    turns.close_tally(tally);
  }
  ThreadFrame(const ThreadFrame&) = delete;
  ThreadFrame& operator=(const ThreadFrame&) = delete;

  ::lms::Engine& engine = state().engine;
  ::lms::Turns& turns = c10::cuda::lms::turns();
  ::lms::Turns::Tally& tally = turns.open_tally();
  const ::lms::Lane lane;
  ::lms::Engine::Frame frame{lane};
  int depth = 0;
  bool started = false;      // counts among the ops that run: its pins may be in others' way
  bool independent = false;  // it ends without the help of another thread
  bool in_turn = false;      // it tries again
  bool for_graph = false;    // what it uses or makes is a graph's own
  bool waited = false;       // it has tried again, in vain: the next shortage is the user's
  const std::shared_ptr<std::atomic<int>> holds = std::make_shared<std::atomic<int>>(0);
};

namespace {

ThreadFrame& make_frame(detail::Thread& mine) {
  struct Own {
    explicit Own(detail::Thread& thread) : mine(thread) {}
    ~Own() {
      mine.frame = nullptr;
      mine.ends = true;
    }
    detail::Thread& mine;
    ThreadFrame frame{/*ends=*/false};
  };
  if (C10_UNLIKELY(mine.ends)) {  // nobody tells when it is over: leaked
    mine.frame = new ThreadFrame(/*ends=*/true);
  } else {
    thread_local Own own(mine);
    mine.frame = &own.frame;
  }
  return *mine.frame;
}

ThreadFrame& frame_of(detail::Thread& mine) {
  return C10_LIKELY(mine.frame != nullptr) ? *mine.frame : make_frame(mine);
}

ThreadFrame& this_frame() { return frame_of(detail::this_thread()); }

// PyTorch's own check for it is not set up in its wheels, and nothing here is linked to Python.
bool holds_interpreter() {
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check != nullptr && check() != 0;
}

struct Standstill {
  std::thread::id owner;
  std::function<void()> abandon;  // ends it; null where nothing can
};

// Captures and pools whose end others wait for. Leaked, as the engine is.
struct Standstills {
  std::mutex mutex;
  std::vector<Standstill> list;

  static Standstills& all() {
    static auto* all = new Standstills;
    return *all;
  }
  // The last of this thread's, or the end. With the lock.
  std::vector<Standstill>::iterator mine() {
    const auto last = std::find_if(list.rbegin(), list.rend(), [](const Standstill& one) {
      return one.owner == std::this_thread::get_id();
    });
    return last == list.rend() ? list.end() : std::prev(last.base());
  }
};

bool has_standstill() {
  auto& all = Standstills::all();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.mine() != all.list.end();
}

// Another thread's op may need the interpreter to come to its end, or wait for a standstill of this
// one's.
bool may_wait() { return !in_engine() && !holds_interpreter() && !has_standstill(); }

// Nor does one wait that holds what those that bar the way wait for.
bool may_wait_at_bar(const ThreadFrame& mine) {
  return C10_UNLIKELY(mine.turns.barred()) && *mine.holds == 0 && may_wait();
}

C10_ALWAYS_INLINE void start(ThreadFrame* mine, bool independent) {
  mine->turns.start(mine->tally, independent, may_wait_at_bar(*mine));
  mine->started = true;
  mine->independent = independent;
}

C10_ALWAYS_INLINE void end(ThreadFrame* mine) {
  if (C10_LIKELY(mine->started)) {
    mine->started = false;
    mine->turns.end_started(mine->tally, mine->independent);
  }
}

// The current stream of the device that all are of; f(stream).
template <class F>
C10_ALWAYS_INLINE void fill_in_stream(Use* uses, size_t count, int device, const F& f) {
  const ::lms::Stream stream = current_stream(device);
  f(stream);
  for (size_t i = 0; i < count; ++i) {
    uses[i].stream = stream;
  }
}

// The same of each one's device, where it is another than the one before. The device that all are
// of, or -1.
template <class F>
int fill_in_streams(Use* uses, size_t count, const F& f) {
  int device = -1, changes = 0;
  ::lms::Stream stream = nullptr;  // current on `device`; mostly all are of one: to ask costs more
  for (size_t i = 0; i < count; ++i) {
    const int its = glance_at_device(*static_cast<StorageImpl*>(uses[i].key)).index();
    if (its != device) {
      device = its;
      ++changes;
      stream = current_stream(device);
      f(stream);
    }
    uses[i].stream = stream;
  }
  return changes == 1 ? device : -1;
}

}  // namespace

void keep_alive(intrusive_ptr<StorageImpl> storage) {
  acquired().strong.push_back(std::move(storage));
}

void drop_weak_later(StorageImpl* storage) { acquired().weak.push_back(storage); }

void release_acquired() {
  detail::Thread& mine = detail::this_thread();
  if (C10_UNLIKELY(mine.holds != nullptr)) {
    const std::unique_ptr<Acquired> storages(std::exchange(mine.holds, nullptr));
    const bool before = std::exchange(mine.lets_go, true);
    storages->strong.clear();
    mine.lets_go = before;
    for (StorageImpl* storage : storages->weak) {
      drop_weak(storage);
    }
  }
}

void hold_for_graph(bool hold) { this_frame().for_graph = hold; }

void expose_to_capture(::lms::Key key, ::lms::Stream stream) {
  if (C10_UNLIKELY(this_frame().for_graph || capturing(static_cast<cudaStream_t>(stream)))) {
    state().engine.expose(key, stream);
  }
}

const ::lms::Engine::Frame& current_frame() { return this_frame().frame; }

void note(StorageImpl* storage) {
  const ThreadFrame& mine = this_frame();
  if (mine.depth > 0) {
    return;
  }
  EngineScope scope;
  const int device = glance_at_device(*storage).index();
  const ::lms::Stream stream = current_stream(device);
  state().engine.note(nullptr, storage, stream, mine.lane, device);
  if (C10_UNLIKELY(mine.for_graph)) {
    state().engine.expose(storage, stream);
  }
}

MakingScope::MakingScope() {
  ThreadFrame& mine = this_frame();
  if (!mine.started && !mine.in_turn) {
    outside_ops_ = mine.depth == 0;
    start(&mine, outside_ops_ || mine.independent);
  }
}

MakingScope::~MakingScope() {
  if (outside_ops_) {
    end(&this_frame());
  }
}

Hold::Hold(const std::vector<StorageImpl*>& storages) : of_thread_(this_frame().holds) {
  ++*of_thread_;
  turns().hold();
  try {
    for (StorageImpl* storage : storages) {
      pin(storage);
      storages_.push_back(reference_to(storage));
    }
  } catch (...) {
    release(/*within_try=*/this_frame().in_turn);
    throw;
  }
}

Hold::~Hold() { release(/*within_try=*/false); }

void Hold::release(bool within_try) noexcept {
  if (in_child()) {
    return;
  }
  for (const auto& storage : storages_) {
    unpin(storage.get());
  }
  --*of_thread_;
  if (within_try) {
    turns().withdraw();
  } else {
    turns().release();
  }
}

OpGuard::OpGuard(bool independent, detail::Thread& mine) : thread_(mine), mine_(frame_of(mine)) {
  if (C10_LIKELY(++mine_.depth == 1 && !mine_.started)) {
    mine_.independent = independent;
  }
}

OpGuard::~OpGuard() {
  ThreadFrame& mine = mine_;
  if (C10_UNLIKELY(in_child())) {  // forked within the op
    --mine.depth;
    return;
  }
  if (C10_UNLIKELY(overwritten_.key != nullptr)) {
    EngineScope scope(thread_);
    try {
      mine.engine.restore(&overwritten_);
    } catch (const std::exception& error) {  // as is likely to be true of the op's own error
      TORCH_WARN("Large Model Support: a tensor has lost its bytes: ", error.what());
    }
  }
  mark_external_streams();
  EngineScope scope(thread_);
  try {
    if (C10_UNLIKELY(mine.depth > 1)) {
      for (size_t i = 0; i < result_count_; ++i) {
        mine.engine.note(&mine.frame, results_[i].key, results_[i].stream, mine.lane,
                         device_of_results_);
      }
    } else if (C10_LIKELY(!mine.frame.empty() || result_count_ > 0)) {
      mine.engine.leave(mine.frame, results_, result_count_, device_of_results_);
      detail::lms_switch.retire();
    }
  } catch (const std::exception& error) {  // chaos mode could not evict: the op itself succeeded
    TORCH_WARN("Large Model Support: ", error.what());
  }
  if (C10_UNLIKELY(--mine.depth > 0)) {
    return;
  }
  mine.waited = false;
  end(&mine);  // before what the scope lets go, which may want the interpreter
  if (C10_UNLIKELY(mine.engine.thrashing())) {
    warn_of_thrashing();
  }
}

void OpGuard::enter(Use* uses, size_t count, const char* op, int device) {
  ThreadFrame& mine = mine_;
  if (C10_LIKELY(!mine.started && !mine.in_turn)) {
    start(&mine, mine.independent);
  }
  bool captured = mine.for_graph;
  const auto look = [&captured](::lms::Stream stream) {
    captured = captured || capturing(static_cast<cudaStream_t>(stream));
  };
  if (C10_LIKELY(device >= 0)) {
    fill_in_stream(uses, count, device, look);
  } else {
    device = fill_in_streams(uses, count, look);
  }
  with_host_memory(
      [&] {  // what is pinned by then stays so, and is pinned once more
        EngineScope scope(thread_);
        mine.engine.enter(mine.frame, uses, count, &overwritten_, op, device);
      },
      thread_);
  if (C10_LIKELY(!captured && overwritten_.key == nullptr)) {
    return;
  }
  EngineScope scope(thread_);
  if (overwritten_.key != nullptr) {
    target_ = reference_to(static_cast<StorageImpl*>(overwritten_.key));
  }
  for (size_t i = 0; i < count; ++i) {
    expose_to_capture(uses[i].key, uses[i].stream);
  }
}

void OpGuard::results(Use* made, size_t count) {
  if (in_child()) {
    return;
  }
  device_of_results_ = fill_in_streams(made, count, [](::lms::Stream) {});
  results_ = made;
  result_count_ = count;
}

void OpGuard::overwrote() {
  if (!in_child()) {
    EngineScope scope(thread_);
    mine_.engine.overwrote(&overwritten_);
  }
}

void begin_standstill(std::function<void()> abandon) {
  if (in_child()) {
    return;
  }
  turns().start(/*independent=*/false, may_wait_at_bar(this_frame()));
  auto& all = Standstills::all();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.list.push_back({std::this_thread::get_id(), std::move(abandon)});
}

void end_standstill() {
  if (in_child()) {
    return;
  }
  {
    auto& all = Standstills::all();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.list.empty()) {
      return;
    }
    const auto mine = all.mine();  // unless another thread has begun it
    all.list.erase(mine != all.list.end() ? mine : all.list.begin());
  }
  turns().end_started(/*independent=*/false);
}

void abandon_capture() {
  if (in_child()) {
    return;
  }
  std::function<void()> abandon;
  {
    auto& all = Standstills::all();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto mine = all.mine();  // of the capture, where its pool's has ended
    if (mine != all.list.end()) {
      abandon = mine->abandon;
    }
  }
  if (abandon) {
    abandon();
  }
}

bool stands_still() noexcept {
  auto& all = Standstills::all();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return !all.list.empty();
}

bool in_capture() {
  return capture_underway() && (has_standstill() || capturing(getCurrentCUDAStream()));
}

bool try_again(const std::function<bool()>& attempt) {
  if (in_capture()) {
    return false;
  }
  const auto afresh = [&attempt] {
    if (capture_underway()) {  // nothing may move
      return false;
    }
    // With the operands where they are, as if the first try had gone on and spared nothing.
    if (was_spared() && attempt()) {
      return true;
    }
    evict_for_shortage();
    if (attempt()) {
      return true;
    }
    // What is taken for small requests may be just what is missing, or the rest of a segment of
    // which an operand needs little.
    for (const auto small :
         {LeastSegments::Small::kBorrowLast, LeastSegments::Small::kBorrowFirst}) {
      const LeastSegments least(small);
      evict_for_shortage();
      if (attempt()) {
        return true;
      }
    }
    return false;
  };
  ThreadFrame& mine = this_frame();
  if (mine.depth > 0 || !may_wait()) {
    return afresh();
  }
  const bool done = turns().try_again(
      [&](::lms::Patience) {
        mine.in_turn = true;
        const auto over = c10::make_scope_exit([&mine] { mine.in_turn = false; });
        turns().between_ops([] { release_workspaces(); });
        return afresh();
      },
      [] { return turns().independent_run(); }, /*fits_alone=*/false, *mine.holds);
  mine.waited = !done;
  if (done) {
    if (!mine.frame.empty()) {  // it has begun, and runs from now on
      turns().start(mine.independent = false, /*may_wait=*/false);
      mine.started = true;
    }
    turns().end();
  }
  return done;
}

// Nobody waits here who may be in another's way for longer than that one waits for him: as in
// try_again, and with the pins that the kernel needs.
bool wait_for_room(const std::function<bool()>& attempt) {
  ThreadFrame& mine = this_frame();
  const int holds = *mine.holds;
  const bool alone = turns().alone(1) && !turns().others_hold(holds);
  if (std::exchange(mine.waited, false) || !mine.started || mine.in_turn ||
      ShortageScope::active() || alone || !may_wait() || in_capture()) {
    return false;
  }
  const auto again = [&attempt] {
    release_acquired();
    return attempt();
  };
  return turns().wait(again, ::lms::Lack::kFails, 1, /*fits_alone=*/false, holds);
}

UnpinnedOp::UnpinnedOp() = default;

UnpinnedOp::~UnpinnedOp() = default;

}  // namespace c10::cuda::lms
