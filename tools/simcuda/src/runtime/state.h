// SPDX-License-Identifier: Apache-2.0
// The state of the simulated devices, shared by the files of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../clock/clock.h"
#include "../order/clock.h"
#include "simcuda.h"
#include "values.h"

// The CUDA that the program was built for. It is that of the headers, unless it has none.
#ifndef SIMCUDA_CUDA_VERSION
#define SIMCUDA_CUDA_VERSION CUDART_VERSION
#endif

#define SIMCUDA_CUDA extern "C" __attribute__((visibility("default")))

namespace simcuda {

constexpr int kCuda = SIMCUDA_CUDA_VERSION;

// One mutex guards everything below. It is never held while a command runs.
using Lock = std::unique_lock<std::mutex>;

struct Stream;
struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

// A point in a stream's queue; done once all commands before it have run.
struct Ticket {
  Stream* stream;
  long lag;
  bool done = false;
  double milliseconds = 0;
  CapturePtr capture = nullptr;  // that it was recorded in: never done, only to wait for in there
  order::Snapshot known = nullptr;  // what is done when it is
  long asked = 0;                   // by queries that were not answered
  clock::MarkPtr mark = nullptr;    // dry: what says when it is done
  long polls = 0;                   // dry: queries that found it not done
};
using TicketPtr = std::shared_ptr<Ticket>;

struct Work;
class Trace;

struct Command {
  TicketPtr wait;             // first, another stream's ticket must be done
  std::function<void()> run;  // then this runs
  TicketPtr record;           // then this is done
  // When it is issued: writes it into the books.
  std::function<void(Stream&)> account = nullptr;
  std::shared_ptr<const Work> work = nullptr;  // in a graph: what each launch does to memory
  clock::Unit unit = clock::Unit::kCompute;    // dry: what it occupies, and for how long
  clock::Nanoseconds time = 0;
  const char* name = "";  // dry: what it does, to how many bytes, of them on the device
  size_t bytes = 0;
  const void* at = nullptr;
};

struct Stream {
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  std::deque<Command> queue;
  long lag = 0;
  // The thread that runs a command or an op of this stream now; depth counts its nesting.
  std::thread::id runner;
  int depth = 0;
  SimcudaStreamCopies copies{};
  CapturePtr capture;
  order::Actor actor = order::kHost;  // its own once it is used
  long asked = 0;                     // as of a ticket
  clock::Line* line = nullptr;        // dry: the same stream in virtual time

  bool busy_elsewhere() const { return depth > 0 && runner != std::this_thread::get_id(); }
};

struct Event {
  TicketPtr ticket;
  unsigned flags = 0;
  int device = 0;
};

// Address space that is handed out once and not again until it has all been used: what touches
// freed memory meets an unmapped page.
class Arena {
 public:
  explicit Arena(size_t bytes);
  // An unmapped range, or nullptr. `taken` are the live ranges by address.
  char* place(size_t bytes, size_t alignment);
  void release(char* address, size_t bytes);  // unmaps; the range may be used again much later
  char* base() const { return base_; }
  size_t size() const { return size_; }

 private:
  char* base_;
  size_t size_;
  size_t next_ = 0;
  std::map<char*, size_t> live_;
};

enum class Kind { kDevice, kPinned, kRegistered, kReserved, kImported };

struct Allocation {
  size_t bytes;
  int device;
  Kind kind;
  bool on_device() const {
    return kind == Kind::kDevice || kind == Kind::kReserved || kind == Kind::kImported;
  }
};

struct Device {
  explicit Device(size_t capacity_bytes);
  size_t capacity;
  size_t used = 0;
  size_t peak = 0;
  int memory = -1;       // memfd behind the device's memory, so that another process can map it
  Arena arena;           // offset in the arena == offset in the memfd
  size_t next_physical;  // VMM memory lies behind the arena in the memfd
  Stream default_stream;
};

// The next `skip` calls pass, the `count` after them fail.
struct Fault {
  long skip = 0, count = 0;
  bool fires();
};

struct State {
  State();
  ~State();
  std::mutex mutex;
  std::condition_variable changed;  // a stream's runner has finished
  std::vector<std::unique_ptr<Device>> devices;
  std::set<Stream*> streams;  // all but the default ones
  std::set<Stream*> ending;   // destroyed since the last wait for their device
  std::map<uintptr_t, Allocation> allocations;
  Arena host_arena;
  size_t host_used = 0, host_peak = 0, host_capacity = 0;
  std::atomic<int> registered{0};            // ranges of host memory
  std::atomic<int> mode{SIMCUDA_IMMEDIATE};  // read by every op
  long lag = 0;
  double bandwidth = 0;
  bool poison = true;
  bool abort_on_refusal = false;
  Fault malloc_fault, host_fault, stream_fault, copy_fault;
  SimcudaCounters counters{};
  cudaError_t late_error = cudaSuccess;     // of a command, not told yet
  bool broken = false;                      // the context, by an error that stays
  SimcudaProfile profile{};                 // dry
  std::atomic<bool> unseen_kernels{false};  // dry: a launch takes its time, whatever it would do
  Values values;                            // of such a device
  std::unique_ptr<clock::Clock> clock;      // dry: there is one
  std::unique_ptr<Trace> trace;             // if what happens is written down
};

// Never destroyed: libraries free memory after static destructors have run.
State& state();

int current_device();
bool valid_device(int device);
cudaError_t properties_of(cudaDeviceProp* out, int device);
cudaError_t attributes_of(cudaPointerAttributes* out, const void* pointer);
cudaError_t fail(cudaError_t error);  // remembers the thread's last error

// state.cpp: memory
Allocation* find_allocation(const void* pointer, uintptr_t* base = nullptr);
bool charge(int device, size_t bytes);
size_t round_up(size_t bytes, size_t multiple);
size_t charged_bytes(size_t bytes);
constexpr size_t kPage = 4096;
constexpr size_t kLargePage = size_t{2} << 20;

// dry.cpp
bool dry();
void spend(clock::Nanoseconds time);  // of the host; nothing unless it is dry
bool tracing();

// queue.cpp
// Whether there is such a stream: the program may have destroyed it.
bool exists(void* stream);
Stream& resolve(cudaStream_t stream);
Stream& resolve(void* stream, int device);
void push(Lock& lock, Stream& stream, Command command);
void complete(Lock& lock, TicketPtr ticket);
void drain(Lock& lock, Stream& stream);
void drain_device(Lock& lock, int device);  // -1: all
void legacy_order(Lock& lock, Stream& stream);
TicketPtr mark(Stream& stream);

// refuse.cpp
void refuse(const std::string& what);
cudaError_t late_error();  // tells it, once

double now_milliseconds();

}  // namespace simcuda
