// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/lms/boundary.h>

#include <atomic>

namespace torch::lms {
namespace {

std::atomic<size_t> g_part_bytes{0};

}  // namespace

void set_part_bytes(size_t bytes) { g_part_bytes = bytes; }

size_t part_bytes() noexcept { return g_part_bytes.load(std::memory_order_relaxed); }

}  // namespace torch::lms
