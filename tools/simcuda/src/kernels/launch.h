// SPDX-License-Identifier: Apache-2.0
// One op on the simulated device: its CUDA arguments as CPU tensors on the same memory, and its
// results back on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <simcuda.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace simcuda {

using at::Tensor;

// Whether the thread is in a kernel of the device: what it does to memory then, its stream does.
bool on_device();

// The elements of a strided tensor on their way to device memory. `target`: where the first goes.
class Elements {
 public:
  Elements(void* target, const Tensor& source)
      : target_(static_cast<char*>(target)), source_(source) {}
  void write() const;
  void* target() const { return target_; }
  const Tensor& source() const { return source_; }

 private:
  void write_dim(size_t dim, int64_t offset) const;

  char* target_;
  Tensor source_;
};

class Launch {
 public:
  Launch(c10::Device device, const std::string& op);  // `op` must outlive it
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // First pass over the arguments: says what will be written, so that copy-on-write storages are
  // materialised before any pointer is taken.
  void will_write(const Tensor& tensor);
  // Second pass: the CPU counterpart of a CUDA tensor; any other tensor as it is. Memory that is
  // only read is taken through the storage's const accessor.
  Tensor to_cpu(const Tensor& tensor, bool written);

  // Between begin and end the op owns its stream; everything queued before it has run.
  void begin();
  void end();

  // A GPU's kernel that writes an argument silently runs when its results have memory, which comes
  // later here: what was kept of such a one, after begin, is put back where that is refused.
  void keep(const Tensor& cpu);
  void put_back();

  // Brings what the op did to its arguments back to them: sizes, storages that it resized.
  void write_back();
  // The CUDA counterpart of a result. Its data is there after `finish`.
  Tensor to_device(const Tensor& result);
  // Writes what write_back and to_device have to write, in stream order. To the order checker the
  // op happens here, as a GPU launches a kernel when it has all its memory: what fails before
  // touches nothing.
  void finish();

  // While its stream is captured, an op says after `finish` how to do it again: on the CPU tensors
  // that it had, returning what it returned. New results are written to where those of the captured
  // run went, so `again` must not keep a device tensor: its memory belongs to the graph's pool.
  bool capturing() const { return capturing_; }
  void record(std::function<std::vector<Tensor>()> again);

 private:
  struct Memory {
    c10::StorageImpl* device;
    c10::Storage cpu;
    void* late;      // device memory behind a late-write shadow: read at begin, written at end
    void* original;  // the pointer that the CPU storage started with
  };
  struct Argument {
    Tensor device, cpu;
    bool written;
  };
  // Of an argument, as it was when the op began: what that resizes lies elsewhere afterwards.
  struct Use {
    const void* at;
    size_t element;
    c10::DimVector sizes, strides;
    bool written;
  };

  Memory& memory_of(const Tensor& tensor, bool written);
  Tensor dense_to_cpu(const Tensor& tensor, bool written);
  Tensor sparse_to_cpu(const Tensor& tensor, bool written);
  Tensor compressed_to_cpu(const Tensor& tensor, bool written);
  void write_back_dense(Argument& argument);
  Tensor dense_to_device(const Tensor& result);
  SimcudaView view_of(const Argument& argument);
  void note();
  void enqueue(Elements elements);
  void store(const Tensor& target, const Tensor& source);
  void write_stores();

  c10::Device device_;
  const std::string& op_;
  void* stream_;
  bool capturing_;
  bool late_;
  bool running_ = false;
  std::vector<Elements> stores_;
  std::vector<Memory> memory_;
  std::vector<Argument> arguments_;
  std::vector<std::pair<Tensor, Tensor>> kept_;  // on the device, and what it held
  std::vector<Use> uses_;
};

}  // namespace simcuda
