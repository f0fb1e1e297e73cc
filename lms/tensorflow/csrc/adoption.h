// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_ADOPTION_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_ADOPTION_H_

#include "tensorflow/core/common_runtime/lms/pool.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
namespace lms {

// Tensors whose buffers are not of a kind that can be moved get one that is.

// Takes the memory over from a buffer of XLA's that only `tensor` refers to, and that is a block of
// a pool.
void AdoptMemory(Tensor* tensor);

// Gives `tensor` a copy in `pool`, unless its buffer can be moved or there is no room: it is as
// good where it is.
void AdoptCopy(Tensor* tensor, const Pool& pool);

// Whether AdoptCopy has something to do.
bool IsOutside(const Tensor& tensor);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_ADOPTION_H_
