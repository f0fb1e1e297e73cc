// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/c_api.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tensorflow/core/common_runtime/lms/runtime.h"

namespace {

using tensorflow::lms::Runtime;

int Report(const tensorflow::Status& status, char* error, size_t error_size) {
  if (status.ok()) return 0;
  if (error != nullptr && error_size > 0) {
    const std::string text(tensorflow::lms::MessageOf(status));
    const size_t length = std::min(text.size(), error_size - 1);
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
  }
  return static_cast<int>(status.code());
}

}  // namespace

int TF_LmsSetEnabled(int on, char* error, size_t error_size) {
  return Report(Runtime::Get().SetEnabled(on != 0), error, error_size);
}

int TF_LmsGetEnabled(void) { return Runtime::Get().enabled() ? 1 : 0; }

int TF_LmsSetOption(const char* name, int64_t value, char* error, size_t error_size) {
  return Report(Runtime::Get().SetOption(name, value), error, error_size);
}

int64_t TF_LmsGetOption(const char* name) { return Runtime::Get().GetOption(name); }

int TF_LmsExcludeBuffer(const void* data, int on) {
  return Runtime::Get().Exclude(data, on != 0) ? 0 : 1;
}

char* TF_LmsStatistics(void) {
  const std::string text = Runtime::Get().Statistics();
  char* copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

void TF_LmsFree(char* text) { delete[] text; }

int TF_LmsResetPeaks(void) {
  Runtime::Get().ResetPeaks();
  return 0;
}

int64_t TF_LmsReclaim(void) { return Runtime::Get().ReclaimAll(); }
