// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Fences.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/cuda.h>
#include <c10/cuda/lms/core/crowd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace c10::cuda::lms {
namespace detail {
std::atomic<bool> external_streams{false};
}

namespace {

// To set a mark takes the host about as long as a GPU takes to read or write so much, so ops that
// use less share one; and no more of them than use a thousandth of the memory. More makes copies
// wait for ops that came after the last use, less costs the host more.
constexpr size_t kBytesPerMark = size_t{16} << 20;
constexpr size_t kMarksPerMemory = 1024;
// However little they use: their kernels may take long.
constexpr size_t kOpsPerMark = 16;

// Streams of copies out of a device. With one, a copy that waits for a late last use delays all
// that could begin, and with few, copies after the work of several streams delay each other. With
// more, copies of which the later one can begin sooner share the link, and the driver's queues,
// eight unless it is told otherwise, are the program's as well. On the dry device 21 runs took 0.1%
// more time a step in the mean with five of them than with three.
constexpr size_t kOutStreams = 5;

// The same of copies in, which wait for what uses their memory. On the dry device 25 runs took 0.5%
// less time in the mean than with one, one of them 9% less: a tensor of 1 MiB whose memory was in
// use for long had held up a backward pass.
constexpr size_t kInStreams = 3;

// Copies of each that are remembered. More takes events and time to look through; with fewer, of a
// host that is further ahead, copies go before such as are needed sooner.
constexpr size_t kCopiesKept = 64;

bool over(const std::vector<MarkPtr>& marks) {
  return std::all_of(marks.begin(), marks.end(), [](const MarkPtr& mark) { return mark->done(); });
}

Begin begin_with(const MarkPtr& end) { return {device_of(end), end->stream(), end->number()}; }

// Marks of several streams: that alone tells which is not over, if it is one.
Begin begin_after(const std::vector<MarkPtr>& ends) {
  if (ends.size() == 1) {
    return begin_with(ends[0]);
  }
  Begin begin;
  for (const MarkPtr& end : ends) {
    set_now(end);  // before that it is not over, whatever is
    if (end->done()) {
      continue;
    }
    if (begin.known()) {
      return {};
    }
    begin = begin_with(end);
  }
  return begin.known() ? begin : begin_with(ends[0]);
}

struct CopyStream {
  struct Copy {
    Begin begin;
    MarkPtr over;
  };
  cudaStream_t stream = nullptr;
  std::deque<Copy> copies;    // the last of them
  std::vector<MarkPtr> uses;  // that they wait for: of each stream the last

  Begin last_begin() const { return copies.empty() ? Begin() : copies.back().begin; }
  bool idle() const { return copies.empty() || copies.back().over->done(); }
  // What is queued there waits for no use, but for the link.
  bool begun() const { return over(uses); }

  // What need not be known any more goes to `let_go`.
  void add_use(const MarkPtr& use, std::vector<MarkPtr>* let_go) {
    const Begin begin = begin_with(use);
    const auto known = std::find_if(uses.begin(), uses.end(), [&begin](const MarkPtr& one) {
      return begin_with(one).comparable(begin);
    });
    if (known == uses.end()) {
      const auto over =
          std::partition(uses.begin(), uses.end(), [](const MarkPtr& one) { return !one->done(); });
      let_go->insert(let_go->end(), over, uses.end());
      uses.erase(over, uses.end());
      uses.push_back(use);
    } else if (begin_with(*known).no_later_than(begin)) {
      let_go->push_back(*known);
      *known = use;
    }
  }

  // When one can begin that is queued now and need not wait otherwise.
  Begin next_begin(const Begin& alone) const {
    const Begin last = last_begin();
    if (last.no_later_than(alone) || begun()) {
      return alone;
    }
    return last.comparable(alone) ? last : Begin();
  }
};

using CopyStreams = std::vector<CopyStream>;

struct DeviceState {
  std::vector<cudaEvent_t> events;
  std::array<CopyStreams, 2> ways{CopyStreams(kInStreams), CopyStreams(kOutStreams)};
  size_t bytes_per_mark = 0;  // 0: not asked yet

  CopyStreams& of(Way way) { return ways[static_cast<size_t>(way)]; }
};

// Leaked: fences may outlive static destructors.
struct State {
  std::mutex mutex;
  std::vector<DeviceState> devices;

