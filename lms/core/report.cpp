// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cctype>
#include <mutex>
#include <sstream>

namespace lms {
namespace {

std::string limit(std::size_t bytes) { return bytes == 0 ? "none" : mib(bytes); }

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace

Report report(Engine& engine, const HostPool& host, int device) {
  const std::lock_guard<std::recursive_mutex> lock(engine.mutex());
  Report report;
  report.census = engine.census(device);
  report.stats = engine.stats(device);
  report.host = host.stats();
  report.min_bytes = engine.min_bytes();
  return report;
}

std::vector<std::pair<const char*, std::int64_t>> fields(const Report& report) {
  const EngineStats& s = report.stats;
  const Census& c = report.census;
  const auto count = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  return {{"paged_out", s.paged_out},
          {"paged_out_bytes", s.paged_out_bytes},
          {"paged_in", s.paged_in},
          {"paged_in_bytes", s.paged_in_bytes},
          {"clean_evictions", s.clean_evictions},
          {"clean_bytes", s.clean_bytes},
          {"overwrites", s.overwrites},
          {"overwrite_bytes", s.overwrite_bytes},
          {"silent_writes", s.silent_writes},
          {"host_refused", s.host_refused},
          {"tracked", count(c.tracked)},
          {"idle", count(c.idle)},
          {"idle_bytes", count(c.idle_bytes)},
          {"on_host", count(c.on_host)},
          {"on_host_bytes", count(c.on_host_bytes)},
          {"exposed", count(c.exposed)},
          {"exposed_bytes", count(c.exposed_bytes)},
          {"excluded", count(c.excluded)},
          {"excluded_bytes", count(c.excluded_bytes)}};
}

std::string shortage(const Report& report, const Words& words) {
  const Census& c = report.census;
  std::ostringstream out;
  if (report.wanted > 0) {
    out << "Large Model Support could not make room for " << mib(report.wanted) << " on "
        << report.pool;
    if (report.pool_bytes > 0) {
      out << ", of which " << mib(report.pool_in_use) << " of " << mib(report.pool_bytes)
          << " are in use";
    }
    out << ": ";
  } else {
    out << "Large Model Support is on: ";
  }
  out << mib(c.pinned_bytes) << " in " << c.pinned << " " << words.storages
      << " are pinned by running " << words.ops << " (largest " << mib(c.largest_pinned) << "), "
      << mib(c.on_host_bytes) << " are in host memory";
  if (c.exposed > 0) {
    out << ", " << mib(c.exposed_bytes) << " cannot move because their pointers are exposed";
    if (*words.unexpose != '\0') out << " (" << words.unexpose << " lets them go)";
  }
  if (c.excluded > 0) out << ", " << mib(c.excluded_bytes) << " are excluded";
  if (c.small > 0) out << ", " << mib(c.small_bytes) << " are below the minimum size";
  if (c.idle > 0) out << ", " << mib(c.idle_bytes) << " are idle but did not move";
  out << ". Device limit: " << limit(report.device_limit)
      << ", host limit: " << limit(report.host.limit) << " (" << mib(report.host.used)
      << " in use), minimum size: " << mib(report.min_bytes) << ". ";
  const bool at_host_limit = c.idle + c.small > 0 && report.stats.host_short;
  if (at_host_limit && report.host.limit > 0) {
    out << "Host memory is at its limit: " << words.raise_host_limit << ". ";
  } else if (at_host_limit) {
    out << "The machine gives no more host memory. ";
  } else if (report.device_limit > 0) {
    out << "Raise the device limit, or " << words.need_less << ". ";
    return out.str();
  }
  out << capitalised(words.need_less) << ". ";
  return out.str();
}

std::string mib(std::size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace lms
