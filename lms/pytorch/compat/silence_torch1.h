// SPDX-License-Identifier: Apache-2.0
#pragma once

// The warnings of PyTorch 1.13; included by silence.h.

#include <string>

namespace torch::lms {

namespace detail {

class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::SourceLocation&, const std::string&, bool) override {}
};

}  // namespace detail

template <class Run>
void silently(const Run& run) {
  detail::Silent silent;
  const c10::Warning::WarningHandlerGuard guard(&silent);
  run();
}

}  // namespace torch::lms