  DeviceState& of(DeviceIndex device) {
    const auto index = static_cast<size_t>(device);
    if (devices.size() <= index) {
      devices.resize(index + 1);
    }
    return devices[index];
  }
};

State& state() {
  static auto* state = new State;
  return *state;
}

cudaEvent_t take_event(DeviceIndex device) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto& events = state().of(device).events;
    if (!events.empty()) {
      cudaEvent_t event = events.back();
      events.pop_back();
      return event;
    }
  }
  CUDAGuard guard(device);
  cudaEvent_t event = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void give_event(DeviceIndex device, cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().of(device).events.push_back(event);
}

size_t bytes_per_mark(DeviceIndex device) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (const size_t bytes = state().of(device).bytes_per_mark) {
      return bytes;
    }
  }
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  const size_t bytes = std::min(kBytesPerMark, properties.totalGlobalMem / kMarksPerMemory);
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().of(device).bytes_per_mark = std::max<size_t>(bytes, 1);
}

class EventMark;

// A stream, as far as its marks are concerned.
struct Line {
  ::lms::BiasedMutex mutex;  // also around what records: a mark is after all that was queued before
                             // its number was given away
  std::uint64_t last = 0;    // number of the last mark
  size_t used = 0;           // bytes that ops have used since
  size_t bytes_per_mark = 0;        // of its device
  std::shared_ptr<EventMark> next;  // where somebody has asked for it
  bool external = false;
  std::shared_ptr<EventMark> latest;  // of an external stream
};

// Leaked, as the fences are: so many as there were streams. The default stream of each device has
// the same handle.
struct Lines {
  std::mutex mutex;
  std::map<std::pair<DeviceIndex, cudaStream_t>, Line> lines;

  static Lines& all() {
    static auto* all = new Lines;
    return *all;
  }
};

// What a thread has of its own, with nothing to make.
struct LineOfThread {
  std::pair<DeviceIndex, cudaStream_t> of{-1, nullptr};  // the last that it looked for
  Line* line = nullptr;
  ::lms::BiasedMutex::Hand* hand = nullptr;
  bool ends = false;  // the thread: it has a hand no more
};

LineOfThread& line_of_thread() {
  thread_local LineOfThread mine;
  return mine;
}

Line& line_of(DeviceIndex device, cudaStream_t stream) {
  LineOfThread& mine = line_of_thread();
  if (mine.line == nullptr || mine.of != std::make_pair(device, stream)) {
    Lines& all = Lines::all();
    const std::lock_guard<std::mutex> lock(all.mutex);
    mine.of = {device, stream};
    mine.line = &all.lines[mine.of];
  }
  return *mine.line;
}

// By which this thread comes to own the mutexes of lines, until it ends.
struct LineHand {
  LineHand() { line_of_thread().hand = &hand; }
  ~LineHand() {
    line_of_thread().hand = nullptr;
    line_of_thread().ends = true;
    if (in_child()) {  // a thread of the parent may have had one of these
      return;
    }
    Lines& all = Lines::all();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (auto& one : all.lines) {
      const std::lock_guard<::lms::BiasedMutex> line(one.second.mutex);
      one.second.mutex.disown();
    }
  }
  LineHand(const LineHand&) = delete;
  LineHand& operator=(const LineHand&) = delete;

  ::lms::BiasedMutex::Hand hand;
};

::lms::BiasedMutex::Hand* line_hand() {
  LineOfThread& mine = line_of_thread();
  if (C10_UNLIKELY(mine.hand == nullptr && !mine.ends)) {
    thread_local LineHand hand;
    (void)hand;
  }
  return mine.hand;
}

// After an error of the context nothing runs on it any more, so the work of every fence is over;
// the error is told by whatever asks for more. Fences are asked in deleters, which must not throw.
//
// Never part of a graph, so that it may be asked for while one is captured.
class EventMark final : public ::lms::Mark {
 public:
  EventMark(DeviceIndex device, cudaStream_t stream, Line& line, std::uint64_t number)
      : device_(device), stream_(stream), line_(line), number_(number) {}
  ~EventMark() override {
    if (event_ != nullptr) {
      give_event(device_, event_);
    }
  }

  ::lms::Stream stream() const override { return stream_; }
  std::uint64_t number() const override { return number_; }
  DeviceIndex device() const { return device_; }

  bool done() override {
    if (!set_) {
      return false;
    }
    if (!done_) {
      const OutsideCapture outside;
      const cudaError_t err = C10_CUDA_ERROR_HANDLED(cudaEventQuery(event_));
      if (err == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
      }
      if (err != cudaSuccess) {
        (void)cudaGetLastError();
      }
      done_ = true;
    }
    return true;
  }

