// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/buffer.h"

#include <cstring>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/frame.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"
#include "tensorflow/core/framework/types.h"

namespace tensorflow {
namespace lms {

MovableBuffer* MovableBuffer::Of(const Tensor& tensor) {
  return Of(const_cast<TensorBuffer*>(DMAHelper::buffer(&tensor)));
}

void MovableBuffer::Forget() { Runtime::Get().tracker.Forget(this); }

namespace {

// The buffer that a pointer to `buffer` leads to, if it could move by now.
MovableBuffer* TrackedRoot(const TensorBuffer* buffer) {
  if (!EverActive()) return nullptr;
  MovableBuffer* root = MovableBuffer::Of(const_cast<TensorBuffer*>(buffer));
  return root != nullptr && root->tracked() ? root : nullptr;
}

}  // namespace

void AddView(TensorBuffer* root, TensorBuffer* view) {
  if (EverActive()) Runtime::Get().tracker.AddView(MovableBuffer::Of(root), view);
}

void RemoveView(TensorBuffer* root, TensorBuffer* view) {
  if (EverActive()) Runtime::Get().tracker.RemoveView(MovableBuffer::Of(root), view);
}

void Expose(const TensorBuffer* buffer) {
  MovableBuffer* root = TrackedRoot(buffer);
  if (root != nullptr) Runtime::Get().tracker.ExposeUnlessPinned(root);
}

void ExposeTo(const void* holder, const TensorBuffer* buffer) {
  MovableBuffer* root = TrackedRoot(buffer);
  if (root != nullptr) Runtime::Get().tracker.ExposeTo(holder, root);
}

void ReleaseHolder(const void* holder) {
  if (EverActive()) Runtime::Get().tracker.ReleaseHolder(holder);
}

Allocator* AllocatorOutsideOps() {
  Allocator* const usual = cpu_allocator();
  const bool managed = Active() && Runtime::Get().pools.Of(usual) != nullptr;
  return managed ? cpu_allocator_base() : usual;
}

TensorBuffer* CopyOutsideOps(DataType type, const void* data, size_t bytes) {
  const size_t size = static_cast<size_t>(DataTypeSize(type));
  if (!EverActive() || bytes == 0 || size == 0 || bytes % size != 0) return nullptr;
  const TensorShape shape({static_cast<int64_t>(bytes / size)});
  Tensor tensor = NewTensorAtOnce(cpu_allocator(), type, shape);
  if (!tensor.IsInitialized()) tensor = Tensor(cpu_allocator_base(), type, shape);
  TensorBuffer* buffer = const_cast<TensorBuffer*>(DMAHelper::buffer(&tensor));
  std::memcpy(buffer->data(), data, bytes);
  NoteConstant(tensor);
  buffer->Ref();
  return buffer;
}

}  // namespace lms
}  // namespace tensorflow
