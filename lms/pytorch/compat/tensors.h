// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/lms/compat/implementations.h>

namespace at {
struct SparseTensorImpl;
}

// Seam: what tensors and values hold.
namespace torch::lms {

// Whether it is of the device, and has one storage at most: as most are. False where that takes
// more than a look.
bool is_plain(const at::Tensor& tensor);
// Whether it is not of the device.
bool elsewhere(const at::Tensor& tensor);
// Whether its layout is compressed sparse; and then f(Tensor) for each tensor in it.
bool is_sparse_compressed(const at::Tensor& tensor);
template <class F>
void each_compressed_part(const at::Tensor& tensor, const F& f);
// Of one whose layout is sparse.
const at::SparseTensorImpl& sparse(const at::Tensor& tensor);
// Whether its elements lie without a gap or an overlap; false where that is not known.
bool is_dense(const at::Tensor& tensor);
// Null for one that has none.
c10::StorageImpl* storage_of(const at::Tensor& tensor);
// Of a value that is a storage; null for any other.
c10::StorageImpl* storage_in(const c10::IValue& value);
// f(element) for each of a list's or a tuple's, as a value or as the tensor that it is.
template <class F>
void each_element(const c10::IValue& value, const F& f);

}  // namespace torch::lms

#include LMS_TENSORS