  void wait() override {
    if (!done_) {
      const OutsideCapture outside;
      C10_CUDA_IGNORE_ERROR(cudaEventSynchronize(event()));
      done_ = true;
    }
  }

  // Sets it where nobody has yet.
  cudaEvent_t event() {
    if (!set_) {
      const std::lock_guard<::lms::BiasedMutex> lock(line_.mutex);
      if (!set_) {  // then it is the next
        record();
        line_.next.reset();
      }
    }
    return event_;
  }

  // Under the line's lock.
  void record() { record_on(stream_); }
  // The same, on another stream that stands for this one.
  void record_on(cudaStream_t stream) {
    const CUDAGuard guard(device_);
    if (event_ == nullptr) {
      event_ = take_event(device_);
    }
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
    line_.last = number_;
    line_.used = 0;
    set_ = true;
  }

 private:
  const DeviceIndex device_;
  const cudaStream_t stream_;
  Line& line_;
  const std::uint64_t number_;
  cudaEvent_t event_ = nullptr;
  std::atomic<bool> set_{false};
  std::atomic<bool> done_{false};
};

// Under the line's lock.
std::shared_ptr<EventMark> next_of(DeviceIndex device, cudaStream_t stream, Line& line) {
  return line.next ? line.next : std::make_shared<EventMark>(device, stream, line, line.last + 1);
}

bool is_current(DeviceIndex device, cudaStream_t stream) {
  return getCurrentCUDAStream(device).stream() == stream;
}

// Under the line's lock. On an external stream a mark is also after those of before: its handle may
// have been another's, whose work goes on.
MarkPtr set_on(DeviceIndex device, cudaStream_t stream, Line& line) {
  if (C10_UNLIKELY(line.latest != nullptr)) {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, line.latest->event(), 0));
  }
  const auto mark = next_of(device, stream, line);
  mark->record();
  line.next.reset();
  if (line.external) {
    line.latest = mark;
  }
  return mark;
}

// Whoever cannot use an external stream waits for its last mark instead: that must come after what
// the stream itself has been made to wait for.
void mark_if_external(DeviceIndex device, cudaStream_t stream) {
  Line& line = line_of(device, stream);
  const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
  if (line.external) {
    set_on(device, stream, line);
  }
}

std::atomic<bool> measuring{false};

// Of one device. The events are timed, and pooled.
struct WaitLog {
  struct Pair {
    Wait what;
    cudaEvent_t before, after;
  };
  std::vector<cudaEvent_t> events;
  std::deque<Pair> pending;
  std::array<double, kWaits> microseconds{};
};

struct WaitLogs {
  std::mutex mutex;
  std::map<DeviceIndex, WaitLog> devices;
};

WaitLogs& wait_logs() {
  static auto* logs = new WaitLogs;  // leaked, as the fences are
  return *logs;
}

