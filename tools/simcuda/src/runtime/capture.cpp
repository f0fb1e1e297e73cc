// SPDX-License-Identifier: Apache-2.0
// CUDA graphs. A capture records commands in the order of their issue, which is one that their
// dependencies allow; a launch runs them in this order on one stream.
//
// Unlike on a real device, what is captured also runs, at once: the operators need data to find
// the shapes of their results. What it overwrites is put back when the capture ends.
#include "capture.h"

#include <algorithm>
#include <cstring>

#include "order.h"
#include "refuse.h"

namespace simcuda {

struct Graph {
  std::vector<Command> nodes;
  std::vector<std::shared_ptr<void>> objects;  // that the program wants to live as long
};

struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  Stream* origin;
  std::map<Stream*, bool> streams;  // true: joined, the last work on it has been waited for
  std::map<char*, std::vector<char>> saved;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool valid = true;
};

namespace {

std::vector<CapturePtr>& captures() {
  static auto* all = new std::vector<CapturePtr>;
  return *all;
}

thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return fail(error);
}

using GraphPtr = std::shared_ptr<Graph>;
GraphPtr& graph_of(void* handle) { return *static_cast<GraphPtr*>(handle); }

}  // namespace

void add_node(Stream& stream, Command command) {
  stream.capture->streams[&stream] = false;
  stream.capture->graph->nodes.push_back(std::move(command));
}

void record(Lock& lock, Stream& stream, Command command) {
  add_node(stream, command);
  if (!command.run) return;
  lock.unlock();
  command.run();
  lock.lock();
}

void save(Stream& stream, void* memory, size_t bytes) {
  if (!stream.capture || bytes == 0) return;
  auto* from = static_cast<char*>(memory);
  auto& saved = stream.capture->saved[from];
  // What was saved first is what was there before; a larger range brings more of it.
  if (saved.size() < bytes) saved.insert(saved.end(), from + saved.size(), from + bytes);
}

cudaError_t captured_event(const TicketPtr& ticket) {
  const auto& all = captures();
  if (std::find(all.begin(), all.end(), ticket->capture) == all.end()) {
    return fail(cudaErrorCapturedEvent);
  }
  return invalidate(*ticket->capture, cudaErrorCapturedEvent);
}

cudaError_t wait_in_capture(Stream& stream, const TicketPtr& ticket) {
  if (!ticket->capture) return invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  if (!stream.capture) {
    if (std::find(captures().begin(), captures().end(), ticket->capture) == captures().end()) {
      return fail(cudaErrorCapturedEvent);  // its capture has ended
    }
    bool legacy = &stream == &state().devices[stream.device]->default_stream;
    if (legacy) return invalidate(*ticket->capture, cudaErrorStreamCaptureImplicit);
    stream.capture = ticket->capture;
  } else if (stream.capture != ticket->capture) {
    return invalidate(*stream.capture, cudaErrorStreamCaptureMerge);
  }
  if (ticket->stream != &stream) stream.capture->streams[ticket->stream] = true;
  stream.capture->streams[&stream] = false;
  return cudaSuccess;
}

