// SPDX-License-Identifier: Apache-2.0
#include <plugin/FreeMemory.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"

namespace {

using c10::cuda::lms::FreeMemory;
using lms::Ready;

class Numbered final : public lms::Mark {
 public:
  explicit Numbered(std::uint64_t number) : number_(number) {}
  bool done() override { return false; }
  void wait() override {}
  lms::Stream stream() const override { return nullptr; }
  std::uint64_t number() const override { return number_; }

 private:
  const std::uint64_t number_;
};

// What owes the copy of this number, and went idle at it.
Ready owing(std::uint64_t number) {
  Ready ready;
  ready.out.add(std::make_shared<Numbered>(number));
  ready.idle_since = number;
  return ready;
}

// Addresses that are told by their distance.
char memory[4096];
FreeMemory::Range range(std::size_t begin, std::size_t end) {
  return {memory + begin, memory + end};
}

std::function<std::vector<FreeMemory::Range>()> listed(std::vector<FreeMemory::Range> segments) {
  return [segments] { return segments; };
}

std::uint64_t number_of(const Ready& ready) {
  return ready.out.empty() ? 0 : (*ready.out.begin())->number();
}

}  // namespace

TEST(free_memory_owes_what_is_owed_for_its_parts) {
  FreeMemory free;
  free.set_segments(listed({range(0, 100)}));
  CHECK(free.put(range(0, 40), owing(1)));
  CHECK(free.put(range(40, 100), owing(2)));
  CHECK_EQ(number_of(free.look(range(0, 40))), 1u);
  CHECK_EQ(number_of(free.look(range(30, 50))), 2u);
  const Ready taken = free.take(range(30, 50));
  CHECK(!taken.all);
  CHECK_EQ(number_of(taken), 2u);
  CHECK(free.look(range(30, 31)).all);  // who has it knows
  CHECK_EQ(number_of(free.take(range(0, 30))), 1u);
  CHECK_EQ(number_of(free.take(range(50, 100))), 2u);
}

TEST(free_memory_is_a_hole_as_far_as_it_is_known) {
  FreeMemory free;
  free.set_segments(listed({range(0, 100), range(100, 200)}));
  CHECK(free.put(range(0, 40), owing(1)));
  CHECK(free.put(range(40, 60), owing(2)));
  CHECK(free.put(range(70, 100), owing(3)));
  CHECK(free.put(range(100, 150), owing(4)));
  const FreeMemory::Hole whole = free.hole(memory), part = free.hole(memory + 10);
  CHECK_EQ(whole.bytes, 60u);
  CHECK_EQ(whole.owed.idle_since(0, 40), 1u);
  CHECK_EQ(whole.owed.idle_since(30, 50), 2u);
  CHECK_EQ(part.bytes, 50u);
  CHECK_EQ(part.owed.idle_since(0, 30), 1u);
  CHECK_EQ(part.owed.idle_since(0, 31), 2u);
  CHECK_EQ(free.hole(memory + 70).bytes, 30u);  // another segment begins behind it
  CHECK_EQ(free.hole(memory + 60).bytes, 0u);
  CHECK_EQ(free.hole(memory + 300).bytes, 0u);
}

TEST(free_memory_of_other_segments_is_not_kept) {
  FreeMemory free;
  CHECK(!free.put(range(0, 10), owing(1)));
  free.set_segments(listed({range(200, 300), range(0, 100)}));
  CHECK(free.put(range(0, 10), owing(1)));
  CHECK(!free.put(range(90, 110), owing(2)));
  CHECK(!free.put(range(150, 160), owing(2)));
  CHECK(free.put(range(210, 220), owing(3)));
  free.set_segments(listed({range(200, 300)}));
  CHECK(free.take(range(0, 10)).all);
  CHECK_EQ(number_of(free.take(range(210, 220))), 3u);
}

