// SPDX-License-Identifier: Apache-2.0
#include "races.h"

#include <fnmatch.h>

#include <cstdio>

namespace simcuda::order {
namespace {

constexpr size_t kMost = 1000;  // that are kept

std::string told(const Party& party) {
  return party.name + " (" + (party.write ? "writes" : "reads") + ", " + party.actor +
         ", operation " + std::to_string(party.number) + ")";
}

}  // namespace

bool Race::same(const Race& other) const {
  auto equal = [](const Party& a, const Party& b) {
    return a.name == b.name && a.actor == b.actor && a.write == b.write;
  };
  return equal(first, other.first) && equal(second, other.second) && memory == other.memory;
}

std::string Race::text() const {
  char where[64];
  snprintf(where, sizeof where, "+0x%zx of 0x%zx", offset, static_cast<size_t>(base));
  return told(first) + " and then " + told(second) + " are not ordered: both touch " +
         std::to_string(bytes) + " bytes of " + memory + " at " + where + "; " + missing();
}

std::string Race::missing() const {
  std::string first_done = "operation " + std::to_string(first.number) + " of " + first.actor;
  if (second.host) {
    return "the host must wait for " + first_done +
           " (synchronise an event recorded after it, or the stream)";
  }
  return second.actor + " must wait for an event recorded after " + first_done +
         " (wait_event, wait_stream; record_stream where the memory was freed in between)";
}

Races::Added Races::add(Race race) {
  for (auto& s : suppressions_) {
    if ((s.bytes == 0 || s.bytes == race.bytes) &&
        fnmatch(s.first.c_str(), race.first.name.c_str(), 0) == 0 &&
        fnmatch(s.second.c_str(), race.second.name.c_str(), 0) == 0) {
      s.count++;
      return {nullptr, false};
    }
  }
  for (auto& known : found_) {
    if (!known.same(race)) continue;
    known.count++;
    return {&known, false};
  }
  if (found_.size() == kMost) return {&found_.back(), false};
  found_.push_back(std::move(race));
  return {&found_.back(), true};
}

}  // namespace simcuda::order
