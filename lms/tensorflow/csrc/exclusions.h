// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_EXCLUSIONS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_EXCLUSIONS_H_

#include <cstdint>
#include <unordered_map>

#include "tensorflow/core/common_runtime/lms/buffer.h"

namespace tensorflow {
namespace lms {

// What users exclude, by the address of a byte of it.
class Exclusions {
 public:
  // Keeps the buffer that holds the byte at `data` on the device: one that the engine does not know
  // yet, from when it does. False when it is out and there is no room for it.
  bool Exclude(const void* data);
  void Include(const void* data);

  // The engine knows the buffer from now on. Under its lock.
  void NoteTracked(MovableBuffer* buffer);

 private:
  // Blocks of buffers that are not tracked yet, and which allocation had them. Under the engine's
  // lock.
  std::unordered_map<const void*, int64_t> untracked_;
};

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_EXCLUSIONS_H_
