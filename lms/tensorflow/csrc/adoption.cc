// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/adoption.h"

#include <cstring>
#include <typeinfo>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tensorflow {
namespace lms {
namespace {

// Memory that another buffer was made with.
class AdoptedBuffer final : public MovableBuffer {
 public:
  AdoptedBuffer(Allocator* allocator, void* data, size_t bytes)
      : MovableBuffer(allocator, data), bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  void FillAllocationDescription(AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocated_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name(alloc_->Name());
  }

 private:
  ~AdoptedBuffer() override {
    Retire();
    if (data() != nullptr) alloc_->DeallocateRaw(data());
  }

  const size_t bytes_;
};

// The class is compiled into another library, so it is known by name. It frees its memory unless
// its pointer is null.
bool IsXlas(const TensorBuffer& buffer) {
  return std::strcmp(typeid(buffer).name(), "N10tensorflow15XlaTensorBufferE") == 0;
}

// The pool of which the memory is a block.
Pool* PoolWithBlock(const void* data) {
  for (Pool* pool : Runtime::Get().pools) {
    if (BfcAccess::BlockAt(pool->allocator, data).begin == data) return pool;
  }
  return nullptr;
}

}  // namespace

void AdoptMemory(Tensor* tensor) {
  TensorBuffer* const old = const_cast<TensorBuffer*>(DMAHelper::buffer(tensor));
  if (old == nullptr || old->size() < kSmallestMovable || !IsXlas(*old)) return;
  if (!old->RefCountIsOne()) return;
  const Pool* const pool = PoolWithBlock(old->data());
  if (pool == nullptr) return;
  auto* adopted = new AdoptedBuffer(pool->allocator, old->data(), old->size());
  BufferAccess::Rebind(old, nullptr);
  *tensor = Tensor(tensor->dtype(), tensor->shape(), adopted);
  adopted->Unref();
}

bool IsOutside(const Tensor& tensor) {
  const TensorBuffer* buffer = DMAHelper::buffer(&tensor);
  return buffer != nullptr && buffer->size() >= kSmallestMovable &&
         DataTypeCanUseMemcpy(tensor.dtype()) && Tracker::Manageable(tensor) == nullptr;
}

void AdoptCopy(Tensor* tensor, const Pool& pool) {
  if (!IsOutside(*tensor)) return;
  Tensor copy = NewTensorAtOnce(pool.allocator, tensor->dtype(), tensor->shape());
  if (!copy.IsInitialized()) return;
  std::memcpy(DMAHelper::base(&copy), DMAHelper::base(tensor), tensor->TotalBytes());
  *tensor = std::move(copy);
}

}  // namespace lms
}  // namespace tensorflow
