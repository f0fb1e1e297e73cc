// SPDX-License-Identifier: Apache-2.0
// Virtual time: when each command of each stream would begin and end on a device, and what time it
// is for the host. It knows no CUDA, moves no data and never sleeps.
//
// Time is integer nanoseconds from the start of the process. All threads of the host are one: what
// any of them does moves the host's time on. Between two calls of the host the units are followed
// event by event, so that no command's time is guessed when it is issued: a later command that is
// ready earlier overtakes, as on a real device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

namespace simcuda::clock {

using Nanoseconds = int64_t;

// How long `amount` takes at `rate` a second.
inline Nanoseconds time_of(double amount, double rate) {
  return static_cast<Nanoseconds>(1e9 * amount / rate);
}

// A kernel that does both at once takes the longer of the two.
inline Nanoseconds time_of_both(double bytes, double bandwidth, double operations, double rate) {
  const Nanoseconds traffic = time_of(bytes, bandwidth);
  return operations > 0 ? std::max(traffic, time_of(operations, rate)) : traffic;
}

// What a command occupies while it runs. A device has one of each: kernels run one at a time, as do
// copies in either direction.
enum class Unit { kCompute, kIn, kOut };
constexpr int kUnits = 3;

// How a stream is ordered with the legacy default stream of its device.
enum class Order { kLegacy, kBlocking, kNone };

class Line;

// A point of a stream. It is done at `at`, once everything before it on its stream is.
struct Mark {
  bool done = false;
  Nanoseconds at = 0;
  std::vector<Line*> waiting = {};  // streams that can go on then
};
using MarkPtr = std::shared_ptr<Mark>;

// The commands of a stream that have not ended.
class Line {
 public:
  Line(int device, Order order) : device_(device), order_(order) {}

 private:
  friend class Clock;
  // First it waits, then it works, then it is marked; each part may be missing.
  struct Item {
    MarkPtr wait;
    Unit unit;
    Nanoseconds work;
    MarkPtr end;
    uint64_t number;  // in the order of issue
  };
  int device_;
  Order order_;
  std::deque<Item> items_;
  bool closed_ = false;
  bool working_ = false;  // the first item has a unit, or queues for one
};

class Clock {
 public:
  // `duplex`: the speed of a copy while another goes the other way, in thousandths.
  Clock(int devices, int duplex);
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  Line& open(int device, Order order);
  void close(Line& line);  // what it still has to do is done

  Nanoseconds now() const { return now_; }
  // The host works.
  void spend(Nanoseconds time);

  // Is told of each command that has ended, by the number that `run` gave it, in the order of their
  // ends.
  using Watch = std::function<void(uint64_t number, Nanoseconds begin, Nanoseconds end)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

  // Commands, issued now.
  uint64_t run(Line& line, Unit unit, Nanoseconds work);
  void wait(Line& line, const MarkPtr& mark);
  MarkPtr record(Line& line);

  // The host waits.
  void finish(const MarkPtr& mark);
  void finish(Line& line);
  void finish(int device);

  // How long a unit has worked, and the host has waited, until now.
  Nanoseconds busy(int device, Unit unit) const;
  Nanoseconds waited() const { return waited_; }

 private:
  // What occupies a unit. `left` is in thousandths of nanoseconds at full speed.
  struct Active {
    Line* line = nullptr;
    int64_t left = 0;
    Nanoseconds since = 0, begin = 0;
  };
  // First come, first served; who comes at the same time in the order of issue.
  using Queue = std::set<std::tuple<Nanoseconds, uint64_t, Line*>>;
  struct Device {
    Active active[kUnits];
    Queue queue[kUnits];
    Nanoseconds busy[kUnits] = {};
    Line* legacy = nullptr;
  };

  static bool idle(const Line& line) { return line.items_.empty(); }
  int speed(const Device& device, int unit) const;
  Nanoseconds end_of(const Device& device, int unit) const;
  Nanoseconds next_end() const;  // of what is running; -1: nothing is
  void order_with_legacy(Line& line);
  MarkPtr end_of(Line& line);
  void add(Line& line, Line::Item item);
  void proceed(Line& line, Nanoseconds at);
  void step(Nanoseconds at);
  void start(Device& device, Nanoseconds at);
  void follow(Device& device, Nanoseconds at);
  void advance(Nanoseconds until);

  int duplex_;
  Nanoseconds now_ = 0, waited_ = 0;
  uint64_t issued_ = 0;
  Watch watch_;
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace simcuda::clock
