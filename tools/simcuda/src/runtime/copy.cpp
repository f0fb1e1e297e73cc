// SPDX-License-Identifier: Apache-2.0
// Copies and memsets: counted when they are issued, done when their stream runs.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "capture.h"
#include "order.h"

using namespace simcuda;

namespace {

void delay(size_t bytes, double bandwidth) {
  if (bandwidth > 0) usleep(static_cast<useconds_t>(1e6 * static_cast<double>(bytes) / bandwidth));
}

struct Side {
  bool device = false, pinned = false, allocated = false;
  int index = 0;       // of the device
  bool inside = true;  // the range does not run over the end of its allocation
};

Side side_of(const void* pointer, size_t bytes) {
  uintptr_t base = 0;
  Allocation* allocation = find_allocation(pointer, &base);
  Side side;
  if (allocation == nullptr) return side;
  side.device = allocation->on_device();
  side.index = allocation->device;
  side.pinned = !side.device;
  side.allocated = allocation->kind == Kind::kPinned;
  side.inside = reinterpret_cast<uintptr_t>(pointer) + bytes <= base + allocation->bytes;
  return side;
}

void count(Stream& stream, const Side& to, const Side& from, size_t bytes) {
  auto& c = state().counters;
  auto& s = stream.copies;
  if (to.device && from.device) {
    c.d2d++, c.d2d_bytes += bytes;
    s.d2d++, s.d2d_bytes += bytes;
  } else if (to.device) {
    c.h2d++, c.h2d_bytes += bytes;
    s.h2d++, s.h2d_bytes += bytes;
    (from.pinned ? c.h2d_pinned_bytes : c.h2d_pageable_bytes) += bytes;
  } else if (from.device) {
    c.d2h++, c.d2h_bytes += bytes;
    s.d2h++, s.d2h_bytes += bytes;
    (to.pinned ? c.d2h_pinned_bytes : c.d2h_pageable_bytes) += bytes;
  } else {
    c.h2h++, c.h2h_bytes += bytes;
  }
}

// Rows of `width` bytes as a view.
Work::Use use(const void* at, size_t pitch, size_t width, size_t rows, bool write) {
  int64_t sizes[2] = {static_cast<int64_t>(rows), static_cast<int64_t>(width)};
  int64_t strides[2] = {static_cast<int64_t>(pitch), 1};
  return {order::Region(reinterpret_cast<uintptr_t>(at), 1, 2, sizes, strides), write};
}

struct VirtualCopy {
  clock::Unit unit;
  clock::Nanoseconds time;
};

// Within a device it is a kernel; from one to another it takes the way out of the stream's device,
// as fast as the slower of the two links.
VirtualCopy virtual_copy(const Side& to, const Side& from, size_t count) {
  auto& p = state().profile;
  auto bytes = static_cast<double>(count);
  if (to.device && from.device) {
    if (to.index == from.index) {
      return {clock::Unit::kCompute, p.kernel + clock::time_of(2 * bytes, p.bandwidth)};
    }
    return {clock::Unit::kOut, p.copy + clock::time_of(bytes, std::min(p.in, p.out))};
  }
  if (to.device) return {clock::Unit::kIn, p.copy + clock::time_of(bytes, p.in)};
  return {clock::Unit::kOut, p.copy + clock::time_of(bytes, p.out)};
}

// What the host will read, where TensorFlow runs.
void unseen_copy(void* to, const Side& target, const void* from, const Side& source, size_t bytes) {
  auto& values = state().values;
  if (target.device && source.device) {
    values.copy(to, from, bytes);
  } else if (target.device) {
    values.put(to, from, bytes);
  } else if (!target.pinned || target.allocated || bytes <= kPage || values.keeps_all()) {
    values.get(to, from, bytes);
  }
}

const char* name_of(const Side& to, const Side& from) {
  if (to.device) return from.device ? "copy d2d" : "copy h2d";
  return from.device ? "copy d2h" : "copy h2h";
}

// `rows` rows of `width` bytes. The direction follows from the pointers, whatever the caller says.
cudaError_t copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                 size_t rows, cudaStream_t handle, bool blocking) {
  if (width == 0 || rows == 0) return cudaSuccess;
  Lock lock(state().mutex);
  auto& g = state();
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  Side target = side_of(to, (rows - 1) * to_pitch + width);
  Side source = side_of(from, (rows - 1) * from_pitch + width);
  if (!target.inside || !source.inside) return fail(cudaErrorInvalidValue);
  if (g.copy_fault.fires()) return fail(cudaErrorUnknown);
  bool pageable_source = !source.device && !source.pinned;
  bool pageable_target = !target.device && !target.pinned;
  if (pageable_source || pageable_target) {
    if (cudaError_t error = unsafe_on(stream)) return error;
  }
  save(stream, to, (rows - 1) * to_pitch + width);
  std::shared_ptr<Work> work;
  order::Snapshot before;
  if (order_on()) {  // pageable memory is nobody's but the host's, which waits here
    work = std::make_shared<Work>(Work{name_of(target, source), {}});
    if (!pageable_source) work->uses.push_back(use(from, from_pitch, width, rows, false));
    if (!pageable_target) work->uses.push_back(use(to, to_pitch, width, rows, true));
    if (!stream.capture) {
      before = order_record(stream);
      if (cudaError_t error = order_note(stream, *work)) return error;
    }
  }
  auto account = [=](Stream& on) { count(on, target, source, width * rows); };
  if (dry() && (target.device || source.device)) {
    // What the host reads is zeros, but for large pinned memory: a program of torch's does not look
    // at that, and one of TensorFlow's only at what TensorFlow has allocated.
    if (g.unseen_kernels && rows == 1) {
      unseen_copy(to, target, from, source, width);
    } else if (pageable_target || (target.pinned && width * rows <= kPage)) {
      for (size_t i = 0; i < rows; i++) memset(static_cast<char*>(to) + i * to_pitch, 0, width);
    }
    auto [unit, time] = virtual_copy(target, source, width * rows);
    push(lock, stream,
         {nullptr, nullptr, nullptr, account, work, unit, time, name_of(target, source),
          width * rows, target.device ? to : from});
    if (blocking || pageable_source || pageable_target) {
      drain(lock, stream);
      order_host_stream(stream);
    }
    return cudaSuccess;
  }
  double bandwidth = g.bandwidth;
  auto move = [=](const char* base) {
    for (size_t i = 0; i < rows; i++) {
      memmove(static_cast<char*>(to) + i * to_pitch, base + i * from_pitch, width);
    }
    delay(width * rows, bandwidth);
  };
  auto* bytes = static_cast<const char*>(from);
  if (!pageable_source) {
    push(lock, stream, {nullptr, [=] { move(bytes); }, nullptr, account, work});
  } else {  // pageable source: staged now, written in stream order
    auto staged =
        std::make_shared<std::vector<char>>(bytes, bytes + (rows - 1) * from_pitch + width);
    push(lock, stream, {nullptr, [=] { move(staged->data()); }, nullptr, account, work});
  }
  if (blocking || pageable_target) {
    drain(lock, stream);
    if (pageable_source) {
      order_host(before);  // the host waits until the source is staged, not until it has arrived
    } else if (!target.device || !source.device) {
      order_host_stream(stream);
    }
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, size_t bytes, std::function<void()> run, cudaStream_t handle) {
  Lock lock(state().mutex);
  Side target = side_of(to, bytes);
  if (!target.inside || !(target.device || target.pinned)) return fail(cudaErrorInvalidValue);
  auto account = [=](Stream&) {
    state().counters.memset++;
    state().counters.memset_bytes += bytes;
  };
  if (!exists(handle)) return fail(cudaErrorInvalidResourceHandle);
  Stream& stream = resolve(handle);
  save(stream, to, bytes);
  std::shared_ptr<Work> work;
  if (order_on()) {
    work = std::make_shared<Work>(Work{"memset", {use(to, bytes, bytes, 1, true)}});
    if (cudaError_t error = stream.capture ? cudaSuccess : order_note(stream, *work)) return error;
  }
  if (dry() && target.device) {
    state().values.forget(to, bytes);
    auto& p = state().profile;
    push(lock, stream,
         {nullptr, nullptr, nullptr, account, work, clock::Unit::kCompute,
          p.kernel + clock::time_of(static_cast<double>(bytes), p.bandwidth), "memset", bytes, to});
    return cudaSuccess;
  }
  push(lock, stream, {nullptr, std::move(run), nullptr, account, work});
  return cudaSuccess;
}

}  // namespace

