// SPDX-License-Identifier: Apache-2.0
// What an extension does that takes a tensor and asks for its pointer itself, past every operator.
// Called through ctypes with the address of a TensorImpl; every function returns an error or "".

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

namespace {

std::string error;

template <class F>
const char* guarded(const F& f) {
  error.clear();
  try {
    f();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return error.c_str();
}

// The pointer for writing; before PyTorch 2 there is but one.
template <class Storage>
auto writable(Storage* storage, int) -> decltype(storage->mutable_data()) {
  return storage->mutable_data();
}
template <class Storage>
void* writable(Storage* storage, long) {
  return storage->data();
}

using Memset = int (*)(void*, int, size_t, void*);

}  // namespace

extern "C" {

// Sets every byte of the storage, on `stream`, by the pointer for writing.
const char* extension_fill(c10::TensorImpl* tensor, Memset memset, int value, void* stream) {
  return guarded([&] {
    auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    memset(writable(storage, 0), value, storage->nbytes(), stream);
  });
}

// As autograd does for gradients: no operator sees that the stream uses the tensor.
const char* extension_record(c10::TensorImpl* tensor, int64_t stream) {
  return guarded([&] {
    const auto& pointer = tensor->unsafe_storage().data_ptr();
    const c10::Stream used(c10::Stream::UNSAFE, pointer.device(), stream);
    c10::impl::VirtualGuardImpl(pointer.device().type()).recordDataPtrOnStream(pointer, used);
  });
}

// The pointer for reading.
const char* extension_pointer(c10::TensorImpl* tensor, const void** pointer) {
  return guarded([&] { *pointer = tensor->unsafe_storage().data(); });
}
}