TEST(free_memory_forgets_what_an_older_list_has_said) {
  FreeMemory free;
  free.set_segments(listed({range(0, 100)}));
  free.take(range(0, 50));
  free.fill({range(0, 100)}, [] { return owing(1); });  // of a list from before it was taken
  Ready unknown;
  unknown.all = true;
  CHECK(!free.put(range(0, 50), unknown));
  CHECK(free.look(range(0, 50)).all);
  CHECK_EQ(number_of(free.look(range(50, 100))), 1u);
}

// What is put meanwhile, and was in use since the list was made, owes more than the list can say.
TEST(free_memory_asks_what_a_list_owes_under_its_lock) {
  FreeMemory free;
  free.set_segments(listed({range(0, 100)}));
  Ready unknown;
  unknown.all = true;
  std::atomic<bool> over{false};
  std::thread other;
  free.fill({range(0, 100)}, [&] {
    other = std::thread([&] {
      free.put(range(0, 50), unknown);
      over = true;
    });
    for (int i = 0; i < 50 && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return owing(1);
  });
  other.join();
  CHECK(free.look(range(0, 50)).all);
  CHECK(!free.look(range(50, 100)).all);
}

// One that was made before it would have none of the newest segments, and forget what is owed
// there.
TEST(free_memory_takes_one_list_at_a_time) {
  FreeMemory free;
  std::atomic<bool> over{false};
  std::thread other;
  free.set_segments([&] {
    other = std::thread([&] {
      free.set_segments(listed({range(0, 100), range(200, 300)}));
      free.put(range(200, 300), owing(1));
      over = true;
    });
    for (int i = 0; i < 50 && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::vector<FreeMemory::Range>{range(0, 100)};
  });
  other.join();
  CHECK_EQ(number_of(free.take(range(200, 300))), 1u);
}

// What waits already for all that it owed, while a list from before that was in use is read.
TEST(free_memory_is_forgotten_when_it_has_been_waited_for) {
  FreeMemory free;
  free.set_segments(listed({range(0, 100)}));
  free.fill({range(0, 100)}, [] { return owing(1); });
  free.forget(range(20, 50));
  CHECK(free.look(range(20, 50)).all);
  CHECK_EQ(number_of(free.look(range(0, 20))), 1u);
  CHECK_EQ(number_of(free.look(range(50, 100))), 1u);
}

// Against one entry for each byte.
TEST(free_memory_random) {
  const long seeds = harness::option("seeds", 200), steps = harness::option("steps", 300);
  for (long seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    FreeMemory free;
    const std::vector<FreeMemory::Range> segments = {range(0, 30), range(30, 64), range(80, 128)};
    free.set_segments(listed(segments));
    std::vector<std::uint64_t> owed(128, 0);  // 0: not known
    for (long step = 1; step <= steps; ++step) {
      const std::size_t begin = random() % 128, end = begin + 1 + random() % 20;
      bool inside = false;
      for (const auto& segment : segments) {
        inside = inside || (segment.begin <= memory + begin && memory + end <= segment.end);
      }
      const auto number = static_cast<std::uint64_t>(step);
      const unsigned what = random() % 4;
      if (what == 0) {
        CHECK_EQ(free.put(range(begin, end), owing(number)), inside);
        for (std::size_t i = begin; i < end && i < owed.size(); ++i) owed[i] = inside ? number : 0;
      } else if (what == 1) {
        free.fill({range(begin, end)}, [number] { return owing(number); });
        for (std::size_t i = begin; inside && i < end; ++i) owed[i] = owed[i] ? owed[i] : number;
      } else {
        std::uint64_t most = 0;
        bool known = true;
        for (std::size_t i = begin; i < end; ++i) {
          const std::uint64_t here = i < owed.size() ? owed[i] : 0;
          known = known && here != 0;
          most = std::max(most, here);
        }
        const Ready ready = what == 2 ? free.take(range(begin, end)) : free.look(range(begin, end));
        CHECK_EQ(ready.all, !known);
        CHECK(ready.all || number_of(ready) == most);
        CHECK(!known || ready.idle_since == most);
        for (std::size_t i = begin; what == 2 && i < end && i < owed.size(); ++i) owed[i] = 0;
      }
    }
  }
}
