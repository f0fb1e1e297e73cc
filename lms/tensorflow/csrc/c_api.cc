// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/c_api.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tensorflow/core/common_runtime/lms/options.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/common_runtime/lms/switch.h"

namespace {

namespace tf_lms = tensorflow::lms;

int Report(const tensorflow::Status& status, char* error, size_t error_size) {
  if (status.ok()) return 0;
  if (error != nullptr && error_size > 0) {
    const std::string text(tf_lms::MessageOf(status));
    const size_t length = std::min(text.size(), error_size - 1);
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
  }
  return static_cast<int>(status.code());
}

}  // namespace

int TF_LmsSetEnabled(int on, char* error, size_t error_size) {
  if (on != 0) return Report(tf_lms::Enable(), error, error_size);
  tf_lms::Disable();
  return 0;
}

int TF_LmsGetEnabled(void) { return tf_lms::Enabled() ? 1 : 0; }

int TF_LmsSetOption(const char* name, int64_t value, char* error, size_t error_size) {
  return Report(tf_lms::SetOption(name, value), error, error_size);
}

int64_t TF_LmsGetOption(const char* name) { return tf_lms::GetOption(name); }

int TF_LmsExcludeBuffer(const void* data, int on) {
  tf_lms::Exclusions& exclusions = tf_lms::Runtime::Get().exclusions;
  if (on != 0) return exclusions.Exclude(data) ? 0 : 1;
  exclusions.Include(data);
  return 0;
}

char* TF_LmsStatistics(void) {
  const std::string text = tf_lms::Statistics();
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

void TF_LmsFree(char* text) { delete[] text; }

int TF_LmsResetPeaks(void) {
  tf_lms::ResetPeaks();
  return 0;
}

int64_t TF_LmsReclaim(void) {
  tf_lms::Runtime& runtime = tf_lms::Runtime::Get();
  tf_lms::EngineLock lock(runtime.engine.mutex());
  if (!tf_lms::Enabled()) return 0;
  std::size_t bytes = 0;
  for (const tf_lms::Pool* pool : runtime.pools) {
    bytes += runtime.engine.evict_all(pool->index, ::lms::Sizes::kAny);
  }
  return static_cast<int64_t>(bytes);
}
