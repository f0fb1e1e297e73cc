// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/lists.h"

#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tensorflow {
namespace lms {

void ForEachListed(const Tensor& tensor, const std::function<void(const Tensor&)>& visit,
                   bool nested) {
  if (tensor.dtype() != DT_VARIANT) return;
  const auto flat = tensor.flat<Variant>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    // The class is compiled into another library, so it is known by name. Its encoding refers to
    // the tensors, it does not copy them.
    if (flat(i).is_empty() || flat(i).TypeName() != "tensorflow::TensorList") continue;
    VariantTensorData list;
    flat(i).Encode(&list);
    for (const Tensor& listed : list.tensors()) {
      if (listed.dtype() == DT_VARIANT) {
        if (nested) ForEachListed(listed, visit);
      } else {
        visit(listed);
      }
    }
  }
}

}  // namespace lms
}  // namespace tensorflow
