// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <sstream>

namespace lms {
namespace {

std::string limit(std::size_t bytes) { return bytes == 0 ? "none" : mib(bytes); }

std::size_t in_granules(const Report& report, std::size_t bytes) {
  return (bytes + report.pool_granule - 1) / report.pool_granule * report.pool_granule;
}

std::size_t known_bytes(const Census& c) {
  return c.pinned_bytes + c.exposed_bytes + c.excluded_bytes + c.immovable_bytes + c.small_bytes +
         c.idle_bytes;
}

std::size_t beyond(std::size_t bytes, std::size_t part) { return bytes > part ? bytes - part : 0; }

bool request_known(const Report& report) { return report.own_known && report.wanted > 0; }

// Whether the op would find room if it were alone.
enum class Alone { kYes, kNo, kPerhaps };
Alone fits_alone(const Report& report) {
  if (!request_known(report)) return Alone::kNo;
  const std::size_t least = report.own_bytes + report.wanted;
  if (in_granules(report, least) > report.pool_bytes) return Alone::kNo;
  const std::size_t unknown = beyond(report.pool_in_use, known_bytes(report.census));
  const std::size_t made = report.own_complete ? 0 : unknown;
  const std::size_t apart = report.pool_elsewhere > 0 ? report.pool_granule : 0;
  const bool surely = in_granules(report, least + made) + apart <= report.pool_bytes;
  return surely ? Alone::kYes : Alone::kPerhaps;
}

// Whether the request would find room, with `in_use` in use, if what is free were one piece.
bool fits_in_one_piece(const Report& report, std::size_t in_use) {
  const std::size_t elsewhere = std::min(in_use, report.pool_elsewhere);
  return request_known(report) &&
         in_granules(report, in_use - elsewhere + report.wanted) + in_granules(report, elsewhere) <=
             report.pool_bytes;
}

std::string capitalised(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// Not as "0.00 MiB", which would name what does not matter.
bool shows(std::size_t bytes) { return mib(bytes) != mib(0); }

std::string helps(const Report& report, const Words& words) {
  switch (fits_alone(report)) {
    case Alone::kYes:
      return std::string(words.others) + words.alone;
    case Alone::kNo:
      return words.need_less;
    case Alone::kPerhaps:
      break;
  }
  return std::string(words.others) + ", or " + words.need_less;
}

}  // namespace

Report report(Engine& engine, const HostPool& host, int device) {
  const EngineLock lock(engine.mutex());
  Report report;
  report.census = engine.census(device);
  report.stats = engine.stats(device);
  report.host = host.stats();
  report.min_bytes = engine.min_bytes();
  return report;
}

std::size_t unknown_bytes(const Report& report) {
  // What waits for other streams is requested still, and not in use.
  const std::size_t requested = std::min(report.pool_in_use, report.pool_requested);
  return beyond(requested, known_bytes(report.census));
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
          {"used", s.used},
          {"used_bytes", s.used_bytes},
          {"silent_writes", s.silent_writes},
          {"predicted", s.predicted},
          {"mispredicted", s.mispredicted},
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
  const std::size_t by_ops = c.pinned - c.held;
  out << mib(c.pinned_bytes - c.held_bytes) << " in " << by_ops << " " << words.storages
      << " are pinned by running " << words.ops;
  if (by_ops > 0) out << " (largest " << mib(c.largest_pinned) << ")";
  out << ", ";
  if (shows(c.held_bytes)) out << mib(c.held_bytes) << " are pinned by " << words.held_by << ", ";
  out << mib(c.on_host_bytes) << " are in host memory";
  if (shows(c.exposed_bytes)) {
    out << ", " << mib(c.exposed_bytes) << " cannot move because their pointers are exposed";
    if (*words.unexpose != '\0') out << " (" << words.unexpose << " lets them go)";
  }
  if (shows(c.excluded_bytes)) out << ", " << mib(c.excluded_bytes) << " are excluded";
  if (shows(c.small_bytes)) out << ", " << mib(c.small_bytes) << " are below the minimum size";
  if (shows(c.idle_bytes)) out << ", " << mib(c.idle_bytes) << " are idle but did not move";
  if (report.own_known && shows(c.immovable_bytes)) {
    out << ", " << mib(c.immovable_bytes) << " " << words.immovable;
  }
  if (report.own_known && shows(unknown_bytes(report))) {
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
  const std::size_t would_leave = at_host_limit ? c.idle_bytes + c.small_bytes : 0;
  const std::size_t in_use = report.pool_in_use - std::min(report.pool_in_use, would_leave);
  const bool fits = fits_in_one_piece(report, in_use);
  if (fits && !at_host_limit) {
    const bool others = shows(c.held_bytes + c.exposed_bytes + c.excluded_bytes) ||
                        (report.own_known && shows(c.immovable_bytes + unknown_bytes(report)));
    out << "Enough is free, but not in one piece that this stream may use: "
        << (others ? words.others + std::string(", or ") : "") << words.join << ". ";
  } else if (!fits || report.host.limit == 0) {  // more host memory is not to be had, or no help
    const bool raise = report.device_limit > 0 && !at_host_limit;
    out << (raise ? "Raise the device limit, or " + helps(report, words)
                  : capitalised(helps(report, words)))
        << ". ";
  }
  return out.str();
}

std::string thrashing(const std::string& device, const Traffic& traffic, const Words& words) {
  std::ostringstream out;
  out << "Large Model Support copies most of what " << words.ops << " use on " << device
      << " before each use, which takes longer than all else: " << mib(traffic.brought_bytes)
      << " of the last " << mib(traffic.used_bytes)
      << " that they used had to be brought in, the most, " << mib(traffic.most_bytes) << ", for "
      << traffic.most_op
      << ". What helps: less memory for each step (smaller batches, lower precision, activations "
         "that are computed anew), or more of it (a higher limit, where one is set).";
  return out.str();
}

std::string mib(std::size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return out.str();
}

}  // namespace lms
