// SPDX-License-Identifier: Apache-2.0
// What the other files of the runtime ask of a capture. All are called with the mutex held, but for
// `capture_info`.
#pragma once

#include "state.h"

namespace simcuda {

// Adds a command to the graph that the stream is captured into; `record` runs it as well.
void add_node(Stream& stream, Command command);
void record(Lock& lock, Stream& stream, Command command);
// Remembers what a captured command is about to overwrite.
void save(Stream& stream, void* memory, size_t bytes);
// A wait for an event, where the stream or the event belongs to a capture: brings the stream into
// the capture, or joins the event's stream.
cudaError_t wait_in_capture(Stream& stream, const TicketPtr& ticket);
// Of who asks for an event that belongs to a capture, which is invalid then if it is not over.
cudaError_t captured_event(const TicketPtr& ticket);
// Of a call that a capture forbids: cudaSuccess if none does, else the capture is invalid.
cudaError_t unsafe_in_capture();        // in the whole process, as far as the modes say so
cudaError_t unsafe_on(Stream& stream);  // on this stream
cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph);

}  // namespace simcuda