// Null where there is none to be had.
cudaEvent_t record_time(DeviceIndex device, cudaStream_t stream) noexcept {
  cudaEvent_t event = nullptr;
  try {
    const CUDAGuard guard(device);
    {
      const std::lock_guard<std::mutex> lock(wait_logs().mutex);
      auto& events = wait_logs().devices[device].events;
      if (!events.empty()) {
        event = events.back();
        events.pop_back();
      }
    }
    if (event == nullptr) {
      C10_CUDA_CHECK(cudaEventCreate(&event));
    }
    C10_CUDA_CHECK(cudaEventRecord(event, stream));
    return event;
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
  return nullptr;
}

// Adds up the waits that are over, the oldest first. Under the lock of the logs.
void add_up(WaitLog* log) {
  const OutsideCapture outside;
  while (!log->pending.empty()) {
    const WaitLog::Pair pair = log->pending.front();
    float milliseconds = 0;
    cudaError_t err = C10_CUDA_ERROR_HANDLED(cudaEventQuery(pair.after));
    if (err == cudaSuccess) {
      err = C10_CUDA_ERROR_HANDLED(cudaEventElapsedTime(&milliseconds, pair.before, pair.after));
    }
    if (err != cudaSuccess) {
      (void)cudaGetLastError();
    }
    if (err == cudaErrorNotReady) {
      return;
    }
    log->microseconds[static_cast<size_t>(pair.what)] += 1000.0 * static_cast<double>(milliseconds);
    log->events.insert(log->events.end(), {pair.before, pair.after});
    log->pending.pop_front();
  }
}

// What kind of stream has the handle now.
void know(DeviceIndex device, cudaStream_t handle, bool external) {
  Line& line = line_of(device, handle);
  const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
  if (external == line.external) {
    return;
  }
  detail::external_streams = true;
  line.external = external;
  if (external) {
    // It may be one of PyTorch's under another name: what that was given is over with a mark, too.
    if (is_current(device, handle) && !capturing(handle)) {
      set_on(device, handle, line);
    }
  } else if (line.latest) {  // PyTorch's, or the engine's, has the handle of one that is gone
    if (capturing(handle)) {
      line.latest->wait();
    } else {
      set_on(device, handle, line);
    }
    line.latest.reset();
  }
}

// The stream that `which` finds in the state of the device, under its lock; made on first use.
template <class Which>
cudaStream_t copy_stream(DeviceIndex device, const Which& which) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (cudaStream_t stream = which(state().of(device))) {
      return stream;
    }
  }
  const CUDAGuard guard(device);
  cudaStream_t made = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  know(device, made, /*external=*/false);
  std::lock_guard<std::mutex> lock(state().mutex);
  cudaStream_t& stream = which(state().of(device));
  if (stream == nullptr) {
    stream = made;
  } else {  // another thread was first
    C10_CUDA_IGNORE_ERROR(cudaStreamDestroy(made));
  }
  return stream;
}

// Where a copy waits least for copies that begin later: behind the latest of those that do not. The
// device is asked what is over only where there are none. `made`: of the streams that there are.
size_t place_of(const Begin& begin, const std::vector<MarkPtr>& ends, const CopyStreams& streams,
                bool made) {
  enum Kind { kBehind, kIdle, kBegun, kAlike, kOther, kNone };  // the better one first
  using Rank = std::pair<Kind, std::int64_t>;
  using Ranks = std::vector<Rank>;
  const auto ranks_by = [&streams](const auto& rank) {
    Ranks ranks(streams.size());
    std::transform(streams.begin(), streams.end(), ranks.begin(), rank);
    return ranks;
  };
  const auto first = [](const Ranks& ranks) {
    return static_cast<size_t>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
  };
  const auto number = [](const CopyStream& one) {
    return static_cast<std::int64_t>(one.last_begin().number);
  };
  Ranks ranks = ranks_by([&](const CopyStream& one) {
    return one.last_begin().no_later_than(begin) ? Rank{kBehind, -number(one)} : Rank{kNone, 0};
  });
  if (ranks[first(ranks)].first == kBehind) {
    return first(ranks);
  }
  ranks = ranks_by([&](const CopyStream& one) -> Rank {
    if (made && one.stream == nullptr) {
      return {kNone, 0};
    }
    if (one.idle()) {
      return {kIdle, 0};
    }
    if (one.begun()) {
      return {kBegun, 0};
    }
    return one.last_begin().alike(begin) ? Rank{kAlike, number(one)} : Rank{kOther, 0};
  });
  const auto count = [&ranks](Kind kind) {
    return std::count_if(ranks.begin(), ranks.end(),
                         [kind](const Rank& rank) { return rank.first == kind; });
  };
  // The last that is idle is left to what waits for nothing, or for none of the streams that others
  // wait for.
  if (count(kIdle) == 1 && count(kAlike) > 0 && !over(ends)) {
    std::replace(ranks.begin(), ranks.end(), Rank{kIdle, 0}, Rank{kOther, 0});
  }
  return first(ranks);
}

// The first for this way.
cudaStream_t first_stream(DeviceIndex device, Way way) {
  return copy_stream(device,
                     [way](DeviceState& its) -> cudaStream_t& { return its.of(way)[0].stream; });
}

// What is after the last copy there that can begin no later, if there is one.
MarkPtr last_before(const Begin& begin, const CopyStream& stream) {
  const auto last =
      std::find_if(stream.copies.rbegin(), stream.copies.rend(),
                   [&](const CopyStream::Copy& copy) { return copy.begin.no_later_than(begin); });
  return last == stream.copies.rend() ? nullptr : last->over;
}

// Where a copy is queued, and what it comes after on other streams.
struct Turn {
  size_t place;
  std::vector<MarkPtr> sooner;  // let go without the lock, which a mark takes to give its event
};

