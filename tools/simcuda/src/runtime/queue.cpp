// SPDX-License-Identifier: Apache-2.0
// Streams as queues of deferred commands.
//
// A command runs on the thread that needs it done. While it runs, its stream is marked with that
// thread and the mutex is free; others who need the stream wait. Tickets only ever point backwards
// in time, so waiting for one cannot form a cycle.
#include "capture.h"
#include "order.h"
#include "trace.h"

namespace simcuda {
namespace {

// Takes the stream for this thread once nothing is queued on it.
void occupy(Lock& lock, Stream& stream) {
  while (stream.busy_elsewhere() || (stream.depth == 0 && !stream.queue.empty())) {
    drain(lock, stream);
  }
  stream.runner = std::this_thread::get_id();
  stream.depth++;
}

void vacate(Stream& stream) {
  if (--stream.depth == 0) {
    stream.runner = {};
    state().changed.notify_all();
  }
}

void run_front(Lock& lock, Stream& stream) {
  Command command = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.runner = std::this_thread::get_id();
  stream.depth++;
  if (command.wait) complete(lock, command.wait);
  if (command.run) {
    lock.unlock();
    command.run();
    lock.lock();
  }
  if (command.record) {
    command.record->done = true;
    command.record->milliseconds = now_milliseconds();
  }
  vacate(stream);
}

}  // namespace

static bool is_default(void* stream) {
  auto handle = static_cast<cudaStream_t>(stream);
  return handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
}

bool exists(void* stream) {
  return is_default(stream) || state().streams.count(static_cast<Stream*>(stream)) != 0;
}

Stream& resolve(void* stream, int device) {
  if (is_default(stream)) return state().devices[device]->default_stream;
  return *static_cast<Stream*>(stream);
}

Stream& resolve(cudaStream_t stream) { return resolve(stream, current_device()); }

void complete(Lock& lock, TicketPtr ticket) {
  if (dry()) {
    if (ticket && ticket->mark) state().clock->finish(ticket->mark);
    return;
  }
  while (ticket && !ticket->done) {
    Stream& stream = *ticket->stream;
    if (stream.busy_elsewhere()) {
      state().changed.wait(lock);
    } else if (stream.depth > 0 || stream.queue.empty()) {
      return;  // asked from inside the very command that it stands for
    } else {
      run_front(lock, stream);
    }
  }
}

TicketPtr mark(Stream& stream) {
  auto ticket = std::make_shared<Ticket>(Ticket{&stream, state().lag});
  stream.queue.push_back({nullptr, nullptr, ticket});
  return ticket;
}

void drain(Lock& lock, Stream& stream) {
  if (dry()) return state().clock->finish(*stream.line);
  stream.lag = 0;
  if (stream.queue.empty() && !stream.busy_elsewhere()) return;
  complete(lock, mark(stream));
}

void drain_device(Lock& lock, int device) {
  auto& g = state();
  if (dry()) {
    for (auto& d : g.devices) {
      int of = d->default_stream.device;
      if (device < 0 || device == of) g.clock->finish(of);
    }
    return;
  }
  std::vector<TicketPtr> tickets;  // taken first: the set of streams may change while we wait
  auto take = [&](Stream& stream) {
    if (stream.queue.empty() && !stream.busy_elsewhere()) return;
    if (device < 0 || stream.device == device) tickets.push_back(mark(stream));
  };
  for (auto& d : g.devices) take(d->default_stream);
  for (Stream* stream : g.streams) take(*stream);
  for (Stream* stream : g.ending) take(*stream);
  for (auto& ticket : tickets) complete(lock, ticket);
}

// The legacy default stream and the blocking streams of a device wait for each other.
void legacy_order(Lock& lock, Stream& stream) {
  auto& g = state();
  if (dry()) return;  // the clock's
  Stream& legacy = g.devices[stream.device]->default_stream;
  if (&stream != &legacy) {
    if (!(stream.flags & cudaStreamNonBlocking)) drain(lock, legacy);
    return;
  }
  std::vector<TicketPtr> tickets;
  for (auto* streams : {&g.streams, &g.ending}) {
    for (Stream* other : *streams) {
      if (other->device == stream.device && !(other->flags & cudaStreamNonBlocking) &&
          (!other->queue.empty() || other->busy_elsewhere())) {
        tickets.push_back(mark(*other));
      }
    }
  }
  for (auto& ticket : tickets) complete(lock, ticket);
}

// Nothing is put off in virtual time. A function of the program's runs when it is issued.
static void push_dry(Lock& lock, Stream& stream, Command command) {
  clock::Clock& clock = *state().clock;
  if (command.account) command.account(stream);
  spend(state().profile.call);
  if (command.wait) clock.wait(*stream.line, command.wait->mark);
  if (command.time > 0) {
    if (tracing()) state().trace->command(stream, command);
    uint64_t number = clock.run(*stream.line, command.unit, command.time);
    if (tracing()) state().trace->issued(number);
  }
  if (command.record) command.record->mark = clock.record(*stream.line);
  if (!command.run) return;
  lock.unlock();
  command.run();
  lock.lock();
}

void push(Lock& lock, Stream& stream, Command command) {
  auto& g = state();
  if (dry()) return push_dry(lock, stream, std::move(command));
  if (stream.capture) return record(lock, stream, std::move(command));
  if (command.account) command.account(stream);
  // An op that holds its stream took its place in the order when it began.
  if (stream.depth == 0 || stream.busy_elsewhere()) legacy_order(lock, stream);
  stream.queue.push_back(std::move(command));
  stream.lag = g.lag;
  bool is_default = &stream == &g.devices[stream.device]->default_stream;
  if (g.mode == SIMCUDA_IMMEDIATE || (g.mode == SIMCUDA_EAGER_COPY && !is_default)) {
    drain(lock, stream);
  }
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_stream_begin(void* handle, int device, int is_op) {
  Lock lock(state().mutex);
  if (is_op) state().counters.ops++;
  Stream& stream = resolve(handle, device);
  legacy_order(lock, stream);
  occupy(lock, stream);
}

void simcuda_stream_end(void* handle, int device) {
  Lock lock(state().mutex);
  vacate(resolve(handle, device));
}

void simcuda_enqueue(void* handle, int device, void (*run)(void*), void* argument) {
  Lock lock(state().mutex);
  push(lock, resolve(handle, device), {nullptr, [=] { run(argument); }, nullptr});
}

}  // extern "C"

// The host learns what was before a function of its own by being called.
static std::function<void()> host_function(Stream& stream, std::function<void()> function) {
  return [known = order_record(stream), function = std::move(function)] {
    {
      Lock lock(state().mutex);
      order_host(known);
    }
    function();
  };
}

// ---- streams

SIMCUDA_CUDA cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags,
                                                      int priority) {
  Lock lock(state().mutex);
  if (state().stream_fault.fires()) return fail(cudaErrorMemoryAllocation);
  auto* stream = new Stream;
  stream->device = current_device();
  stream->priority = priority;
  stream->flags = flags;
  if (dry()) {
    auto order = flags & cudaStreamNonBlocking ? clock::Order::kNone : clock::Order::kBlocking;
    stream->line = &state().clock->open(stream->device, order);
  }
  state().streams.insert(stream);
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}

