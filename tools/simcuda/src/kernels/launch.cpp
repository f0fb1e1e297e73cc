// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <simcuda.h>

#include <cstring>

#include "versions.h"

namespace simcuda {
namespace {

at::SparseTensorImpl* sparse_impl(const Tensor& t) {
  return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
}

bool is_cuda_dense(const Tensor& t) {
  return t.defined() && t.is_cuda() && t.layout() == c10::kStrided && !t.is_nested();
}

Tensor make_cpu_tensor(c10::Storage storage, const Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

thread_local int t_on_device = 0;

struct OnDevice {
  OnDevice() { t_on_device++; }
  ~OnDevice() { t_on_device--; }
};

SimcudaView view(const void* at, const Tensor& shape, bool written) {
  return {at,
          static_cast<size_t>(shape.element_size()),
          static_cast<int>(shape.dim()),
          shape.sizes().data(),
          shape.strides().data(),
          written};
}

}  // namespace

bool on_device() { return t_on_device > 0; }

void Elements::write() const {
  if (source_.is_non_overlapping_and_dense()) {
    memcpy(target_, data_of(source_), source_.nbytes());
  } else {
    write_dim(0, 0);
  }
}

void Elements::write_dim(size_t dim, int64_t offset) const {
  if (dim == static_cast<size_t>(source_.dim())) {
    auto bytes = offset * static_cast<int64_t>(source_.element_size());
    memcpy(target_ + bytes, static_cast<const char*>(data_of(source_)) + bytes,
           source_.element_size());
    return;
  }
  for (int64_t i = 0; i < source_.size(dim); i++) {
    write_dim(dim + 1, offset + i * source_.stride(dim));
  }
}

Launch::Launch(c10::Device device, const std::string& op)
    : device_(device),
      op_(op),
      stream_(c10::cuda::getCurrentCUDAStream(device.index()).stream()),
      capturing_(simcuda_capturing(stream_, device.index()) > 0),
      late_(simcuda_mode() == SIMCUDA_LATE_WRITE && !capturing_) {
  TORCH_CHECK(simcuda_capturing(stream_, device.index()) >= 0,
              "CUDA error: invalid resource handle");
}

Launch::~Launch() {
  if (!running_) return;  // else the op threw
  t_on_device--;
  simcuda_stream_end(stream_, device_.index());
}

SimcudaView Launch::view_of(const Argument& a) {
  Memory& m = memory_of(a.device, a.written);
  auto offset = a.cpu.storage_offset() * static_cast<int64_t>(a.cpu.element_size());
  return view(static_cast<char*>(m.late ? m.late : m.original) + offset, a.cpu, a.written);
}

void Launch::note() {
  std::vector<SimcudaView> views;
  views.reserve(uses_.size() + stores_.size());
  for (auto& u : uses_) {
    views.push_back({u.at, u.element, static_cast<int>(u.sizes.size()), u.sizes.data(),
                     u.strides.data(), u.written});
  }
  for (auto& e : stores_) views.push_back(view(e.target(), e.source(), true));
  if (views.empty()) return;
  SimcudaWork work{op_.c_str(), views.data(), views.size()};
  TORCH_CHECK(simcuda_order_note(stream_, device_.index(), &work) == 0,
              "CUDA error: ", simcuda_last_refusal());
}

void Launch::begin() {
  if (capturing_) {
    for (auto& a : arguments_) {
      TORCH_CHECK(is_cuda_dense(a.device), "simcuda: ", op_,
                  " on a sparse tensor in a CUDA graph "
                  "has no simulation");
      Memory& m = memory_of(a.device, a.written);
      if (a.written) simcuda_capture_save(stream_, device_.index(), m.original, m.cpu.nbytes());
    }
  }
  if (simcuda_order_on() && !capturing_) {
    uses_.reserve(arguments_.size());
    for (auto& a : arguments_) {
      if (!is_cuda_dense(a.device) || a.cpu.numel() == 0) continue;
      SimcudaView v = view_of(a);
      uses_.push_back({v.at,
                       v.element,
                       {v.sizes, v.sizes + v.dimensions},
                       {v.strides, v.strides + v.dimensions},
                       a.written});
    }
  }
  simcuda_stream_begin(stream_, device_.index(), 1);
  running_ = true;
  t_on_device++;
  for (auto& m : memory_) {
    if (m.late) memcpy(m.original, m.late, m.cpu.nbytes());
  }
}

void Launch::enqueue(Elements elements) {
  simcuda_enqueue(
      stream_, device_.index(),
      [](void* argument) {
        auto* e = static_cast<Elements*>(argument);
        e->write();
        delete e;
      },
      new Elements(std::move(elements)));
}

void Launch::end() {
  // Queued while the op still owns its stream: another thread's op must not come between.
  for (auto& a : arguments_) {
    if (!late_ || !a.written || !is_cuda_dense(a.device) || a.cpu.numel() == 0) continue;
    Memory& m = memory_of(a.device, true);
    if (!m.late || m.cpu.data() != m.original) continue;
    auto offset = a.cpu.storage_offset() * static_cast<int64_t>(a.cpu.element_size());
    enqueue(Elements(static_cast<char*>(m.late) + offset, a.cpu));
  }
  running_ = false;
  t_on_device--;
  simcuda_stream_end(stream_, device_.index());
}

void Launch::will_write(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  if (is_cuda_dense(tensor)) writable_data_of(tensor.storage());
}

Launch::Memory& Launch::memory_of(const Tensor& tensor, bool written) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  for (auto& m : memory_) {
    if (m.device == storage) return m;
  }
  const void* data = storage->data();
  size_t bytes = storage->nbytes();
  if (bytes > 0 && !simcuda_addressable(data, bytes)) {
    std::string what = "an illegal memory access by " + op_;
    simcuda_refuse(what.c_str());
    TORCH_CHECK(false, "CUDA error: the simulated device refuses: ", what, " at ", data, ", ",
                bytes, " bytes: neither device memory nor pinned host memory");
  }
  Memory m{storage, {}, nullptr, const_cast<void*>(data)};
  c10::DataPtr pointer(m.original, c10::kCPU);
  if (late_ && written && bytes > 0) {
    pointer = c10::GetCPUAllocator()->allocate(bytes);
    m.late = const_cast<void*>(data);
    m.original = pointer.get();
  }
  m.cpu = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes),
                       std::move(pointer), c10::GetCPUAllocator(), /*resizable=*/true);
  memory_.push_back(std::move(m));
  return memory_.back();
}