Turn turn_of(DeviceIndex device, Way way, const Begin& begin, const std::vector<MarkPtr>& ends,
             bool made) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const CopyStreams& streams = state().of(device).of(way);
  Turn turn{place_of(begin, ends, streams, made), {}};
  for (size_t other = 0; other < streams.size(); ++other) {
    if (other == turn.place) {
      continue;
    }
    if (MarkPtr over = last_before(begin, streams[other])) {
      turn.sooner.push_back(std::move(over));
    }
  }
  return turn;
}

}  // namespace

void detail::know_stream(const CUDAStream& stream) {
  know(stream.device_index(), stream.stream(), is_external(stream));
}

void know_earlier_stream(DeviceIndex device, cudaStream_t handle) {
  know(device, handle, /*external=*/true);
}

bool program_owns(DeviceIndex device, cudaStream_t stream) {
  if (C10_LIKELY(!detail::external_streams)) {
    return false;
  }
  Line& line = line_of(device, stream);
  const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
  return line.external;
}

bool usable(DeviceIndex device, cudaStream_t stream) {
  return !program_owns(device, stream) || is_current(device, stream);
}

void mark_external_streams() noexcept {
  if (C10_LIKELY(!detail::external_streams)) {
    return;
  }
  try {
    for (DeviceIndex device = 0; device < device_count(); ++device) {
      const CUDAStream stream = getCurrentCUDAStream(device);
      if (is_external(stream) && !capturing(stream)) {
        set_mark(device, stream);
      }
    }
  } catch (const c10::Error&) {  // whoever uses the stream next is told
    (void)cudaGetLastError();
  }
}

MarkPtr set_mark(DeviceIndex device, cudaStream_t stream) {
  Line& line = line_of(device, stream);
  {
    const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
    if (C10_LIKELY(!line.external) || is_current(device, stream)) {
      return set_on(device, stream, line);
    }
    if (line.latest) {
      return line.latest;
    }
  }
  const cudaStream_t in = first_stream(device, Way::kIn);
  const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
  if (!line.latest) {  // no op has used it. One of its own, as its numbers are compared
    const auto mark = next_of(device, stream, line);
    mark->record_on(in);
    line.next.reset();
    line.latest = mark;
  }
  return line.latest;
}

void mark_after(DeviceIndex device, cudaStream_t stream, size_t bytes, MarkPtr* mark) {
  Line& line = line_of(device, stream);
  {
    const ::lms::BiasedLock lock(line.mutex, line_hand());
    if (C10_LIKELY(!line.external)) {
      if (C10_UNLIKELY(line.bytes_per_mark == 0)) {
        line.bytes_per_mark = bytes_per_mark(device);
      }
      line.used += std::max(bytes, line.bytes_per_mark / kOpsPerMark);
      if (line.used >= line.bytes_per_mark) {
        *mark = capturing(stream) ? nullptr : set_on(device, stream, line);
        return;
      }
      if (C10_UNLIKELY(!line.next)) {
        line.next = next_of(device, stream, line);
      }
      if (*mark != line.next) {
        *mark = line.next;
      }
      return;
    }
  }
  *mark = is_current(device, stream) && capturing(stream) ? nullptr : set_mark(device, stream);
}

MarkPtr next_mark(DeviceIndex device, cudaStream_t stream) {
  Line& line = line_of(device, stream);
  const std::lock_guard<::lms::BiasedMutex> lock(line.mutex);
  if (C10_UNLIKELY(line.external)) {
    return line.latest;
  }
  return line.next = next_of(device, stream, line);
}

void set_now(const MarkPtr& mark) { (void)static_cast<EventMark&>(*mark).event(); }

void wait_fence(DeviceIndex device, cudaStream_t stream, const ::lms::FencePtr& fence) {
  const CUDAGuard guard(device);  // without it a default stream is that of the current device
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, static_cast<EventMark&>(*fence).event(), 0));
}

void wait_fence_at(DeviceIndex device, cudaStream_t stream, const ::lms::FencePtr& fence) {
  if (C10_UNLIKELY(!usable(device, stream))) {
    fence->wait();
    return;
  }
  wait_fence(device, stream, fence);
  if (C10_UNLIKELY(detail::external_streams)) {
    mark_if_external(device, stream);
  }
}

