// SPDX-License-Identifier: Apache-2.0
#include "demand.h"

#include <algorithm>

namespace lms {
namespace {

std::size_t tag(OpId op, std::int64_t operand_bytes) {
  return op + static_cast<std::size_t>(operand_bytes) * 0x9E3779B97F4A7C15u;
}

std::int64_t rounded_up(std::int64_t bytes) {
  std::int64_t power = 1;
  while (power < bytes) power *= 2;
  return power;
}

}  // namespace

constexpr std::int64_t Demand::kUnknown;
constexpr std::size_t Demand::kMostEntries;

std::int64_t Demand::of(OpId op, std::int64_t operand_bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(tag(op, operand_bytes));
  return found == taken_.end() ? kUnknown : found->second;
}

void Demand::note(OpId op, std::int64_t operand_bytes, std::int64_t taken_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (taken_.size() == kMostEntries) taken_.clear();
  std::int64_t& most = taken_[tag(op, operand_bytes)];
  most = std::max(most, taken_bytes);
}

bool Demand::tried(OpId op, std::int64_t operand_bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tried_.count(tag(op, rounded_up(operand_bytes))) > 0;
}

void Demand::mark_tried(OpId op, std::int64_t operand_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (tried_.size() == kMostEntries) tried_.clear();
  tried_.insert(tag(op, rounded_up(operand_bytes)));
}

}  // namespace lms
