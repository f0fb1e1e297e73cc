// SPDX-License-Identifier: Apache-2.0
// The operators that torch/cuda/lms is written on. From PyTorch 1.6 on each runs without
// the GIL.

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/compat/storage.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/collectives.h>
#include <torch/csrc/lms/compat/definitions.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/storages.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::lms {
namespace {

namespace engine = c10::cuda::lms;

// Parameters and moments of one optimiser step are pinned together: a sixteenth of the device keeps
// such a call far below the working set of other operators. More parts are more launches; with
// fewer an optimiser's step is what has to fit.
constexpr size_t kPartsPerDevice = 16;

size_t part_bytes_under(size_t device_limit) {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (device_limit != 0) {
    total = std::min(total, device_limit);
  }
  return std::max(total / kPartsPerDevice, kLeastPart);
}

void set_enabled(bool enable, double patience) {
  if (enable) {
    install();
    set_part_bytes(part_bytes_under(engine::device_limit()));
  }
  engine::set_enabled(enable, std::chrono::milliseconds(static_cast<int64_t>(patience * 1000)));
}

size_t bytes_of(int64_t value) {
  TORCH_CHECK(value >= 0, "a size in bytes cannot be negative, got ", value);
  return static_cast<size_t>(value);
}

// Fails before it has changed anything.
void set_device_limit(int64_t bytes) {
  const size_t limit = bytes_of(bytes);
  if (engine::enabled()) {
    set_part_bytes(part_bytes_under(limit));
  }
  engine::set_device_limit(limit);
}

void set_unseen_kernels(const std::string& kernels) {
  using engine::UnseenKernels;
  TORCH_CHECK_VALUE(kernels == "looked-for" || kernels == "none" || kernels == "any",
                    "unseen kernels are 'looked-for', 'none' or 'any', got '", kernels, "'");
  engine::set_unseen_kernels(kernels == "none"  ? UnseenKernels::kNone
                             : kernels == "any" ? UnseenKernels::kAny
                                                : UnseenKernels::kLookedFor);
}

// Of the current device. PyTorch tells it since 1.10.
int64_t free_bytes() {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

std::vector<c10::StorageImpl*> storages_of(const at::Tensor& tensor) {
  std::vector<c10::StorageImpl*> storages;
  each_storage(tensor,
               [&](const at::Tensor&, c10::StorageImpl* storage) { storages.push_back(storage); });
  return storages;
}

template <void (*F)(c10::StorageImpl*)>
void for_all(const at::Tensor& tensor) {
  for (auto* storage : storages_of(tensor)) {
    F(storage);
  }
}

// Runs `keep`, which brings storages in to stay and is none of an op: room is made for it as for
// the operands of one. What it keeps when it throws stays where it is for the next try.
template <class Keep>
void with_room(const Keep& keep) {
  Thread& mine = c10::cuda::lms::detail::this_thread();
  run_until_room(mine, Room::kSpare, [&](Room room) { return finds_room(mine, room, keep); });
}

template <void (*F)(c10::StorageImpl*)>
void with_room_for_all(const at::Tensor& tensor) {
  with_room([&tensor] { for_all<F>(tensor); });
}

// A tensor whose data is a T, which dies with it. Python has it for what must end: a signal between
// two lines of Python may leave out a call, but not the end of an object.
template <class T>
at::Tensor ends_with_tensor() {
  auto owned = std::make_unique<T>();
  at::Tensor tensor =
      at::from_blob(owned.get(), {1}, [](void* ends) { delete static_cast<T*>(ends); }, at::kByte);
  (void)owned.release();
  return tensor;
}

// What Python holds.
struct Held {
  std::mutex mutex;
  std::vector<std::unique_ptr<engine::Hold>> holds;
};

at::Tensor new_hold() { return ends_with_tensor<Held>(); }

// All or none.
void hold(const at::Tensor& by, const std::vector<at::Tensor>& tensors) {
  std::vector<c10::StorageImpl*> storages;
  for (const auto& tensor : tensors) {
    for (auto* storage : storages_of(tensor)) {
      storages.push_back(storage);
    }
  }
  std::unique_ptr<engine::Hold> made;
  with_room([&] { made = std::make_unique<engine::Hold>(storages); });
  auto* held = static_cast<Held*>(by.data_ptr());
  const std::lock_guard<std::mutex> lock(held->mutex);
  held->holds.push_back(std::move(made));
}

// For code that nothing is known of.
void pin(const at::Tensor& by, const std::vector<at::Tensor>& tensors) {
  hold(by, tensors);
  std::for_each(tensors.begin(), tensors.end(), for_all<&engine::wait_for_arrival>);
}

// A capture that Python began. Each step is taken once.
class Capture {
 public:
  Capture() { engine::begin_capture(); }
  ~Capture() {
    if (goes_on_) {
      try {
        abandon();
      } catch (const c10::Error& error) {
        TORCH_WARN("Large Model Support: ", error.what());
      }
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void begun() {
    if (begins_.exchange(false)) {
      engine::capture_begun();
    }
  }
  void end() {
    begun();
    if (goes_on_.exchange(false)) {
      engine::end_capture();
    }
  }
  void abandon() {
    try {
      engine::abandon_capture();
    } catch (...) {
      end();
      throw;
    }
    end();
  }

 private:
  std::atomic<bool> begins_{true};
  std::atomic<bool> goes_on_{true};
};

at::Tensor begin_capture() {
  install();
  return ends_with_tensor<Capture>();
}

Capture& capture_of(const at::Tensor& tensor) { return *static_cast<Capture*>(tensor.data_ptr()); }

void expose(const at::Tensor& tensor) {
  with_room_for_all<&engine::expose>(tensor);
  for_all<&engine::wait_for_arrival>(tensor);
}

template <bool (*F)(c10::StorageImpl*)>
bool for_any(const at::Tensor& tensor) {
  bool any = false;
  for (auto* storage : storages_of(tensor)) {
    any = F(storage) || any;
  }
  return any;
}

// Addresses that stand for the memory of storages: such as no device has, and each for one storage
// alone, however long somebody keeps one to compare it.
class Names {
 public:
  int64_t of(c10::StorageImpl* storage) {
    std::vector<c10::StorageImpl*> dead;  // let go of without the lock: it may run Python
    int64_t name = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto bytes = static_cast<int64_t>(engine::nbytes_of(*storage));
      const auto found = names_.emplace(storage, Name{});
      Name& its = found.first->second;
      if (found.second) {
        engine::add_weak(storage);  // so that its address is no other's
      }
      if (found.second || bytes > its.bytes) {  // as memory that is to grow is others' from then on
        its = {next_, bytes};
        next_ += (bytes / kApart + 1) * kApart;
      }
      name = its.begin;
      if (names_.size() > most_) {
        forget_dead_(&dead);
      }
    }
    for (c10::StorageImpl* storage : dead) {
      engine::drop_weak(storage);
    }
    return name;
  }

 private:
  struct Name {
    int64_t begin = 0, bytes = 0;
  };
  // As far as an allocator's blocks are. More uses up addresses sooner, 2^62 of which there are.
  static constexpr int64_t kApart = 512;
  // So many are kept of storages that have died, beside as many as there are alive. Fewer are
  // looked for more often, more keep the memory of as many objects.
  static constexpr size_t kFewest = 1024;

  void forget_dead_(std::vector<c10::StorageImpl*>* dead) {
    for (auto it = names_.begin(); it != names_.end();) {
      if (engine::expired(it->first)) {
        dead->push_back(it->first);
        it = names_.erase(it);
      } else {
        ++it;
      }
    }
    most_ = 2 * names_.size() + kFewest;
  }

  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, Name> names_;
  int64_t next_ = int64_t{1} << 62;
  size_t most_ = kFewest;
};

bool has_memory(c10::StorageImpl* storage) {
  const auto there = [storage] { return engine::glance(*storage).pointer().get() != nullptr; };
  return there() || engine::on_host(storage) || there();  // it may come in between
}

// What stands for the memory of a storage for good: its pointer or, where that may change, a name.
int64_t identity(StorageArgument argument) {
  static auto* names = new Names;  // leaked, as the engine is
  auto* storage = storage_in(argument);
  const bool moves =
      engine::nbytes_of(*storage) > 0 && engine::manageable(storage) && has_memory(storage);
  return moves ? names->of(storage) : reinterpret_cast<int64_t>(storage->data());
}

// Where its memory is on the device now; 0: nowhere there.
int64_t place(StorageArgument argument) {
  auto* storage = storage_in(argument);
  return engine::on_host(storage)
             ? 0
             : reinterpret_cast<int64_t>(engine::glance(*storage).pointer().get());
}

c10::DeviceIndex index_of(int64_t device) {
  TORCH_CHECK(device >= 0 && device < c10::cuda::device_count(), "there is no CUDA device ",
              device);
  return static_cast<c10::DeviceIndex>(device);
}

Counts stats(int64_t device) {
  Counts result;
  for (const auto& [name, value] : engine::stats(index_of(device))) {
    result.insert(name, value);
  }
  return result;
}

}  // namespace

LMS_DEFINITIONS(m) {
  m.def("set_enabled(bool enabled, float patience) -> ()", &set_enabled);
  m.def("enabled() -> bool", [] { return engine::enabled(); });
  m.def("active() -> bool", [] { return engine::active(); });
  m.def("begin_capture() -> Tensor", &begin_capture);
  m.def("capture_begun(Tensor capture) -> ()", [](const at::Tensor& t) { capture_of(t).begun(); });
  m.def("hold_for_graph(bool hold) -> ()", [](bool hold) { engine::hold_for_graph(hold); });
  m.def("abandon_capture(Tensor capture) -> ()",
        [](const at::Tensor& t) { capture_of(t).abandon(); });
  m.def("end_capture(Tensor capture) -> ()", [](const at::Tensor& t) { capture_of(t).end(); });
  define_collectives(m);
  m.def("set_device_limit(int bytes) -> ()", &set_device_limit);
  m.def("free_bytes() -> int", &free_bytes);
  m.def("set_soft_limit(int bytes) -> ()", [](int64_t b) { engine::set_soft_limit(bytes_of(b)); });
  m.def("set_host_limit(int bytes) -> ()", [](int64_t b) { engine::set_host_limit(bytes_of(b)); });
  m.def("host_limit() -> int", [] { return static_cast<int64_t>(engine::host_limit()); });
  m.def("host_share() -> str", [] { return engine::host_share(); });
  m.def("set_min_size(int bytes) -> ()", [](int64_t b) { engine::set_min_size(bytes_of(b)); });
  m.def("set_chaos(bool chaos) -> ()", [](bool chaos) { engine::set_chaos(chaos); });
  m.def("chaos() -> bool", [] { return engine::chaos(); });
  m.def("set_unseen_kernels(str kernels) -> ()", &set_unseen_kernels);
  m.def("unseen_kernels() -> bool", [] { return engine::unseen_kernels(); });
  m.def("launches_unseen() -> ()", [] { engine::launches_unseen(); });
  m.def("set_refusing(bool refusing) -> ()", [](bool on) { engine::set_refusing(on); });
  m.def("set_part_bytes(int bytes) -> ()", [](int64_t b) { set_part_bytes(bytes_of(b)); });
  m.def("part_bytes() -> int", [] { return static_cast<int64_t>(part_bytes()); });
  m.def("install_pending() -> int", [] { return static_cast<int64_t>(install_pending()); });
  m.def("new_hold() -> Tensor", &new_hold);
  m.def("hold(Tensor by, Tensor[] tensors) -> ()", &hold);
  m.def("pin(Tensor by, Tensor[] tensors) -> ()", &pin);
  m.def("expose(Tensor tensor) -> ()", &expose);
  m.def("unexpose(Tensor tensor) -> ()", &for_all<&engine::unexpose>);
  m.def("wait_for_memory(int pointer) -> ()",
        [](int64_t pointer) { engine::wait_for_memory(reinterpret_cast<void*>(pointer)); });
  m.def("exclude(Tensor tensor) -> ()", &with_room_for_all<&engine::exclude>);
  m.def("include(Tensor tensor) -> ()", &for_all<&engine::include>);
  m.def("exposed(Tensor tensor) -> bool", &for_any<&engine::exposed>);
  m.def("excluded(Tensor tensor) -> bool", &for_any<&engine::excluded>);
  m.def("on_host(Tensor tensor) -> bool", &for_any<&engine::on_host>);
  m.def("identity(" LMS_STORAGE_SCHEMA " storage) -> int", &identity);
  m.def("place(" LMS_STORAGE_SCHEMA " storage) -> int", &place);
  m.def("evict(Tensor tensor) -> bool", &for_any<&engine::evict>);
  m.def("drop_if_out(" LMS_STORAGE_SCHEMA " storage) -> bool",
        [](StorageArgument storage) { return engine::drop_if_out(storage_in(storage)); });
  m.def("page_in_if_free(Tensor tensor) -> bool", &for_any<&engine::page_in_if_free>);
  m.def("reclaim_inactive(int device) -> int", [](int64_t device) {
    return static_cast<int64_t>(engine::reclaim_inactive(index_of(device)));
  });
  m.def("trim_host() -> ()", [] { engine::trim_host(); });
  m.def("measure_waits(bool on) -> ()", [](bool on) { engine::measure_waits(on); });
  m.def("count_allocations() -> ()", [] { engine::count_allocations(); });
  m.def("stats(int device) -> Dict(str, int)", &stats);
  m.def("reset_peak_stats(int device) -> ()",
        [](int64_t device) { engine::reset_peak_stats(index_of(device)); });
  m.def("reset_accumulated_stats(int device) -> ()",
        [](int64_t device) { engine::reset_accumulated_stats(index_of(device)); });
  m.def("describe(int device) -> str",
        [](int64_t device) { return engine::describe(index_of(device)); });
}

}  // namespace torch::lms