SIMCUDA_CUDA cudaError_t cudaStreamCreate(cudaStream_t* out) {
  return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

// The call returns at once, and what is queued still runs.
SIMCUDA_CUDA cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock(state().mutex);
  auto& g = state();
  if (is_default(handle) || !exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  if (dry()) g.clock->close(*stream.line);
  order_destroyed(stream);
  if (tracing()) g.trace->forget(stream);
  g.streams.erase(&stream);
  g.ending.insert(&stream);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  *priority = resolve(handle).priority;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  *flags = resolve(handle).flags;
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock(state().mutex);
  state().counters.stream_syncs++;
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  if (cudaError_t error = unsafe_on(stream)) return error;
  legacy_order(lock, stream);
  drain(lock, stream);
  order_host_stream(stream);
  return late_error();
}

SIMCUDA_CUDA cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  if (cudaError_t error = unsafe_on(stream)) return error;
  if (!order_may_answer(stream)) return fail(cudaErrorNotReady);
  if (dry()) {
    spend(state().profile.call);
    if (!state().clock->record(*stream.line)->done) return fail(cudaErrorNotReady);
  }
  bool done = stream.queue.empty() && !stream.busy_elsewhere();
  if (!done && stream.lag-- > 0) return fail(cudaErrorNotReady);
  drain(lock, stream);
  order_host_stream(stream);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  auto ticket = reinterpret_cast<Event*>(event)->ticket;
  if (ticket && (ticket->capture || resolve(handle).capture)) {
    return wait_in_capture(resolve(handle), ticket);
  }
  if (ticket) order_wait(resolve(handle), ticket->known);
  if (ticket && !ticket->done) push(lock, resolve(handle), {ticket, nullptr, nullptr});
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                                            void* data) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  Command command{nullptr, host_function(stream, [=] { function(data); }), nullptr};
  if (stream.capture) {
    add_node(stream, std::move(command));  // a function of the program's runs when it is launched
  } else {
    push(lock, stream, std::move(command));
  }
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function,
                                               void* data, unsigned) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  auto run = host_function(stream, [=] { function(handle, cudaSuccess, data); });
  push(lock, stream, {nullptr, std::move(run), nullptr});
  return cudaSuccess;
}

