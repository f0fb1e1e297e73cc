// SPDX-License-Identifier: Apache-2.0
#pragma once

// The warnings of PyTorch 2.6 and later; included by silence.h.

namespace torch::lms {

namespace detail {

class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace detail

template <class Run>
void silently(const Run& run) {
  detail::Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  run();
}

}  // namespace torch::lms