Tensor Launch::dense_to_cpu(const Tensor& tensor, bool written) {
  for (auto& a : arguments_) {
    if (a.device.is_same(tensor)) {
      a.written |= written;
      return a.cpu;
    }
  }
  Tensor cpu = make_cpu_tensor(memory_of(tensor, written).cpu, tensor);
  arguments_.push_back({tensor, cpu, written});
  return cpu;
}

Tensor Launch::sparse_to_cpu(const Tensor& tensor, bool written) {
  auto* impl = sparse_impl(tensor);
  Tensor cpu =
      sparse_coo(dense_to_cpu(impl->indices(), written), dense_to_cpu(impl->values(), written),
                 tensor.sizes(), tensor.options().device(c10::kCPU), tensor.is_coalesced());
  arguments_.push_back({tensor, cpu, written});
  return cpu;
}

Tensor Launch::compressed_to_cpu(const Tensor& tensor, bool written) {
  auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(tensor);
  auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  Tensor cpu = at::_sparse_compressed_tensor_unsafe(
      dense_to_cpu(compressed, written), dense_to_cpu(plain, written),
      dense_to_cpu(impl->values(), written), tensor.sizes(), tensor.scalar_type(), tensor.layout(),
      c10::Device(c10::kCPU), false);
  arguments_.push_back({tensor, cpu, written});
  return cpu;
}

