// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fake.h"
#include "folder.h"
#include "harness.h"
#include "high_water.h"
#include "host_memory.h"
#include "host_span.h"

namespace {

using lms::HostSpan;

// The least that a window misses, of all its places, counted byte by byte of a model.
class Model {
 public:
  enum class State : unsigned char { kMissing, kFree, kBusy };
  Model(std::size_t places, std::size_t per_place)
      : per_place_(per_place), bytes_(places * per_place) {}
  State& operator[](std::size_t at) { return bytes_[at]; }

  std::size_t least_missing(std::size_t bytes) const {
    std::size_t least = bytes_.size() + 1;
    for (std::size_t begin = 0; begin + bytes <= bytes_.size(); ++begin) {
      std::size_t missing = 0;
      bool busy = false;
      for (std::size_t at = begin; at < begin + bytes; ++at) {
        busy = busy || bytes_[at] == State::kBusy;
        // A segment comes whole, but for the last.
        if (bytes_[at] == State::kMissing) {
          missing += at % per_place_ == 0 || at > begin ? 1 : at % per_place_ + 1;
        }
      }
      if (!busy) least = std::min(least, missing);
    }
    return least;
  }

 private:
  const std::size_t per_place_;
  std::vector<State> bytes_;
};

}  // namespace

TEST(parts_end_where_segments_do) {
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  const auto note = [&parts](std::size_t offset, std::size_t bytes) {
    parts.emplace_back(offset, bytes);
  };
  lms::for_parts(reinterpret_cast<void*>(250), 260, 100, note);
  const std::vector<std::pair<std::size_t, std::size_t>> want = {
      {0, 50}, {50, 100}, {150, 100}, {250, 10}};
  CHECK(parts == want);
  parts.clear();
  lms::for_parts(reinterpret_cast<void*>(300), 100, 100, note);
  CHECK_EQ(parts.size(), 1u);
  lms::for_parts(reinterpret_cast<void*>(300), 0, 100, note);
  CHECK_EQ(parts.size(), 1u);
}

// Every choice against a search of all.
TEST(span_random) {
  using State = Model::State;
  const long seeds = harness::option("seeds", 60), steps = harness::option("steps", 400);
  constexpr std::size_t kPlaces = 12, kPer = 8;
  std::vector<char> memory((kPlaces + 2) * kPer);
  for (long seed = 0; seed < seeds; ++seed) {
    fake::Random random(static_cast<std::uint64_t>(seed));
    const auto skip = (kPer - reinterpret_cast<std::size_t>(memory.data()) % kPer) % kPer;
    HostSpan span({memory.data(), skip + kPlaces * kPer + 3}, kPer);
    char* const begin = memory.data() + skip;
    Model model(kPlaces, kPer);
    const auto set = [&](const char* ptr, std::size_t bytes, State state) {
      for (std::size_t i = 0; i < bytes; ++i)
        model[static_cast<std::size_t>(ptr - begin) + i] = state;
    };
    std::map<char*, std::size_t> held;
    for (long step = 0; step < steps; ++step) {
      const std::size_t want = 1 + random.below(3 * kPer);
      const std::size_t kind = random.below(10);
      const HostSpan::Window window = span.window(want);
      const std::size_t least = model.least_missing(want);
      if (window.begin == nullptr) {
        CHECK(least > kPlaces * kPer);
      } else {
        CHECK(window.missing >= least && window.missing < least + kPer);
      }
      if (kind < 4) {
        char* ptr = span.take(want);
        CHECK_EQ(ptr != nullptr, window.begin != nullptr && window.missing == 0);
        if (ptr != nullptr) {
          CHECK_EQ(span.hole_with(ptr, want) >= want, true);
          set(ptr, want, State::kBusy);
          held[ptr] = want;
        }
      } else if (kind < 7 && !held.empty()) {
        const auto one =
            std::next(held.begin(), static_cast<std::ptrdiff_t>(random.below(held.size())));
        const std::size_t hole = span.hole_with(one->first, one->second);
        set(one->first, one->second, State::kFree);
        span.put(one->first, one->second);
        CHECK(hole >= one->second);
        char* whole = span.take(hole);  // it is as large as was told
        CHECK(whole != nullptr);
        span.put(whole, hole);
        held.erase(one);
      } else if (kind < 9 && window.begin != nullptr && window.missing > 0) {
        const auto first = span.first_missing(window);
        CHECK(first.second > 0);
        span.begin_move(first.first);
        span.check();
        CHECK(span.window(want).begin == nullptr ||
              span.first_missing(span.window(want)).first != first.first);
        const bool refused = random.one_in(6);
        const std::size_t bytes = refused ? 0 : random.one_in(3) ? first.second : kPer;
        span.end_move(first.first, bytes, 7);
        if (!refused) {
          set(first.first, bytes, State::kFree);
          set(first.first + bytes, kPer - bytes, State::kBusy);  // short: nothing can be there
          CHECK_EQ(span.node_of(first.first), 7);
        }
      } else if (char* segment = span.last_free(random.one_in(2) ? window : HostSpan::Window())) {
        const std::size_t bytes = span.bytes_of(segment);
        for (std::size_t i = 0; i < bytes; ++i) {
          CHECK(model[static_cast<std::size_t>(segment - begin) + i] == State::kFree);
        }
        span.begin_move(segment);
        span.check();
        span.end_move(segment, 0, 0);
        set(segment, kPer, State::kMissing);
      }
      span.check();
    }
  }
}