std::vector<MarkPtr> ends_of(DeviceIndex device, cudaStream_t home, const Ready& ready) {
  std::vector<MarkPtr> ends;
  if (ready.all) {
    ends.push_back(set_mark(device, home));
  } else if (ready.home) {
    ends.push_back(ready.home);
  }
  for (const MarkPtr& out : ready.out) {
    ends.push_back(out);
  }
  for (const MarkPtr& in : ready.in) {
    ends.push_back(in);
  }
  return ends;
}

void measure_waits(bool on) noexcept { measuring = on; }

std::array<int64_t, kWaits> waited(DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(wait_logs().mutex);
  WaitLog& log = wait_logs().devices[device];
  add_up(&log);
  std::array<int64_t, kWaits> result{};
  std::transform(log.microseconds.begin(), log.microseconds.end(), result.begin(),
                 [](double microseconds) { return std::llround(microseconds); });
  return result;
}

void reset_waited(DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(wait_logs().mutex);
  WaitLog& log = wait_logs().devices[device];
  add_up(&log);
  log.microseconds.fill(0);
}

MeasuredWait::MeasuredWait(DeviceIndex device, cudaStream_t stream, Wait what) noexcept
    : device_(device), stream_(stream), what_(what) {
  if (C10_UNLIKELY(measuring.load(std::memory_order_relaxed))) {
    before_ = record_time(device, stream);
  }
}

MeasuredWait::~MeasuredWait() {
  if (C10_LIKELY(before_ == nullptr)) {
    return;
  }
  const cudaEvent_t after = record_time(device_, stream_);
  const std::lock_guard<std::mutex> lock(wait_logs().mutex);
  WaitLog& log = wait_logs().devices[device_];
  if (after == nullptr) {
    log.events.push_back(before_);
    return;
  }
  log.pending.push_back({what_, before_, after});
  add_up(&log);
}

DeviceIndex device_of(const ::lms::FencePtr& fence) {
  return static_cast<EventMark&>(*fence).device();
}

QueuedCopy::QueuedCopy(DeviceIndex device, Way way, std::vector<MarkPtr> ends)
    : QueuedCopy(device, way, ends, begin_after(ends)) {}

QueuedCopy::QueuedCopy(DeviceIndex device, Way way, std::vector<MarkPtr> ends, const Begin& begin)
    : device_(device), way_(way), ends_(std::move(ends)), begin_(begin) {
  (void)first_stream(device, Way::kIn);  // as what has left is to come back
  Turn turn = turn_of(device, way, begin_, ends_, /*made=*/false);
  const auto which = [way, &turn](DeviceState& its) -> cudaStream_t& {
    return its.of(way)[turn.place].stream;
  };
  try {
    stream_ = copy_stream(device, which);
  } catch (const c10::Error&) {  // as where the driver has no memory for one more
    turn = turn_of(device, way, begin_, ends_, /*made=*/true);
    stream_ = copy_stream(device, which);
  }
  for (const MarkPtr& over : turn.sooner) {
    wait_fence(device_, stream_, over);
  }
  const MeasuredWait wait(device, stream_, way == Way::kIn ? Wait::kCopiesIn : Wait::kCopiesOut);
  for (const MarkPtr& end : ends_) {
    wait_fence(device_, stream_, end);
  }
}

MarkPtr QueuedCopy::end() {
  const MarkPtr over = set_mark(device_, stream_);
  CopyStream::Copy oldest;  // as above
  std::vector<MarkPtr> let_go;
  const std::lock_guard<std::mutex> lock(state().mutex);
  CopyStreams& streams = state().of(device_).of(way_);
  const auto its = std::find_if(streams.begin(), streams.end(),
                                [this](const CopyStream& one) { return one.stream == stream_; });
  its->copies.push_back({its->next_begin(begin_), over});
  for (const MarkPtr& end : ends_) {
    its->add_use(end, &let_go);
  }
  if (its->copies.size() > kCopiesKept) {
    std::swap(oldest, its->copies.front());
    its->copies.pop_front();
  }
  return over;
}

void finish_copy_streams() {
  std::vector<std::pair<DeviceIndex, cudaStream_t>> streams;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    for (size_t device = 0; device < state().devices.size(); ++device) {
      for (const CopyStreams& way : state().devices[device].ways) {
        for (const CopyStream& one : way) {
          streams.emplace_back(static_cast<DeviceIndex>(device), one.stream);
        }
      }
    }
  }
  for (const auto& [device, stream] : streams) {
    if (stream != nullptr) {
      set_mark(device, stream)->wait();
    }
  }
}

}  // namespace c10::cuda::lms
