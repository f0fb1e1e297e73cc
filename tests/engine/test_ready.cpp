// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "ready.h"

namespace {

using lms::MarkPtr;
using lms::Owed;
using lms::Ready;
using lms::Spot;
using lms::Taker;

class Numbered final : public lms::Mark {
 public:
  explicit Numbered(std::uint64_t number, bool done = false, lms::Stream stream = fake::stream(0))
      : number_(number), done_(done), stream_(stream) {}
  bool done() override { return done_; }
  void wait() override {}
  lms::Stream stream() const override { return stream_; }
  std::uint64_t number() const override { return number_; }

 private:
  const std::uint64_t number_;
  const bool done_;
  const lms::Stream stream_;
};

Ready idle_since(std::uint64_t number) {
  Ready ready;
  ready.idle_since = number;
  ready.home = std::make_shared<Numbered>(number);
  return ready;
}

// A block by what each unit of it owes.
struct Block {
  std::size_t bytes() const { return units.size(); }
  std::uint64_t latest(std::size_t begin, std::size_t end) const {
    const auto unit = [this](std::size_t at) {
      return units.begin() + static_cast<std::ptrdiff_t>(at);
    };
    return *std::max_element(unit(begin), unit(end));
  }
  Owed owed;
  std::vector<std::uint64_t> units;
};

void check(const Block& block, bool exact) {
  for (std::size_t begin = 0; begin < block.bytes(); ++begin) {
    for (std::size_t end = begin + 1; end <= block.bytes(); ++end) {
      const std::uint64_t found = block.owed.idle_since(begin, end);
      CHECK(found >= block.latest(begin, end));
      if (exact) CHECK_EQ(found, block.latest(begin, end));
    }
  }
  const Ready whole = block.owed.whole();
  CHECK_EQ(whole.idle_since, block.latest(0, block.bytes()));
  CHECK_EQ(whole.home->number(), whole.idle_since);
}

Block random_block(fake::Random* random, std::uint64_t number) {
  const std::size_t bytes = 1 + random->below(5);
  return {idle_since(number), std::vector<std::uint64_t>(bytes, number)};
}

// Merges with a block of one part, on either side, or goes on with one of its ends.
void change(fake::Random* random, Block* block, std::uint64_t number) {
  if (random->one_in(4) && block->bytes() > 1) {
    const std::size_t at = 1 + random->below(block->bytes() - 1);
    const auto middle = block->units.begin() + static_cast<std::ptrdiff_t>(at);
    Block first{block->owed.split(at), {block->units.begin(), middle}};
    Block second{block->owed, {middle, block->units.end()}};
    *block = random->one_in(2) ? first : second;
    return;
  }
  const Block other = random_block(random, number);
  if (random->one_in(2)) {
    block->owed.append(other.owed, block->bytes());
    block->units.insert(block->units.end(), other.units.begin(), other.units.end());
  } else {
    block->owed.prepend(other.owed, other.bytes());
    block->units.insert(block->units.begin(), other.units.begin(), other.units.end());
  }
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Part {
  std::size_t bytes;
  std::uint64_t idle_since;
  bool copies_done;
};

struct Free {
  explicit Free(const std::vector<Part>& its_parts) : parts(its_parts) {
    for (const Part& part : parts) {
      Ready ready = idle_since(part.idle_since);
      ready.out.add(std::make_shared<Numbered>(part.idle_since, part.copies_done));
      if (bytes == 0) {
        owed = ready;
      } else {
        owed.append(ready, bytes);
      }
      bytes += part.bytes;
    }
  }
  // Of what lies there, the last to be ready.
  Spot at(std::size_t begin, std::size_t wanted, Taker taker) const {
    Spot spot{begin, true, 0, taker};
    std::size_t from = 0;
    for (const Part& part : parts) {
      const bool taken = from < begin + wanted && begin < from + part.bytes;
      from += part.bytes;
      if (!taken) continue;
      spot.idle_since = std::max(spot.idle_since, part.idle_since);
      if (taker == Taker::kOp) spot.copies_done = spot.copies_done && part.copies_done;
    }
    return spot;
  }

  std::vector<Part> parts;
  Owed owed;
  std::size_t bytes = 0;
};

Free random_free(fake::Random* random) {
  std::vector<Part> parts;
  for (std::uint64_t i = 0, many = 1 + random->below(6); i < many; ++i) {
    parts.push_back({(1 + random->below(5)) * kMiB, 1 + random->below(9), random->one_in(2)});
  }
  return Free(parts);
}

bool same(const Spot& one, const Spot& other) { return !one.before(other) && !other.before(one); }

}  // namespace

// The stream of its pool has waited for them, and the host where they are done.
TEST(ready_what_is_taken_owes_its_copies_to_other_streams) {
  for (bool done : {false, true}) {
    Ready part = idle_since(1), rest = idle_since(2);
    part.out.add(std::make_shared<Numbered>(3, done, fake::stream(1)));
    rest.in.add(std::make_shared<Numbered>(4, done, fake::stream(2)));
    rest.all = true;
    Owed owed(part);
    owed.append(rest, 8);
    owed.take();
    Ready left;
    left.freed = true;  // as far as is known
    if (!done) {
      left.others = part.out;
      left.others.add(rest.in);
    }
    CHECK(owed.whole() == left);
    owed.take();
    CHECK(owed.whole() == left);  // whoever has it
  }
}

TEST(ready_what_was_freed_stays_so) {
  Ready left = idle_since(1), freed = idle_since(2);
  freed.freed = true;
  Owed owed(left);
  owed.take();
  CHECK(!owed.whole().freed);
  owed = Owed(freed);
  owed.take();
  CHECK(owed.whole().freed);
  left.merge(freed);
  CHECK(left.freed);
}

TEST(ready_parts_owe_what_they_owed) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    fake::Random random(seed);
    Block block = random_block(&random, 1);
    for (std::uint64_t number = 2; number < Owed::kMostParts; ++number) {
      change(&random, &block, number);
      check(block, true);
    }
  }
}

