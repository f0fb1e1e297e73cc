// SPDX-License-Identifier: Apache-2.0
#include "metas.h"

#include <simcuda.h>

namespace simcuda::dry {

using at::Tensor;

const c10::Storage& Metas::storage_of(const Tensor& tensor) {
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  for (auto& known : storages_) {
    if (known.first == impl) return known.second;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(impl->nbytes()),
                       c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                       c10::GetAllocator(c10::kMeta), /*resizable=*/true);
  storages_.emplace_back(impl, std::move(storage));
  return storages_.back().second;
}

Tensor Metas::of(const Tensor& tensor, bool written) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0 && !written)) return tensor;
  for (auto& pair : pairs_) {
    if (!pair.real.is_same(tensor)) continue;
    pair.written |= written;
    return pair.meta;
  }
  if (tensor.layout() != c10::kStrided || tensor.is_nested() || !tensor.has_storage()) {
    simcuda_refuse((op_ + " on a tensor that is not dense").c_str());
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the dry device refuses: ", op_, " on a tensor of type ",
                                tensor.toString(), ", because it has shapes of dense tensors only");
  }
  auto meta = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_of(tensor)),
                                                       c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                       tensor.dtype());
  auto* impl = meta.unsafeGetTensorImpl();
  impl->set_storage_offset(tensor.storage_offset());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) meta._set_conj(true);
  if (tensor.is_neg()) meta._set_neg(true);
  pairs_.push_back({tensor, meta, written});
  return meta;
}

bool Metas::resize_written() const {
  bool any = false;
  for (const auto& pair : pairs_) {
    if (!pair.written) continue;
    bool sizes = pair.meta.sizes() == pair.real.sizes();
    if (sizes && pair.meta.strides() == pair.real.strides()) continue;
    any = true;
    if (!sizes) pair.real.resize_(pair.meta.sizes());
    if (pair.real.strides() != pair.meta.strides()) {
      pair.real.unsafeGetTensorImpl()->set_sizes_and_strides(pair.meta.sizes(),
                                                             pair.meta.strides());
    }
  }
  return any;
}

Tensor Metas::real(const Tensor& meta) const {
  for (const auto& pair : pairs_) {
    if (pair.meta.is_same(meta)) return pair.real;
  }
  return {};
}

Tensor Metas::base(const Tensor& meta) const {
  for (const auto& pair : pairs_) {
    if (meta.has_storage() && pair.meta.storage().is_alias_of(meta.storage())) return pair.real;
  }
  return {};
}

}  // namespace simcuda::dry
