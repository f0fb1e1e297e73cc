// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/buffer.h"

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"

namespace tensorflow {
namespace lms {

MovableBuffer* MovableBuffer::Of(const Tensor& tensor) {
  return Of(const_cast<TensorBuffer*>(DMAHelper::buffer(&tensor)));
}

void MovableBuffer::Forget() { Runtime::Get().Forget(this); }

void AddView(TensorBuffer* root, TensorBuffer* view) {
  if (Runtime::EverActive()) Runtime::Get().AddView(MovableBuffer::Of(root), view);
}

void RemoveView(TensorBuffer* root, TensorBuffer* view) {
  if (Runtime::EverActive()) Runtime::Get().RemoveView(MovableBuffer::Of(root), view);
}

void HandOut(const TensorBuffer* buffer) {
  if (!Runtime::EverActive()) return;
  MovableBuffer* root = MovableBuffer::Of(const_cast<TensorBuffer*>(buffer));
  if (root != nullptr && root->tracked()) {
    Runtime::Get().ExposeUnlessPinned(root);
  }
}

Allocator* AllocatorOutsideOps() {
  Allocator* const usual = cpu_allocator();
  const bool managed = Runtime::Active() && Runtime::Get().PoolOf(usual) != nullptr;
  return managed ? cpu_allocator_base() : usual;
}

void HandOutForGood(const TensorBuffer* buffer) {
  if (!Runtime::EverActive()) return;
  MovableBuffer* root = MovableBuffer::Of(const_cast<TensorBuffer*>(buffer));
  if (root != nullptr && root->tracked()) {
    Runtime::Get().Expose(root);
  }
}

}  // namespace lms
}  // namespace tensorflow