TEST(ready_of_many_parts_owes_enough) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    fake::Random random(seed);
    Block block = random_block(&random, 1);
    for (std::uint64_t number = 2; number < 10 * Owed::kMostParts; ++number) {
      change(&random, &block, 1 + random.below(1000));
      check(block, false);
    }
  }
}

TEST(ready_of_a_part_is_not_that_of_its_neighbours) {
  Owed owed = idle_since(1);
  owed.append(idle_since(9), 4);
  CHECK_EQ(owed.idle_since(0, 4), 1u);
  CHECK_EQ(owed.idle_since(3, 5), 9u);
  CHECK(owed.begins() == std::vector<std::size_t>{4});
  CHECK_EQ(owed.split(4).whole().idle_since, 1u);
  CHECK_EQ(owed.whole().idle_since, 9u);
}

TEST(ready_copies_of_any_part_are_owed) {
  Owed owed = idle_since(1);
  CHECK(!owed.owes_streams());
  Ready copied = idle_since(2);
  copied.out.add(std::make_shared<Numbered>(3));
  owed.append(copied, 4);
  CHECK(owed.owes_streams() && owed.copies_done(0, 4) && !owed.copies_done(0, 5));
  CHECK(!owed.split(4).owes_streams());
  CHECK(!owed.whole().out.empty());
}

// One stream's later mark stands for its earlier ones, and for no other stream's.
TEST(ready_copies_of_each_stream_are_owed) {
  const auto copy = [](std::size_t stream, std::uint64_t number, bool done) {
    Ready ready = idle_since(1);
    ready.out.add(std::make_shared<Numbered>(number, done, fake::stream(stream)));
    return Owed(ready);
  };
  Owed owed = copy(0, 7, true);
  owed.append(copy(1, 3, false), 4);
  owed.append(copy(0, 5, false), 8);
  CHECK(owed.copies_done(0, 4) && !owed.copies_done(4, 8));
  const lms::Marks out = owed.whole().out;
  std::vector<std::uint64_t> numbers;
  for (const MarkPtr& mark : out) numbers.push_back(mark->number());
  CHECK(numbers == (std::vector<std::uint64_t>{7, 3}));
  CHECK(!out.done());
}

