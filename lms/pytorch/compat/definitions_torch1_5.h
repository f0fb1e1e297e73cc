// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators come to be in PyTorch 1.5; included by definitions.h. No argument of one can be a
// storage, so that Python gives its address.

#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <type_traits>
#include <utility>

namespace torch::lms {

class Definitions {
 public:
  template <class Function>
  void def(const char* schema, Function&& function) {
    const std::string qualified = std::string("lms::") + schema;
    std::move(registered_).op(qualified, std::forward<Function>(function));  // gives itself back
  }

 private:
  c10::RegisterOperators registered_;
};

using StorageArgument = int64_t;
using Counts = c10::Dict<std::string, int64_t>;

inline c10::StorageImpl* storage_in(StorageArgument storage) {
  return reinterpret_cast<c10::StorageImpl*>(storage);
}

// Leaked: operators outlive static destructors.
inline bool define(void (*all)(Definitions&)) {
  all(*new Definitions);
  return true;
}

}  // namespace torch::lms

#define LMS_STORAGE_SCHEMA "int"
#define LMS_DEFINITIONS(definitions)                               \
  static void lms_define(torch::lms::Definitions&);                \
  static const bool lms_defined = torch::lms::define(&lms_define); \
  static void lms_define(torch::lms::Definitions& definitions)
