// SPDX-License-Identifier: Apache-2.0
// Invariant between two calls: all that ends until `now_` has ended, and no unit is free that a
// command is ready for.
#include "clock.h"

#include <algorithm>
#include <cstdlib>

namespace simcuda::clock {
namespace {

constexpr int kFull = 1000;
constexpr int kIn = static_cast<int>(Unit::kIn), kOut = static_cast<int>(Unit::kOut);

}  // namespace

Clock::Clock(int devices, int duplex) : duplex_(duplex), devices_(devices) {}

Line& Clock::open(int device, Order order) {
  std::erase_if(lines_, [&](const auto& line) { return line->closed_ && idle(*line); });
  lines_.push_back(std::make_unique<Line>(device, order));
  Line& line = *lines_.back();
  if (order == Order::kLegacy) devices_[device].legacy = &line;
  return line;
}

void Clock::close(Line& line) { line.closed_ = true; }

void Clock::spend(Nanoseconds time) {
  now_ += time;
  advance(now_);
}

// ---- issue

void Clock::order_with_legacy(Line& line) {
  Line* legacy = devices_[line.device_].legacy;
  if (line.order_ == Order::kBlocking && legacy && !idle(*legacy)) {
    wait(line, end_of(*legacy));
  }
  if (line.order_ != Order::kLegacy) return;
  for (auto& other : lines_) {
    if (other->device_ != line.device_ || other->order_ != Order::kBlocking || idle(*other)) {
      continue;
    }
    wait(line, end_of(*other));
  }
}

uint64_t Clock::run(Line& line, Unit unit, Nanoseconds work) {
  order_with_legacy(line);
  uint64_t number = issued_++;
  add(line, {nullptr, unit, std::max<Nanoseconds>(work, 1), nullptr, number});
  return number;
}

void Clock::wait(Line& line, const MarkPtr& mark) {
  if (mark->done) return;
  add(line, {mark, Unit::kCompute, 0, nullptr, issued_++});
}

MarkPtr Clock::record(Line& line) {
  order_with_legacy(line);
  return end_of(line);
}

MarkPtr Clock::end_of(Line& line) {
  auto mark = std::make_shared<Mark>();
  add(line, {nullptr, Unit::kCompute, 0, mark, issued_++});
  return mark;
}

void Clock::add(Line& line, Line::Item item) {
  line.items_.push_back(std::move(item));
  if (line.items_.size() > 1) return;
  proceed(line, now_);
  start(devices_[line.device_], now_);
}

// ---- what the host waits for

void Clock::finish(const MarkPtr& mark) {
  while (!mark->done) {
    Nanoseconds end = next_end();
    if (end < 0) abort();  // a mark waits only for what was issued before it
    step(end);
  }
  if (mark->at <= now_) return;
  waited_ += mark->at - now_;
  now_ = mark->at;
}

void Clock::finish(Line& line) { finish(record(line)); }

void Clock::finish(int device) {
  for (size_t i = 0; i < lines_.size(); i++) {
    if (lines_[i]->device_ != device || idle(*lines_[i])) continue;
    finish(end_of(*lines_[i]));
  }
}

Nanoseconds Clock::busy(int device, Unit unit) const {
  const Device& d = devices_[device];
  const Active& active = d.active[static_cast<int>(unit)];
  return d.busy[static_cast<int>(unit)] + (active.line ? now_ - active.since : 0);
}

// ---- units

int Clock::speed(const Device& device, int unit) const {
  bool both = device.active[kIn].line && device.active[kOut].line;
  return both && unit != static_cast<int>(Unit::kCompute) ? duplex_ : kFull;
}

Nanoseconds Clock::end_of(const Device& device, int unit) const {
  const Active& active = device.active[unit];
  int per = speed(device, unit);
  return active.since + (active.left + per - 1) / per;
}

Nanoseconds Clock::next_end() const {
  Nanoseconds next = -1;
  for (const Device& device : devices_) {
    for (int e = 0; e < kUnits; e++) {
      if (!device.active[e].line) continue;
      Nanoseconds end = end_of(device, e);
      if (next < 0 || end < next) next = end;
    }
  }
  return next;
}

// Goes on with a stream at `at`, and with those that wait for what that marks.
void Clock::proceed(Line& first, Nanoseconds at) {
  std::vector<Line*> ready = {&first};
  while (!ready.empty()) {
    Line& line = *ready.back();
    ready.pop_back();
    while (!line.items_.empty() && !line.working_) {
      auto& item = line.items_.front();
      if (item.wait && !item.wait->done) {
        item.wait->waiting.push_back(&line);
        break;
      }
      if (item.work > 0) {
        line.working_ = true;
        devices_[line.device_].queue[static_cast<int>(item.unit)].emplace(at, item.number, &line);
        break;
      }
      MarkPtr end = std::move(item.end);
      line.items_.pop_front();
      if (!end) continue;
      end->done = true;
      end->at = at;
      ready.insert(ready.end(), end->waiting.begin(), end->waiting.end());
      end->waiting.clear();
    }
  }
}

// Books what has been done until `at`, before a speed changes.
void Clock::follow(Device& device, Nanoseconds at) {
  for (int e = 0; e < kUnits; e++) {
    Active& active = device.active[e];
    if (!active.line) continue;
    active.left -= (at - active.since) * speed(device, e);
    device.busy[e] += at - active.since;
    active.since = at;
  }
}

void Clock::start(Device& device, Nanoseconds at) {
  for (int e = 0; e < kUnits; e++) {
    if (device.active[e].line || device.queue[e].empty()) continue;
    follow(device, at);
    Line* line = std::get<2>(*device.queue[e].begin());
    device.queue[e].erase(device.queue[e].begin());
    device.active[e] = {line, line->items_.front().work * kFull, at, at};
  }
}

// What ends at `at`, the next end there is, ends; what is ready then begins.
void Clock::step(Nanoseconds at) {
  std::vector<Line*> ended;
  for (Device& device : devices_) {
    bool ends[kUnits] = {};
    for (int e = 0; e < kUnits; e++) ends[e] = device.active[e].line && end_of(device, e) == at;
    follow(device, at);
    for (int e = 0; e < kUnits; e++) {
      if (!ends[e]) continue;
      Line* line = device.active[e].line;
      ended.push_back(line);
      if (watch_) watch_(line->items_.front().number, device.active[e].begin, at);
      device.active[e] = {};
    }
  }
  for (Line* line : ended) {
    line->working_ = false;
    line->items_.pop_front();
    proceed(*line, at);
  }
  for (Device& device : devices_) start(device, at);
}

void Clock::advance(Nanoseconds until) {
  for (Nanoseconds end = next_end(); end >= 0 && end <= until; end = next_end()) step(end);
}

}  // namespace simcuda::clock