TEST(ready_a_page_in_takes_what_went_idle_first_and_an_op_what_has_no_copy) {
  const Free free({{4 * kMiB, 7, false}, {4 * kMiB, 3, false}, {4 * kMiB, 5, true}});
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 4 * kMiB, Taker::kPageIn).begin, 4 * kMiB);
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 4 * kMiB, Taker::kOp).begin, 8 * kMiB);
  // Not where it would overlap with what is ready later.
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 6 * kMiB, Taker::kPageIn).begin, 6 * kMiB);
}

// What went idle earlier is left to page-ins, which can begin there at once.
TEST(ready_an_op_takes_what_went_idle_last_where_it_need_not_wait) {
  const Free free({{4 * kMiB, 5, true}, {4 * kMiB, 7, true}, {4 * kMiB, 9, false}});
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 4 * kMiB, Taker::kOp).begin, 4 * kMiB);
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 4 * kMiB, Taker::kPageIn).begin, 0u);
  const Free others({{4 * kMiB, 9, false}, {4 * kMiB, 6, false}});  // it waits in any case
  CHECK_EQ(lms::first_ready(others.owed, others.bytes, 4 * kMiB, Taker::kOp).begin, 0u);
}

TEST(ready_a_large_block_is_for_page_ins) {
  CHECK_EQ(lms::largest_choice(8 * kMiB, Taker::kOp), 10 * kMiB);
  CHECK_EQ(lms::largest_choice(8 * kMiB, Taker::kPageIn), SIZE_MAX);
}

TEST(ready_no_place_is_ready_before_the_first) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    fake::Random random(seed);
    const Free free = random_free(&random);
    const std::size_t wanted = (1 + random.below(free.bytes / kMiB)) * kMiB;
    for (const Taker taker : {Taker::kOp, Taker::kPageIn}) {
      const Spot found = lms::first_ready(free.owed, free.bytes, wanted, taker);
      const std::size_t end = found.begin + wanted;
      CHECK(end <= free.bytes);
      CHECK(found.begin == 0 || found.begin >= lms::kSmallestLeft);
      // A piece that could hold something, but for what the beginning leaves, as without a choice.
      CHECK(found.begin == 0 || end == free.bytes || free.bytes - end >= lms::kSmallestLeft);
      CHECK(same(found, free.at(found.begin, wanted, taker)));
      std::size_t begin = 0;
      for (const Part& part : free.parts) {
        const bool leaves = begin == 0 || begin >= lms::kSmallestLeft;
        const std::size_t behind = free.bytes - std::min(free.bytes, begin + wanted);
        const bool fits = begin + wanted <= free.bytes;
        if (fits && leaves && (behind == 0 || begin == 0 || behind >= lms::kSmallestLeft)) {
          CHECK(!free.at(begin, wanted, taker).before(found));
        }
        begin += part.bytes;
      }
    }
  }
}

// What is left is one piece, then.
TEST(ready_the_end_is_taken_where_nothing_is_ready_before_it) {
  const Free free({{4 * kMiB, 7, false}, {4 * kMiB, 3, false}, {4 * kMiB, 3, false}});
  CHECK_EQ(lms::first_ready(free.owed, free.bytes, 4 * kMiB, Taker::kPageIn).begin, 8 * kMiB);
  const Free alike({{4 * kMiB, 3, true}, {4 * kMiB, 3, false}, {4 * kMiB, 3, true}});
  CHECK_EQ(lms::first_ready(alike.owed, alike.bytes, 4 * kMiB, Taker::kOp).begin, 0u);
}
