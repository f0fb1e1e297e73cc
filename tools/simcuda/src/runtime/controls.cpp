// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "state.h"

using namespace simcuda;

extern "C" {

int simcuda_device_count() { return static_cast<int>(state().devices.size()); }

size_t simcuda_capacity(int device) {
  Lock lock(state().mutex);
  return valid_device(device) ? state().devices[device]->capacity : 0;
}

void simcuda_set_capacity(int device, size_t bytes) {
  Lock lock(state().mutex);
  if (valid_device(device)) state().devices[device]->capacity = bytes;
}

size_t simcuda_used(int device) {
  Lock lock(state().mutex);
  return valid_device(device) ? state().devices[device]->used : 0;
}

size_t simcuda_peak(int device) {
  Lock lock(state().mutex);
  return valid_device(device) ? state().devices[device]->peak : 0;
}

void simcuda_reset_peak(int device) {
  Lock lock(state().mutex);
  if (valid_device(device)) state().devices[device]->peak = state().devices[device]->used;
}

size_t simcuda_host_used() {
  Lock lock(state().mutex);
  return state().host_used;
}

size_t simcuda_host_peak() {
  Lock lock(state().mutex);
  return state().host_peak;
}

size_t simcuda_host_capacity() {
  Lock lock(state().mutex);
  return state().host_capacity;
}

void simcuda_set_host_capacity(size_t bytes) {
  Lock lock(state().mutex);
  state().host_capacity = bytes;
}

int simcuda_mode() { return state().mode; }

void simcuda_set_mode(int mode, long lag) {
  Lock lock(state().mutex);
  drain_device(lock, -1);
  state().mode = mode;
  state().lag = lag;
}

long simcuda_pending() {
  Lock lock(state().mutex);
  size_t pending = 0;
  for (auto& device : state().devices) pending += device->default_stream.queue.size();
  for (auto* streams : {&state().streams, &state().ending}) {
    for (Stream* stream : *streams) pending += stream->queue.size();
  }
  return static_cast<long>(pending);
}

void simcuda_set_bandwidth(double bytes_per_second) {
  Lock lock(state().mutex);
  state().bandwidth = bytes_per_second;
}

void simcuda_set_abort(int on) {
  Lock lock(state().mutex);
  state().abort_on_refusal = on != 0;
}

void simcuda_fail_mallocs(long skip, long count) {
  Lock lock(state().mutex);
  state().malloc_fault = {skip, count};
}

void simcuda_fail_host_allocs(long skip, long count) {
  Lock lock(state().mutex);
  state().host_fault = {skip, count};
}

void simcuda_fail_streams(long skip, long count) {
  Lock lock(state().mutex);
  state().stream_fault = {skip, count};
}

void simcuda_break() {
  Lock lock(state().mutex);
  state().broken = true;
}

void simcuda_fail_copies(long skip, long count) {
  Lock lock(state().mutex);
  state().copy_fault = {skip, count};
}

void simcuda_counters(SimcudaCounters* out) {
  Lock lock(state().mutex);
  *out = state().counters;
}

void simcuda_reset_counters() {
  Lock lock(state().mutex);
  state().counters = {};
  for (auto& device : state().devices) device->default_stream.copies = {};
  for (Stream* stream : state().streams) stream->copies = {};
}

void simcuda_stream_copies(void* handle, int device, SimcudaStreamCopies* out) {
  Lock lock(state().mutex);
  *out = {};
  auto* stream = static_cast<Stream*>(handle);
  if (handle == nullptr && valid_device(device)) {
    *out = state().devices[device]->default_stream.copies;
  } else if (state().streams.count(stream)) {
    *out = stream->copies;
  }
}

}  // extern "C"
