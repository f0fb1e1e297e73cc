// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/statistics.h"

#include <atomic>
#include <cstdint>
#include <sstream>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/compat.h"
#include "tensorflow/core/common_runtime/lms/core/report.h"
#include "tensorflow/core/common_runtime/lms/frame.h"
#include "tensorflow/core/common_runtime/lms/options.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"

namespace tensorflow {
namespace lms {
namespace {

constexpr ::lms::Words kWords = {
    "tensors",
    "operations",
    "raise TF_GPU_HOST_MEM_LIMIT_IN_MB, or host_limit of tf.config.experimental.set_lms_options",
    "use smaller inputs: all that one operation reads and makes must fit",
    "",
    "the user",
    kPointersTakenUnseen
        ? "not of tensors that it knows (held by Python, whose tensors on the CPU device cannot "
          "move in this version of TensorFlow, made by operations that run, or kept by queues and "
          "datasets)"
        : "not of tensors that it knows (made by operations that run, or kept by queues and "
          "datasets)",
    "use smaller inputs",
    "let go of what is named above and cannot move",
    ": the operation would fit alone"};

// Instead of the last but one, where other operations run.
constexpr char kFewer[] = "run fewer operations at a time (inter_op_parallelism_threads)";

using Fields = std::vector<std::pair<const char*, int64_t>>;

void Raise(std::atomic<int64_t>* peak, int64_t value) {
  int64_t old = peak->load();
  while (old < value && !peak->compare_exchange_weak(old, value)) {
  }
}

// IBM's, of the allocator and of what moved.
Fields FieldsOf(const Pool& pool, const ::lms::EngineStats& stats) {
  const auto numbers = BfcAccess::Stats(pool.allocator);
  const int64_t inactive = pool.candidate_bytes;
  return {{"num_allocs", numbers.allocs},
          {"bytes_in_use", numbers.in_use},
          {"peak_bytes_in_use", numbers.peak_in_use},
          {"largest_alloc_size", numbers.largest},
          {"bytes_limit", pool.limit()},
          {"bytes_reserved", numbers.reserved},
          {"peak_bytes_reserved", pool.peak_reserved_bytes},
          {"bytes_reservable_limit", numbers.limit},
          {"bytes_inactive", inactive},
          {"bytes_active", numbers.in_use - inactive},
          {"peak_bytes_active", pool.peak_active_bytes},
          {"bytes_reclaimed", stats.reclaimed_bytes},
          {"current_bytes_reclaimed", pool.out_bytes.current},
          {"peak_bytes_reclaimed", pool.out_bytes.peak},
          {"num_single_reclaims", pool.single_reclaims},
          {"num_full_reclaims", pool.full_reclaims}};
}

std::string OfDevice(Pool* pool) {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine.mutex());
  NotePeaks(pool);
  const ::lms::Report report = ::lms::report(runtime.engine, runtime.host, pool->index);
  Fields fields = FieldsOf(*pool, report.stats);
  fields.push_back({"pinned_bytes", static_cast<int64_t>(report.census.pinned_bytes)});
  for (const auto& field : ::lms::fields(report)) fields.push_back(field);
  std::ostringstream out;
  out << "{\"name\": \"" << pool->name << "\"";
  for (const auto& field : fields) out << ", \"" << field.first << "\": " << field.second;
  out << "}";
  return out.str();
}

std::string OfNode(int node, const ::lms::HostStats::Node& stats) {
  std::ostringstream out;
  out << "\"" << node << "\": {\"gpu_host_bytes_in_use\": " << stats.used
      << ", \"gpu_host_peak_bytes_in_use\": " << stats.used_peak << "}";
  return out.str();
}

}  // namespace

void NotePeaks(Pool* pool) {
  int64_t candidates = 0;
  BfcAccess::Numbers numbers;
  do {  // both at one time
    candidates = pool->candidate_bytes;
    numbers = BfcAccess::Stats(pool->allocator);
  } while (candidates != pool->candidate_bytes);
  // There was no candidate before the first enable, and nobody looked.
  const int64_t active = EverActive() ? numbers.in_use - candidates : numbers.peak_in_use;
  Raise(&pool->peak_active_bytes, active);
  Raise(&pool->peak_reserved_bytes, numbers.reserved);
}

void ResetPeaks() {
  Runtime& runtime = Runtime::Get();
  EngineLock lock(runtime.engine.mutex());
  runtime.host.reset_peaks();
  for (Pool* pool : runtime.pools) {
    runtime.engine.reset_peaks(pool->index);
    pool->out_bytes.reset_peak();
    pool->peak_active_bytes = 0;
    pool->peak_reserved_bytes = 0;
    pool->allocator->ClearStats();
    NotePeaks(pool);
  }
}

std::string Statistics() {
  Runtime& runtime = Runtime::Get();
  std::ostringstream out;
  out << "{\"enabled\": " << (Enabled() ? "true" : "false")
      << ", \"devices_made\": " << (runtime.devices_made() ? "true" : "false")
      << ", \"devices\": [";
  for (Pool* pool : runtime.pools) out << (pool->index == 0 ? "" : ", ") << OfDevice(pool);
  auto nodes = runtime.host.stats().nodes;
  nodes[0];  // there is always one
  out << "], \"host\": {";
  const char* separator = "";
  for (const auto& node : nodes) {
    out << separator << OfNode(node.first, node.second);
    separator = ", ";
  }
  out << "}, \"host_share\": \"" << text(runtime.host_share, runtime.host.stats().limit) << "\"}";
  return out.str();
}

std::string Shortage(const Pool* pool, size_t bytes) {
  Runtime& runtime = Runtime::Get();
  ::lms::Report report = ::lms::report(runtime.engine, runtime.host, pool->index);
  report.device_limit = DeviceLimit();
  report.wanted = bytes;
  report.pool = pool->name;
  report.pool_bytes = static_cast<size_t>(pool->bytes());
  report.pool_in_use = static_cast<size_t>(BfcAccess::Stats(pool->allocator).in_use);
  report.own_known = true;
  report.own_bytes = OpFrame::OwnBytes(pool, bytes);
  ::lms::Words words = kWords;
  if (report.census.pinned_bytes > report.own_bytes) words.others = kFewer;
  std::string text = ::lms::shortage(report, words);
  text.pop_back();  // the space after it
  return text;
}

void WarnOfThrashing() {
  Runtime& runtime = Runtime::Get();
  int index = 0;
  ::lms::Traffic traffic;
  while (runtime.engine.tell_thrashing(&index, &traffic)) {
    LOG(WARNING) << ::lms::thrashing(runtime.pools.begin()[index]->name, traffic, kWords);
  }
}

}  // namespace lms
}  // namespace tensorflow