Tensor Launch::to_cpu(const Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  for (auto& a : arguments_) {
    if (a.device.is_same(tensor)) return a.cpu;
  }
  if (tensor.is_sparse()) return sparse_to_cpu(tensor, written);
  if (is_compressed(tensor)) return compressed_to_cpu(tensor, written);
  TORCH_CHECK(is_cuda_dense(tensor), "simcuda: ", op_, " on a tensor of type ", tensor.toString(),
              " has no simulation");
  return dense_to_cpu(tensor, written);
}

void Launch::store(const Tensor& target, const Tensor& source) {
  if (target.numel() == 0) return;
  auto offset = target.storage_offset() * static_cast<int64_t>(target.element_size());
  stores_.emplace_back(static_cast<char*>(writable_data_of(target.storage())) + offset, source);
}

void Launch::keep(const Tensor& cpu) {
  for (auto& a : arguments_) {
    if (a.cpu.is_same(cpu)) kept_.emplace_back(a.device, cpu.clone());
  }
}

void Launch::put_back() {
  stores_.clear();
  for (auto& [device, bytes] : kept_) store(device, bytes);
  write_stores();
}

void Launch::finish() {
  if (simcuda_order_on() && !capturing_) note();
  write_stores();
}

void Launch::write_stores() {
  if (stores_.empty()) return;
  if (late_) {
    for (auto& elements : stores_) enqueue(std::move(elements));
    return;
  }
  simcuda_stream_begin(stream_, device_.index(), 0);
  for (auto& elements : stores_) elements.write();
  simcuda_stream_end(stream_, device_.index());
}

namespace {

// An op of a graph: how to do it again, and where its results go.
struct CapturedOp {
  std::string op;
  std::function<std::vector<Tensor>()> again;
  std::vector<c10::Storage> arguments;
  struct Result {
    void* target;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Result> results;

  // Runs within a CUDA call: what it throws must not leave it.
  void run() const {
    OnDevice here;
    try {
      run_again();
    } catch (const c10::Error& error) {
      simcuda_refuse_later(("the replay of " + op + ": " + error.what_without_backtrace()).c_str());
    } catch (const std::exception& error) {
      simcuda_refuse_later(("the replay of " + op + ": " + error.what()).c_str());
    }
  }

 private:
  void run_again() const {
    at::AutoDispatchBelowADInplaceOrView below;
    size_t next = 0;
    for (const Tensor& fresh : again()) {
      if (!fresh.defined() || fresh.numel() == 0 || is_argument(fresh)) continue;
      TORCH_CHECK(next < results.size() && fresh.sizes() == results[next].sizes &&
                      fresh.strides() == results[next].strides,
                  "its result has another shape than when it was captured");
      Elements(results[next++].target, fresh).write();
    }
  }

