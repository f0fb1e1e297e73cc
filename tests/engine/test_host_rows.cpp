// SPDX-License-Identifier: Apache-2.0
// What the host pool reserves for programs, over what is in it at its fullest: at most an eighth
// more, but for the last row. `bench.py` prints what the cases do.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "host_memory.h"
#include "host_pool.h"

namespace {

using lms::HostPool;
using lms::HostRange;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Address space alone: nobody looks at the bytes.
class NoMemory final : public lms::HostMemory {
 public:
  Space reserve() override {
    const std::size_t bytes = std::size_t{1} << 36;  // sanitizers and emulators refuse more
    void* begin =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return {begin == MAP_FAILED ? nullptr : static_cast<char*>(begin), bytes};
  }
  void unreserve(Space space) override { ::munmap(space.begin, space.bytes); }
  bool commit(char*, std::size_t, int) override {
    ++segments;
    return true;
  }
  void decommit(char*, std::size_t) override { ++segments; }
  int segments = 0;  // that came or went
};

// A pool whose helper is always in time, or never there.
class Program {
 public:
  explicit Program(bool helped) : helped_(helped) {}

  HostRange take(std::size_t bytes) {
    const HostRange range = pool_.allocate(bytes);
    tend_();
    return range;
  }
  void free(const HostRange& range) {
    pool_.free(range, nullptr);
    tend_();
  }
  // Returns what is reserved over what was in it.
  double tell(const char* row) {
    pool_.check();
    const lms::HostStats stats = pool_.stats();
    const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / kMiB; };
    std::printf("%s | %s | %.0f | %.0f | %.3f | %d\n", row, helped_ ? "in time" : "none",
                mib(stats.used_peak), mib(stats.reserved_peak),
                mib(stats.reserved_peak) / mib(stats.used_peak), memory_.segments);
    return mib(stats.reserved_peak) / mib(stats.used_peak);
  }

 private:
  void tend_() {
    while (helped_ && pool_.tend()) {
    }
  }

  const bool helped_;
  NoMemory memory_;
  HostPool pool_{memory_};
};

}  // namespace

TEST(host_rows_of_one_size) {
  for (const bool helped : {true, false}) {
    Program program(helped);
    for (int i = 0; i < 200; ++i) program.take(33 * kMiB);
    CHECK(program.tell("200 x 33 MiB") <= 1.125);
  }
}

TEST(host_rows_that_grow) {
  for (const bool helped : {true, false}) {
    Program program(helped);
    std::deque<HostRange> live;
    for (std::size_t size = 64; size <= 130; ++size) {
      for (int i = 0; i < 20; ++i) {
        if (live.size() == 20) {
          program.free(live.front());
          live.pop_front();
        }
        live.push_back(program.take(size * kMiB));
      }
    }
    CHECK(program.tell("20 live, growing 1 MiB a step") <= 1.125);
  }
}

// Activations of a transformer: what a layer keeps is linear in the length, but for the attention's
// weights, which are quadratic.
TEST(host_rows_of_varying_length) {
  for (const bool helped : {true, false}) {
    Program program(helped);
    fake::Random random(1);
    for (int step = 0; step < 200; ++step) {
      const std::size_t length = 64 * (1 + random.below(32));  // up to 2,048
      std::vector<HostRange> kept;
      for (int layer = 0; layer < 48; ++layer) {
        for (const std::size_t width : {2048u, 6144u, 2048u, 8192u, 8192u, 2048u}) {
          kept.push_back(program.take(length * width * 4));
        }
        kept.push_back(program.take(length * length * 16 * 4));
      }
      for (; !kept.empty(); kept.pop_back()) program.free(kept.back());
    }
    CHECK(program.tell("varying sequence length, 48 layers") <= 1.125);
  }
}

// Freed in no order: the one row that holes cost more, because a segment with a byte in it stays.
TEST(host_rows_of_varying_length_in_no_order) {
  for (const bool helped : {true, false}) {
    Program program(helped);
    fake::Random random(2);
    std::vector<HostRange> kept;
    std::size_t bytes = 0;
    for (int step = 0; step < 200; ++step) {
      const std::size_t length = 64 * (1 + random.below(32));
      for (int layer = 0; layer < 48; ++layer) {
        for (const std::size_t width : {2048u, 6144u, 2048u, 8192u, 8192u, 2048u}) {
          while (bytes > 8192 * kMiB) {
            std::swap(kept[random.below(kept.size())], kept.back());
            bytes -= kept.back().bytes;
            program.free(kept.back());
            kept.pop_back();
          }
          kept.push_back(program.take(length * width * 4));
          bytes += kept.back().bytes;
        }
      }
    }
    program.tell("varying sequence length, freed at random");
  }
}
