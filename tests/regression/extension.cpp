// SPDX-License-Identifier: Apache-2.0
// What an extension does that takes a tensor and asks for its pointer itself, past every operator.
// Called through ctypes with the address of a TensorImpl; every function returns an error or "".

#include <c10/core/TensorImpl.h>

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

using Memset = int (*)(void*, int, size_t, void*);

}  // namespace

extern "C" {

// Sets every byte of the storage, on `stream`, by the pointer for writing.
const char* extension_fill(c10::TensorImpl* tensor, Memset memset, int value, void* stream) {
  return guarded([&] {
    auto* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    memset(storage->mutable_data(), value, storage->nbytes(), stream);
  });
}

// The pointer for reading.
const char* extension_pointer(c10::TensorImpl* tensor, const void** pointer) {
  return guarded([&] { *pointer = tensor->unsafe_storage().data(); });
}
}
