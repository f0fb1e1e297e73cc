// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LISTS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LISTS_H_

#include <functional>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {
namespace lms {

// Calls `visit` for each tensor in the TensorLists that a tensor of variants holds, and, if
// `nested`, in lists that are in these. Does nothing for a tensor of another type.
void ForEachListed(const Tensor& tensor, const std::function<void(const Tensor&)>& visit,
                   bool nested = true);

// Calls `visit` for each tensor that a sum of tensors of variants reads. What only one of several
// lists has at a position is in their sum as it is.
void ForEachAdded(const std::vector<Tensor>& terms,
                  const std::function<void(const Tensor&)>& visit);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LISTS_H_