  bool is_argument(const Tensor& t) const {
    for (const auto& storage : arguments) {
      if (t.storage().is_alias_of(storage)) return true;
    }
    return false;
  }
};

}  // namespace

void Launch::record(std::function<std::vector<Tensor>()> again) {
  auto node = std::make_unique<CapturedOp>();
  node->op = op_;
  node->again = std::move(again);
  for (const auto& m : memory_) node->arguments.push_back(m.cpu);
  std::vector<SimcudaView> views;
  for (auto& a : arguments_) views.push_back(view_of(a));
  for (auto& e : stores_) views.push_back(view(e.target(), e.source(), true));
  SimcudaWork work{op_.c_str(), views.data(), views.size()};
  for (const auto& store : stores_) {
    const Tensor& source = store.source();
    node->results.push_back({store.target(), source.sizes().vec(), source.strides().vec()});
  }
  simcuda_capture_op(
      stream_, device_.index(), [](void* op) { static_cast<CapturedOp*>(op)->run(); },
      node.release(), [](void* op) { delete static_cast<CapturedOp*>(op); }, &work);
}

void Launch::write_back_dense(Argument& a) {
  Memory& m = memory_of(a.device, true);
  auto* impl = a.device.unsafeGetTensorImpl();
  bool moved = m.cpu.data() != m.original;
  TORCH_CHECK(!moved || !capturing_, "simcuda: ", op_,
              " that resizes its output in a CUDA graph has no simulation");
  if (moved) {  // the op resized it: give the device storage room, then its data
    size_t bytes = m.cpu.nbytes();
    if (a.device.storage().nbytes() < bytes) {
      auto* storage = a.device.storage().unsafeGetStorageImpl();
      TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
      storage->set_data_ptr(storage->allocator()->allocate(bytes));
      storage->set_nbytes(bytes);
    }
  }
  if (a.cpu.sizes() != a.device.sizes() || a.cpu.strides() != a.device.strides() ||
      a.cpu.storage_offset() != a.device.storage_offset()) {
    impl->set_storage_offset(a.cpu.storage_offset());
    impl->set_sizes_and_strides(a.cpu.sizes(), a.cpu.strides());
  }
  if (moved) store(a.device, a.cpu);
}

void Launch::write_back() {
  // Not by iterator: bringing a sparse tensor back adds nothing, but may look memory up.
  for (size_t i = 0; i < arguments_.size(); i++) {
    auto& a = arguments_[i];
    if (!a.written) continue;
    if (is_cuda_dense(a.device)) {
      write_back_dense(a);
    } else if (a.device.is_sparse()) {
      auto *from = sparse_impl(a.cpu), *to = sparse_impl(a.device);
      Tensor indices = dense_to_device(from->indices()), values = dense_to_device(from->values());
      to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
      to->set_indices_and_values_unsafe(indices, values);
      to->set_coalesced(from->coalesced());
    } else {
      auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(a.cpu);
      at::sparse_csr::get_sparse_csr_impl(a.device)->set_member_tensors(
          dense_to_device(compressed), dense_to_device(plain), dense_to_device(a.cpu.values()),
          a.cpu.sizes());
    }
  }
}

Tensor Launch::dense_to_device(const Tensor& result) {
  for (auto& a : arguments_) {
    if (a.cpu.is_same(result)) return a.device;
  }
  for (auto& m : memory_) {
    if (!result.storage().is_alias_of(m.cpu)) continue;
    for (auto& a : arguments_) {  // a view of an argument
      if (!is_cuda_dense(a.device) || a.device.storage().unsafeGetStorageImpl() != m.device)
        continue;
      return a.device.as_strided(result.sizes(), result.strides(), result.storage_offset());
    }
  }
  Tensor out =
      at::empty_strided(result.sizes(), result.strides(), result.options().device(device_));
  out._set_conj(result.is_conj());
  out._set_neg(result.is_neg());
  store(out, result);
  return out;
}

Tensor Launch::to_device(const Tensor& result) {
  if (!result.defined() || !result.is_cpu()) return result;
  for (auto& a : arguments_) {
    if (a.cpu.is_same(result)) return a.device;
  }
  if (result.is_sparse()) {
    auto* impl = sparse_impl(result);
    Tensor indices = dense_to_device(impl->indices()), values = dense_to_device(impl->values());
    return sparse_coo(indices, values, result.sizes(), result.options().device(device_),
                      result.is_coalesced());
  }
  if (is_compressed(result)) {
    auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(result);
    auto values = at::sparse_csr::get_sparse_csr_impl(result)->values();
    return at::_sparse_compressed_tensor_unsafe(
        dense_to_device(compressed), dense_to_device(plain), dense_to_device(values),
        result.sizes(), result.scalar_type(), result.layout(), device_, false);
  }
  if (result.layout() != c10::kStrided) return result;
  return dense_to_device(result);
}

}  // namespace simcuda
