// SPDX-License-Identifier: Apache-2.0
#include "uses.h"

#include <simcuda.h>

#include <mutex>
#include <unordered_map>

#include "../kernels/versions.h"

namespace simcuda::dry {
namespace {

// A storage keeps its number while it moves. The weak reference keeps its address from becoming
// another storage's.
class Numbers {
 public:
  uint64_t of(const c10::Storage& storage) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto* impl = storage.unsafeGetStorageImpl();
    auto known = numbers_.find(impl);
    if (known != numbers_.end()) return known->second.number;
    uint64_t number = numbers_.size();
    numbers_.emplace(impl, Known{storage.getWeakStorageImpl(), number});
    return number;
  }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint64_t number;
  };
  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, Known> numbers_;
};

Numbers& numbers() {
  static auto* instance = new Numbers;
  return *instance;
}

}  // namespace

void Uses::add(const at::Tensor& tensor, Access access) {
  if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage()) return;
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  if (impl->nbytes() == 0) return;
  uint64_t number = numbers().of(tensor.storage());
  for (SimcudaUse& use : uses_) {
    if (use.storage != number) continue;
    if (use.access != access) use.access = kWrite;
    return;
  }
  uses_.push_back({number, impl->nbytes(), impl->data(), access});
}

TracedCopies::TracedCopies(void* stream, c10::Device device, const std::string& op,
                           const Uses& uses) {
  if (uses.size() == 0) return;
  simcuda_trace_op(stream, device.index(), op.c_str(), uses.data(), uses.size());
}

TracedCopies::~TracedCopies() { simcuda_trace_op_end(); }

}  // namespace simcuda::dry

extern "C" __attribute__((visibility("default"))) int simcuda_trace_allocator() {
  return simcuda::trace_allocator();
}
