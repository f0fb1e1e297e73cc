// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/buffer.h"

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"

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

void ExposeForGood(const TensorBuffer* buffer) {
  MovableBuffer* root = TrackedRoot(buffer);
  if (root != nullptr) Runtime::Get().tracker.Expose(root);
}

Allocator* AllocatorOutsideOps() {
  Allocator* const usual = cpu_allocator();
  const bool managed = Active() && Runtime::Get().pools.Of(usual) != nullptr;
  return managed ? cpu_allocator_base() : usual;
}

}  // namespace lms
}  // namespace tensorflow
