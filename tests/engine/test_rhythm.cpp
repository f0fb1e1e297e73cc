// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "rhythm.h"

namespace {

using lms::Rhythm;

constexpr std::uint64_t kUnknown = Rhythm::kUnknown;

// A storage that is used after each of the gaps.
struct Used {
  explicit Used(const std::vector<std::uint64_t>& gaps = {}) {
    rhythm.use(now);
    after(gaps);
  }
  void after(const std::vector<std::uint64_t>& gaps) {
    for (const std::uint64_t gap : gaps) rhythm.use(now += gap);
  }
  std::uint64_t until(std::uint64_t ops_later = 0) const {
    return rhythm.until_next(now + ops_later);
  }
  std::uint64_t now = 1000;
  Rhythm rhythm;
};

}  // namespace

TEST(rhythm_is_unknown_until_it_repeats) {
  CHECK_EQ(Rhythm().until_next(7), kUnknown);
  Used used;
  CHECK_EQ(used.until(), kUnknown);
  used.after({40});
  CHECK_EQ(used.until(), kUnknown);
  used.after({40});
  CHECK_EQ(used.until(), 40u);
  CHECK_EQ(used.until(30), 10u);
  CHECK_EQ(used.until(40), 0u);
}

TEST(rhythm_repeats_after_several_gaps) {
  Used used({1, 1, 200, 700, 1, 1, 200});
  CHECK_EQ(used.until(), kUnknown);  // all but one of four have come again
  used.after({700});
  CHECK_EQ(used.until(), 1u);
  used.after({1});
  CHECK_EQ(used.until(), 1u);
  used.after({1});
  CHECK_EQ(used.until(), 200u);
  used.after({200});
  CHECK_EQ(used.until(), 700u);
}

TEST(rhythm_bears_a_few_ops_more_or_less) {
  Used used({400, 410});
  CHECK_EQ(used.until(), 410u);
  used.after({399});
  CHECK_EQ(used.until(), 399u);
  CHECK_EQ(used.until(420), 0u);  // any moment now
}

TEST(rhythm_says_nothing_of_what_is_late) {
  Used used({40, 40, 40});
  CHECK_EQ(used.until(45), 0u);
  CHECK_EQ(used.until(47), kUnknown);
  used.after({100});  // as in a validation, between two iterations
  CHECK_EQ(used.until(), kUnknown);
  used.after({40});
  CHECK_EQ(used.until(), kUnknown);
  used.after({40});
  CHECK_EQ(used.until(), 40u);
}

TEST(rhythm_tells_whether_it_was_right) {
  using Said = Rhythm::Said;
  Rhythm rhythm;
  const auto uses = [&](const std::vector<std::uint64_t>& times, Said said) {
    for (const std::uint64_t time : times) CHECK(rhythm.use(time) == said);
  };
  uses({10, 50, 90}, Said::kNothing);
  uses({130, 131 + 40}, Said::kRight);
  uses({300}, Said::kWrong);
  uses({340, 380}, Said::kNothing);  // it has to repeat anew
  uses({420}, Said::kRight);
  uses({420}, Said::kNothing);  // the same op
}

TEST(rhythm_counts_one_use_of_an_op) {
  Used used;
  for (int i = 0; i < 3; ++i) {
    used.after({40});
    used.rhythm.use(used.now);
  }
  CHECK_EQ(used.until(), 40u);
}

TEST(rhythm_gives_up_on_long_periods) {
  std::vector<std::uint64_t> gaps;
  for (std::uint64_t gap = 1; gap <= Rhythm::kLongestPeriod + 1; ++gap) gaps.push_back(10 << gap);
  Used used;
  for (int i = 0; i < 10; ++i) used.after(gaps);
  CHECK_EQ(used.until(), kUnknown);
}

// Whatever came before: after two periods it is known, and right, and it never names the past.
TEST(rhythm_is_found_after_anything) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    fake::Random random(seed);
    Used used;
    for (std::size_t i = random.below(200); i > 0; --i) {
      used.after({1 + random.below(1000)});
      const std::uint64_t until = used.until();
      CHECK(until == kUnknown || until > 0);
    }
    std::vector<std::uint64_t> gaps(1 + random.below(Rhythm::kLongestPeriod));
    for (std::uint64_t& gap : gaps) gap = 1 + random.below(100000);
    // By chance what came before can seem to go on for a while, and a part of it be a period.
    for (int i = 0; i < 4; ++i) used.after(gaps);
    for (int i = 0; i < 3; ++i) {
      for (const std::uint64_t gap : gaps) {
        const std::uint64_t until = used.until();
        const std::uint64_t least = std::min(until, gap), most = std::max(until, gap);
        CHECK(most - least <= 1 + most / 8);
        used.after({gap});
      }
    }
  }
}