static void forget_ended(int device) {
  auto& ending = state().ending;
  for (auto it = ending.begin(); it != ending.end();) {
    Stream* stream = *it;
    const bool over = stream->device == device && stream->queue.empty() && stream->depth == 0;
    it = over ? ending.erase(it) : std::next(it);
    if (over) delete stream;
  }
}

SIMCUDA_CUDA cudaError_t cudaDeviceSynchronize() {
  Lock lock(state().mutex);
  state().counters.device_syncs++;
  if (cudaError_t error = unsafe_in_capture()) return error;
  drain_device(lock, current_device());
  order_host_device(current_device());
  forget_ended(current_device());
  return late_error();
}

// ---- events

SIMCUDA_CUDA cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  *out = reinterpret_cast<cudaEvent_t>(new Event{nullptr, flags, current_device()});
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return cudaEventCreateWithFlags(out, cudaEventDefault);
}

SIMCUDA_CUDA cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(state().mutex);
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  Lock lock(state().mutex);
  if (state().broken) return fail(cudaErrorIllegalAddress);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  if (stream.device != reinterpret_cast<Event*>(event)->device) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  ++state().counters.event_records;
  auto ticket = std::make_shared<Ticket>(Ticket{&stream, state().lag});
  reinterpret_cast<Event*>(event)->ticket = ticket;
  ticket->capture = stream.capture;
  if (stream.capture) return cudaSuccess;
  ticket->known = order_record(stream);
  push(lock, stream, {nullptr, nullptr, ticket});
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle,
                                                  unsigned) {
  return cudaEventRecord(event, handle);
}

// A thread that looks now and then whether something is over, by real time, does not change what
// time it is. A program that polls gets there: TensorFlow, which has nothing else to do then, at
// once.
static constexpr long kFreePolls = 100;

SIMCUDA_CUDA cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(state().mutex);
  auto ticket = reinterpret_cast<Event*>(event)->ticket;
  if (cudaError_t error = unsafe_in_capture()) return error;
  if (state().broken) return fail(cudaErrorIllegalAddress);
  if (!ticket) return cudaSuccess;
  if (ticket->capture && !ticket->done) return captured_event(ticket);
  if (!order_may_answer(ticket->known, ticket->asked)) return fail(cudaErrorNotReady);
  if (dry() && !ticket->mark->done) {
    if (++ticket->polls <= kFreePolls) return fail(cudaErrorNotReady);
    if (!state().unseen_kernels) {
      spend(state().profile.call);
      return fail(cudaErrorNotReady);
    }
  }
  if (!ticket->done && ticket->lag-- > 0) return fail(cudaErrorNotReady);
  complete(lock, ticket);
  order_host(ticket->known);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(state().mutex);
  state().counters.event_syncs++;
  auto ticket = reinterpret_cast<Event*>(event)->ticket;
  if (cudaError_t error = unsafe_in_capture()) return error;
  if (ticket && ticket->capture) return captured_event(ticket);
  complete(lock, ticket);
  if (ticket) order_host(ticket->known);
  return late_error();
}

SIMCUDA_CUDA cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start,
                                              cudaEvent_t end) {
  Lock lock(state().mutex);
  auto *first = reinterpret_cast<Event*>(start), *last = reinterpret_cast<Event*>(end);
  if (!first->ticket || !last->ticket || ((first->flags | last->flags) & cudaEventDisableTiming)) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (dry()) {
    auto &from = *first->ticket->mark, &to = *last->ticket->mark;
    if (!from.done || !to.done) return fail(cudaErrorNotReady);
    *milliseconds = static_cast<float>(static_cast<double>(to.at - from.at) / 1e6);
    return cudaSuccess;
  }
  if (!first->ticket->done || !last->ticket->done) return fail(cudaErrorNotReady);
  *milliseconds = static_cast<float>(last->ticket->milliseconds - first->ticket->milliseconds);
  return cudaSuccess;
}

// An event of another process is always complete: see cudaIpcGetEventHandle.
SIMCUDA_CUDA cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  Lock lock(state().mutex);
  *handle = {};
  complete(lock, reinterpret_cast<Event*>(event)->ticket);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* out, cudaIpcEventHandle_t) {
  return cudaEventCreateWithFlags(out, cudaEventDisableTiming);
}