SIMCUDA_CUDA cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                         cudaStream_t stream) {
  return copy(to, 0, from, 0, bytes, 1, stream, false);
}
SIMCUDA_CUDA cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, 0, from, 0, bytes, 1, nullptr, true);
}
SIMCUDA_CUDA cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                             cudaStream_t stream) {
  return copy(to, 0, from, 0, bytes, 1, stream, false);
}
SIMCUDA_CUDA cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                                           size_t from_pitch, size_t width, size_t height,
                                           cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, to_pitch, from, from_pitch, width, height, stream, false);
}
SIMCUDA_CUDA cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from,
                                      size_t from_pitch, size_t width, size_t height,
                                      cudaMemcpyKind) {
  return copy(to, to_pitch, from, from_pitch, width, height, nullptr, true);
}
SIMCUDA_CUDA cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return fill(to, bytes, [=] { memset(to, value, bytes); }, stream);
}
SIMCUDA_CUDA cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

namespace simcuda {
cudaError_t fill_words(void* to, unsigned value, size_t words, cudaStream_t stream) {
  if (words == 0) return cudaSuccess;
  auto run = [=] {
    for (size_t i = 0; i < words; i++) static_cast<unsigned*>(to)[i] = value;
  };
  return fill(to, words * sizeof(unsigned), run, stream);
}
}  // namespace simcuda
