// SPDX-License-Identifier: Apache-2.0
// Controls of the simulated device: what a test or a program may ask of it beside CUDA.
// All functions are thread-safe. Sizes are bytes. A device or stream that does not exist is
// ignored by setters and reads as 0.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SIMCUDA_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// When the commands of a stream run.
enum SimcudaMode {
  SIMCUDA_IMMEDIATE = 0,   // each at once
  SIMCUDA_LAZY = 1,        // when the stream is synchronised, queried or waited for
  SIMCUDA_EAGER_COPY = 2,  // lazy on the default stream, at once on all others
  SIMCUDA_LATE_WRITE = 3,  // lazy, and the output of an op lands only when its stream runs
};

// The device's own books. The order is the order of `COUNTERS` in device.py.
struct SimcudaCounters {
  uint64_t malloc, malloc_failed, free;
  uint64_t host_alloc, host_alloc_failed, host_free;
  uint64_t h2d, d2h, d2d, h2h;
  uint64_t h2d_bytes, d2h_bytes, d2d_bytes, h2h_bytes;
  uint64_t h2d_pinned_bytes, h2d_pageable_bytes, d2h_pinned_bytes, d2h_pageable_bytes;
  uint64_t memset, memset_bytes;
  uint64_t device_syncs, stream_syncs, event_syncs, event_records;
  uint64_t ops, mapped_accesses;
  uint64_t refused_launches, unsupported_calls;
};

struct SimcudaStreamCopies {
  uint64_t h2d, h2d_bytes, d2h, d2h_bytes, d2d, d2d_bytes;
};

SIMCUDA_API int simcuda_device_count(void);
SIMCUDA_API size_t simcuda_capacity(int device);
SIMCUDA_API void simcuda_set_capacity(int device, size_t bytes);
SIMCUDA_API size_t simcuda_used(int device);
SIMCUDA_API size_t simcuda_peak(int device);
SIMCUDA_API void simcuda_reset_peak(int device);
SIMCUDA_API size_t simcuda_host_used(void);
SIMCUDA_API size_t simcuda_host_peak(void);
// Limit of pinned host memory; 0 means none.
SIMCUDA_API size_t simcuda_host_capacity(void);  // 0: no limit
SIMCUDA_API void simcuda_set_host_capacity(size_t bytes);

SIMCUDA_API int simcuda_mode(void);
// Runs what is queued, then switches. `lag`: how many queries answer "not ready" first.
SIMCUDA_API void simcuda_set_mode(int mode, long lag);
SIMCUDA_API long simcuda_pending(void);
SIMCUDA_API void simcuda_set_bandwidth(double bytes_per_second);  // of copies; 0: no delay
SIMCUDA_API void simcuda_set_abort(int on);                       // abort on what is refused

// Let `skip` calls pass, then fail the next `count`.
SIMCUDA_API void simcuda_fail_mallocs(long skip, long count);
SIMCUDA_API void simcuda_fail_host_allocs(long skip, long count);
SIMCUDA_API void simcuda_fail_streams(long skip, long count);
SIMCUDA_API void simcuda_break();
SIMCUDA_API void simcuda_fail_copies(long skip, long count);

SIMCUDA_API void simcuda_counters(struct SimcudaCounters* out);
SIMCUDA_API void simcuda_reset_counters(void);
SIMCUDA_API void simcuda_stream_copies(void* stream, int device, struct SimcudaStreamCopies* out);

// For the kernels library. An op owns its stream from begin to end; nothing else runs on it, and
// everything queued before it has run. Between the two no CUDA function may be called.
SIMCUDA_API void simcuda_stream_begin(void* stream, int device, int is_op);
SIMCUDA_API void simcuda_stream_end(void* stream, int device);
SIMCUDA_API void simcuda_enqueue(void* stream, int device, void (*run)(void*), void* argument);
// Capture of a graph. An op on a stream that is being captured says before it begins what it will
// overwrite, and afterwards how to do it again: each launch calls run(argument), the end of the
// graph drop(argument). Less than 0: there is no such stream.
SIMCUDA_API int simcuda_capturing(void* stream, int device);
SIMCUDA_API void simcuda_capture_save(void* stream, int device, void* memory, size_t bytes);
struct SimcudaWork;
SIMCUDA_API void simcuda_capture_op(void* stream, int device, void (*run)(void*), void* argument,
                                    void (*drop)(void*), const struct SimcudaWork* work);
// 0: not memory a device can address, 1: device memory, 2: pinned host memory. The whole range
// must lie in one allocation.
SIMCUDA_API int simcuda_addressable(const void* pointer, size_t bytes);

// ---- dry: memory is addresses without anything behind them, and commands only take virtual time

