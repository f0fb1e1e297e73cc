// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators take a storage before PyTorch 1.13, where no argument of one can be a storage: by
// its address, which Python gives. Included by the versions' headers of definitions.

#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace torch::lms {

using StorageArgument = int64_t;

inline c10::StorageImpl* storage_in(StorageArgument storage) {
  return reinterpret_cast<c10::StorageImpl*>(storage);
}

// Leaked: operators outlive static destructors.
template <class Definitions>
bool define(void (*all)(Definitions&)) {
  all(*new Definitions);
  return true;
}

}  // namespace torch::lms

#define LMS_STORAGE_SCHEMA "int"
#define LMS_DEFINITIONS(definitions)                               \
  static void lms_define(torch::lms::Definitions&);                \
  static const bool lms_defined = torch::lms::define(&lms_define); \
  static void lms_define(torch::lms::Definitions& definitions)
