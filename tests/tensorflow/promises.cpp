// SPDX-License-Identifier: Apache-2.0
// Which ops may begin, one thread each. An op that must wait is one that has not begun after a
// while.
#include "tensorflow/core/common_runtime/lms/promises.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>

using tensorflow::lms::Promises;

namespace {

constexpr int64_t kRoom = 100;
constexpr auto kLong = std::chrono::milliseconds(200);

Promises promises(/*stuck_ms=*/2000);

// An op that asks in a thread of its own.
class Op {
 public:
  Op(int64_t bytes, bool computes)
      : promise_{bytes, computes}, thread_([this] {
          promises.Give(promise_, kRoom);
          begun_ = true;
        }) {
    for (int i = 0; i < 20 && !begun_; ++i) std::this_thread::sleep_for(kLong / 20);
  }

  bool begun() const { return begun_; }
  bool Begins() {
    thread_.join();
    return begun_;
  }
  void LooksForRoom() { promises.SetComputes(&promise_, false); }
  void Ends() { promises.TakeBack(promise_); }

 private:
  Promises::Promise promise_;
  std::atomic<bool> begun_{false};
  std::thread thread_;
};

bool WaitsForRoom() {
  Op a(60, true), b(60, true);
  if (!a.Begins() || b.begun()) return false;
  a.Ends();
  return b.Begins();
}

bool TwoThatFit() {
  Op a(60, true), b(40, true);
  return a.begun() && b.begun() && a.Begins() && b.Begins();
}

bool LargerThanThePool() {
  Op a(1000, true), b(1, true);
  if (!a.Begins() || b.begun()) return false;
  a.Ends();
  return b.Begins();
}

// A small one does not overtake: the large one would never begin.
bool InTheOrderOfAsking() {
  Op a(60, true), b(60, true), c(10, true);
  if (!a.Begins() || b.begun() || c.begun()) return false;
  a.Ends();
  return b.Begins() && c.Begins();
}

bool NotForOneThatMayWait() {
  Op a(60, false), b(60, true);
  return a.begun() && b.begun() && a.Begins() && b.Begins();
}

// Until the last that computes is over, and no longer.
bool ForOneThatComputes() {
  Op a(60, false), b(30, true), c(60, true);
  if (!a.Begins() || !b.Begins() || c.begun()) return false;
  b.Ends();
  return c.Begins();
}

// One that was promised room, and has not found it: it may be waiting for what asks next.
bool NotForOneThatLooksForRoom() {
  Op a(60, true);
  if (!a.Begins()) return false;
  Op b(60, true);
  if (b.begun()) return false;
  a.LooksForRoom();
  if (!b.Begins()) return false;
  a.Ends();
  Op c(60, true);
  return !c.begun() && (b.Ends(), c.Begins());
}

// The first seems to compute, and waits for the third.
bool WhenNoneEnds() {
  Op a(60, true), b(60, true), c(60, true);
  if (!a.Begins() || b.begun() || c.begun()) return false;
  return b.Begins() && c.Begins();
}

}  // namespace

// Each case in a process of its own, which ends although threads of a failed one still wait.
int main(int count, char** names) {
  const std::map<std::string, std::function<bool()>> cases = {
      {"waits_for_room", WaitsForRoom},
      {"two_that_fit", TwoThatFit},
      {"larger_than_the_pool", LargerThanThePool},
      {"in_the_order_of_asking", InTheOrderOfAsking},
      {"not_for_one_that_may_wait", NotForOneThatMayWait},
      {"for_one_that_computes", ForOneThatComputes},
      {"not_for_one_that_looks_for_room", NotForOneThatLooksForRoom},
      {"when_none_ends", WhenNoneEnds},
  };
  for (int i = 1; i < count; ++i) {
    const auto& run = cases.at(names[i]);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(run() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%s %s\n", names[i], status == 0 ? "right" : "wrong");
  }
}