// FLOPS and bytes a second that kernels and copies reach, shares of FLOPS by the class of operator,
// nanoseconds, bytes, thousandths (`duplex`); whether operators take libraries' workspaces. The
// order is the order of `Native` in profiles.py.
struct SimcudaProfile {
  double in, out, fp64, fp32, tf32, half, bandwidth;
  double matmul, convolution, attention, host_pin;
  int64_t kernel, copy, op, call, malloc, host_malloc, convolution_workspace;
  int duplex, major, minor, multiprocessors, workspaces;
};
// Nanoseconds: what time it is for the host, how long it has waited, how long its units have
// worked.
struct SimcudaTimes {
  int64_t now, waited, compute, in, out;
};

// Before anything is issued or allocated.
SIMCUDA_API void simcuda_start_dry(const struct SimcudaProfile* profile);
SIMCUDA_API const struct SimcudaProfile* simcuda_dry(void);  // null: it computes
// Kernels that nobody tells the device about, as TensorFlow's, are taken as launches. And who asks
// often whether something is done waits for it, because nothing else moves the host's time on.
SIMCUDA_API void simcuda_take_kernels(void);
// Of those: what is copied to the device is there, whatever its size, and what libraries compute is
// a fill.
SIMCUDA_API void simcuda_keep_contents(void);
// What an op does to a storage: reads it, writes it, or makes it. Storages have numbers from 0.
struct SimcudaUse {
  uint64_t storage;
  size_t bytes;
  const void* data;
  int access;  // 0, 1, 2
};
SIMCUDA_API void simcuda_dry_op(void* stream, int device, const char* name, int64_t nanoseconds,
                                const struct SimcudaUse* uses, size_t count);
SIMCUDA_API void simcuda_times(int device, struct SimcudaTimes* out);

// A trace (docs/trace.md), into a file that has its header. Not 0: it cannot be written.
SIMCUDA_API int simcuda_trace_start(const char* path);
SIMCUDA_API void simcuda_trace_end(void);
SIMCUDA_API int simcuda_tracing(void);
// An op whose commands are copies that this thread issues until it ends.
SIMCUDA_API void simcuda_trace_op(void* stream, int device, const char* name,
                                  const struct SimcudaUse* uses, size_t count);
SIMCUDA_API void simcuda_trace_op_end(void);
// What torch's allocator does.
enum SimcudaMemory { SIMCUDA_ALLOCATED, SIMCUDA_FREED, SIMCUDA_SEGMENT, SIMCUDA_SEGMENT_GONE };
SIMCUDA_API void simcuda_trace_memory(int event, int device, uintptr_t at, size_t bytes,
                                      void* stream);
SIMCUDA_API void simcuda_trace_mark(const char* name);

// Of a framework whose kernels are unseen: calls of libraries that took no more than a launch, a
// line each of name and number.
SIMCUDA_API const char* simcuda_unmodelled_calls(void);

// ---- order checker

// A view that an op reads or writes: sizes and strides in elements of `element` bytes.
struct SimcudaView {
  const void* at;
  size_t element;
  int dimensions;
  const int64_t *sizes, *strides;
  int written;
};
// What one op does to memory. The name lives as long as the process.
struct SimcudaWork {
  const char* name;
  const struct SimcudaView* views;
  size_t count;
};
struct SimcudaOrderSize {
  uint64_t operations, ranges, dropped;
};

SIMCUDA_API int simcuda_order_on(void);
// An op takes its place on its stream; the host uses memory. Not 0: it races and is refused, with
// the text of `simcuda_last_refusal`.
SIMCUDA_API int simcuda_order_note(void* stream, int device, const struct SimcudaWork* work);
SIMCUDA_API int simcuda_order_host_use(const struct SimcudaWork* work);
// Whether it is pinned host memory. Takes no lock for what torch allocates.
SIMCUDA_API int simcuda_order_pinned(const void* pointer);
// `signal` makes faulthandler write the thread's Python stack to `file`.
SIMCUDA_API void simcuda_order_stack(int file, int signal);
// Leaves out pairs of operations, by patterns of a shell; 0 bytes: any number.
SIMCUDA_API void simcuda_order_suppress(const char* first, const char* second, size_t bytes);
SIMCUDA_API uint64_t simcuda_order_suppressed(size_t index);  // how many, by each in turn
// Records that end with 0x1E of fields that end with 0x1F, as `Race` in order.py has them.
SIMCUDA_API const char* simcuda_order_races(void);
SIMCUDA_API void simcuda_order_clear(void);
SIMCUDA_API void simcuda_order_set_strict(int on);  // queries
SIMCUDA_API void simcuda_order_size(struct SimcudaOrderSize* out);

// ---- what is refused

// Tells what was refused on stderr (and aborts in abort mode).
SIMCUDA_API void simcuda_refuse(const char* what);
SIMCUDA_API const char* simcuda_last_refusal(void);
// The same for a command that runs later: the next call that waits for a stream returns the error.
SIMCUDA_API void simcuda_refuse_later(const char* what);
// The same for a function of a stub library; returns the status given.
SIMCUDA_API int simcuda_stub_called(const char* function, int status);

#ifdef __cplusplus
}
#endif
