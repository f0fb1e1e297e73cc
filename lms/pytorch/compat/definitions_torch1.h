// SPDX-License-Identifier: Apache-2.0
#pragma once

// How operators come to be from PyTorch 1.13 on; included by definitions.h.

#include <ATen/core/Dict.h>
#include <torch/library.h>

#include <string>

namespace torch::lms {

using Definitions = torch::Library;
using StorageArgument = c10::Storage;
using Counts = c10::Dict<std::string, int64_t>;

inline c10::StorageImpl* storage_in(const StorageArgument& storage) {
  return storage.unsafeGetStorageImpl();
}

}  // namespace torch::lms

#define LMS_STORAGE_SCHEMA "Storage"
#define LMS_DEFINITIONS(definitions) TORCH_LIBRARY(lms, definitions)
