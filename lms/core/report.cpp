// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cctype>
#include <mutex>
#include <sstream>

namespace lms {
namespace {

std::string limit(std::size_t bytes) { return bytes == 0 ? "none" : mib(bytes); }

// In use, and no storage's that the engine knows.
std::size_t unknown_bytes(const Report& report) {
  const Census& c = report.census;
  const std::size_t known = c.pinned_bytes + c.exposed_bytes + c.excluded_bytes +
                            c.immovable_bytes + c.small_bytes + c.idle_bytes;
  return report.pool_in_use > known ? report.pool_in_use - known : 0;
}

// Whether the op would find room if it were alone.
bool others_are_in_the_way(const Report& report) {
  return report.own_known && report.wanted > 0 &&
         report.own_bytes + report.wanted <= report.pool_bytes;
}

// Whether the request would find room if what is free were one piece.
bool in_pieces(const Report& report) {
  return report.own_known && report.wanted > 0 &&
         report.pool_in_use + report.wanted <= report.pool_bytes;
}

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
  const bool tell_held = report.own_known && c.held > 0;
  const std::size_t by_ops = tell_held ? c.pinned - c.held : c.pinned;
  out << mib(tell_held ? c.pinned_bytes - c.held_bytes : c.pinned_bytes) << " in " << by_ops << " "
      << words.storages << " are pinned by running " << words.ops;
  if (by_ops > 0 || !tell_held) out << " (largest " << mib(c.largest_pinned) << ")";
  out << ", ";
  if (tell_held) out << mib(c.held_bytes) << " are pinned by " << words.held_by << ", ";
  out << mib(c.on_host_bytes) << " are in host memory";
  if (c.exposed > 0) {
    out << ", " << mib(c.exposed_bytes) << " cannot move because their pointers are exposed";
    if (*words.unexpose != '\0') out << " (" << words.unexpose << " lets them go)";
  }
  if (c.excluded > 0) out << ", " << mib(c.excluded_bytes) << " are excluded";
  if (c.small > 0) out << ", " << mib(c.small_bytes) << " are below the minimum size";
  if (c.idle > 0) out << ", " << mib(c.idle_bytes) << " are idle but did not move";
  if (report.own_known && c.immovable > 0) {
    out << ", " << mib(c.immovable_bytes) << " are in pools that nothing may leave";
  }
  if (report.own_known && unknown_bytes(report) > 0) {
    out << ", " << mib(unknown_bytes(report)) << " are " << words.unknown;
  }
  out << ". Device limit: " << limit(report.device_limit)
      << ", host limit: " << limit(report.host.limit) << " (" << mib(report.host.used)
      << " in use), minimum size: " << mib(report.min_bytes) << ". ";
  const bool at_host_limit = c.idle + c.small > 0 && report.stats.host_short;
  if (at_host_limit && report.host.limit > 0) {
    out << "Host memory is at its limit: " << words.raise_host_limit << ". ";
  } else if (at_host_limit) {
    out << "The machine gives no more host memory. ";
  }
  if (in_pieces(report)) {
    out << "Enough is free, but not in one piece: " << words.join << ". ";
    return out.str();
  }
  const char* const helps = others_are_in_the_way(report) ? words.others : words.need_less;
  if (report.device_limit > 0 && !at_host_limit) {
    out << "Raise the device limit, or " << helps << ". ";
  } else {
    out << capitalised(helps) << ". ";
  }
  return out.str();
}

std::string mib(std::size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace lms