TEST(high_water_is_of_two_periods) {
  lms::HighWater water;
  const auto give = [&water](int times, std::size_t bytes) {
    for (int i = 0; i < times; ++i) water.gave(bytes, bytes);
  };
  give(16, 100);
  CHECK_EQ(water.bytes(), 100u);
  give(159, 10);  // the period began with 100 in use
  CHECK_EQ(water.bytes(), 100u);
  give(1, 10);
  CHECK_EQ(water.bytes(), 100u);
  give(16, 10);
  CHECK_EQ(water.bytes(), 10u);
  give(1, 500);
  CHECK_EQ(water.bytes(), 500u);
}

// ---- the operating system's memory

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool readable(const char* memory) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const bool can = ::write(ends[1], memory, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return can;
}

class Pinning final : public lms::MappedMemory {
 public:
  bool refuse = false;
  int pinned = 0;

 private:
  bool pin(char*, std::size_t) override {
    pinned += refuse ? 0 : 1;
    return !refuse;
  }
  void unpin(char*, std::size_t) override { --pinned; }
};

}  // namespace

TEST(mapped_memory_comes_and_goes) {
  Pinning memory;
  const lms::HostMemory::Space space = memory.reserve();
  CHECK(space.begin != nullptr && space.bytes >= 1024 * kMiB);
  CHECK(!readable(space.begin));
  for (const int node : {0, lms::HostMemory::kAnyNode, 1 << 20}) {
    CHECK(memory.commit(space.begin, kMiB, node));
    CHECK(memory.commit(space.begin + kMiB, kMiB, node));
    std::memset(space.begin, 0x55, 2 * kMiB);
    CHECK(memory.node_of(space.begin) >= 0);
    CHECK_EQ(memory.pinned, 2);
    memory.decommit(space.begin, kMiB);
    CHECK(!readable(space.begin));
    CHECK(readable(space.begin + kMiB));
    memory.decommit(space.begin + kMiB, kMiB);
    CHECK_EQ(memory.pinned, 0);
  }
  memory.refuse = true;
  CHECK(!memory.commit(space.begin, kMiB, 0));
  CHECK(!readable(space.begin));  // as before
  memory.refuse = false;
  CHECK(memory.commit(space.begin, kMiB, 0));
  CHECK_EQ(space.begin[0], 0);  // nothing of what was there
  memory.decommit(space.begin, kMiB);
  memory.unreserve(space);
}

TEST(address_space_is_not_bound_by_the_machines_memory) {
  const std::size_t bytes = kMiB << 20;  // the thread sanitizer lets nobody have four times as much
  void* can_be_had =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (can_be_had == MAP_FAILED) return;  // an emulator lets nobody have as much
  ::munmap(can_be_had, bytes);
  Pinning memory;
  const lms::HostMemory::Space space = memory.reserve();
  CHECK(space.bytes >= bytes);
  memory.unreserve(space);
}

TEST(nodes_are_told_by_the_machine) {
  const Folder root;
  CHECK_EQ(lms::node_of_pci("0000:3B:00.0", root.path()), lms::HostMemory::kAnyNode);
  const std::string file = "/sys/bus/pci/devices/0000:3b:00.0/numa_node";
  root.file(file, "8\n");
  CHECK_EQ(lms::node_of_pci("0000:3B:00.0", root.path()), 8);
  root.file(file, "-1\n");
  CHECK_EQ(lms::node_of_pci("0000:3B:00.0", root.path()), lms::HostMemory::kAnyNode);
}