cudaError_t unsafe_in_capture() {
  if (t_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (auto& capture : captures()) {
    bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && own)) {
      return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return cudaSuccess;
}

cudaError_t unsafe_on(Stream& stream) {
  if (!stream.capture) return cudaSuccess;
  return invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t capture_info(cudaStream_t handle, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Capture* capture = resolve(handle).capture.get();
  *status = !capture         ? cudaStreamCaptureStatusNone
            : capture->valid ? cudaStreamCaptureStatusActive
                             : cudaStreamCaptureStatusInvalidated;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture ? reinterpret_cast<cudaGraph_t>(&capture->graph) : nullptr;
  return cudaSuccess;
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_CUDA cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                               cudaStreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr);
}

SIMCUDA_CUDA cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  Lock lock(state().mutex);
  if (state().broken) return fail(cudaErrorIllegalAddress);  // as it may, by its documentation
  std::swap(*mode, t_mode);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  static unsigned long long next_id = 1;
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  if (&stream == &state().devices[stream.device]->default_stream) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (stream.capture) return fail(cudaErrorIllegalState);
  if (dry()) {
    remember_refusal("the capture of a CUDA graph: a dry device has none");
    return fail(cudaErrorNotSupported);
  }
  drain_device(lock, -1);  // what was issued before is done: what is captured runs at once
  stream.capture = std::make_shared<Capture>(
      Capture{next_id++, mode, std::this_thread::get_id(), &stream, {}, {}});
  captures().push_back(stream.capture);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  Lock lock(state().mutex);
  *out = nullptr;
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  CapturePtr capture = stream.capture;
  if (!capture) return fail(cudaErrorIllegalState);
  if (capture->origin != &stream) return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  bool joined = true;
  for (auto& [other, waited_for] : capture->streams) {
    joined &= waited_for || other == &stream;
    other->capture = nullptr;
  }
  stream.capture = nullptr;
  auto& all = captures();
  all.erase(std::find(all.begin(), all.end(), capture));
  for (auto& [memory, bytes] : capture->saved) {
    if (find_allocation(memory)) memcpy(memory, bytes.data(), bytes.size());
  }
  if (!capture->valid) return fail(cudaErrorStreamCaptureInvalidated);
  if (!joined) return fail(cudaErrorStreamCaptureUnjoined);
  *out = reinterpret_cast<cudaGraph_t>(new GraphPtr(capture->graph));
  return cudaSuccess;
}

// ---- graphs

SIMCUDA_CUDA cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph,
                                                       unsigned long long) {
  *out = reinterpret_cast<cudaGraphExec_t>(new GraphPtr(graph_of(graph)));
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

SIMCUDA_CUDA cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  Lock lock(state().mutex);
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  for (auto& node : graph_of(graph)->nodes) {
    if (node.work) {
      if (cudaError_t error = order_note(stream, *node.work)) return error;
    }
    push(lock, stream, node);
  }
  return late_error();
}

SIMCUDA_CUDA cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                           size_t* count) {
  auto& all = graph_of(graph)->nodes;
  if (nodes) {
    *count = std::min(*count, all.size());
    for (size_t i = 0; i < *count; i++) nodes[i] = reinterpret_cast<cudaGraphNode_t>(&all[i]);
  } else {
    *count = all.size();
  }
  return cudaSuccess;
}

// An object has one reference, which a graph takes over or shares.
SIMCUDA_CUDA cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* object,
                                              cudaHostFn_t destroy, unsigned, unsigned) {
  *out = reinterpret_cast<cudaUserObject_t>(new std::shared_ptr<void>(object, destroy));
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  delete reinterpret_cast<std::shared_ptr<void>*>(object);
  return cudaSuccess;
}

SIMCUDA_CUDA cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                   unsigned, unsigned flags) {
  graph_of(graph)->objects.push_back(*reinterpret_cast<std::shared_ptr<void>*>(object));
  if (flags & cudaGraphUserObjectMove) cudaUserObjectRelease(object, 1);
  return cudaSuccess;
}

// Memory that graphs allocate by themselves: none.
SIMCUDA_CUDA cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType,
                                                        void* value) {
  *static_cast<uint64_t*>(value) = 0;
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) {
  return cudaSuccess;
}

// ---- for the kernels library

extern "C" {

int simcuda_capturing(void* handle, int device) {
  Lock lock(state().mutex);
  if (!exists(handle)) return -1;
  return resolve(handle, device).capture != nullptr;
}

void simcuda_capture_save(void* handle, int device, void* memory, size_t bytes) {
  Lock lock(state().mutex);
  save(resolve(handle, device), memory, bytes);
}

void simcuda_capture_op(void* handle, int device, void (*run)(void*), void* argument,
                        void (*drop)(void*), const SimcudaWork* work) {
  Lock lock(state().mutex);
  Stream& stream = resolve(handle, device);
  std::shared_ptr<void> kept(argument, drop);
  if (!stream.capture) return;
  auto account = [](Stream&) { state().counters.ops++; };
  auto touched = order_on() ? std::make_shared<Work>(work_of(*work)) : nullptr;
  add_node(stream, {nullptr, [=] { run(kept.get()); }, nullptr, account, touched});
}

}  // extern "C"
