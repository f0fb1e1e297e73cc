// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>

namespace c10::cuda::lms {
namespace detail {
std::atomic<size_t> device_limit{0};
std::atomic<size_t> soft_limit{0};
std::atomic<size_t> min_bytes{size_t{1} << 20};
}  // namespace detail

void set_device_limit(size_t bytes) { detail::device_limit = bytes; }
size_t device_limit() noexcept { return detail::device_limit; }
void set_soft_limit(size_t bytes) { detail::soft_limit = bytes; }
size_t soft_limit() noexcept { return detail::soft_limit; }
void set_host_limit(size_t bytes) { state().host.set_limit(bytes); }
size_t host_limit() { return state().host.stats().limit; }
std::string host_share() { return text(state().host_share, host_limit()); }
void set_min_size(size_t bytes) {
  state().engine.set_min_bytes(bytes);
  detail::min_bytes = bytes;
}
size_t min_size() { return state().engine.min_bytes(); }

void trim_host() { state().host.trim(); }

}  // namespace c10::cuda::lms
