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

class Numbered final : public lms::Mark {
 public:
  explicit Numbered(std::uint64_t number) : number_(number) {}
  bool done() override { return false; }
  void wait() override {}
  std::uint64_t number() const override { return number_; }

 private:
  const std::uint64_t number_;
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

}  // namespace

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
  CHECK(!owed.owes_copies());
  Ready copied = idle_since(2);
  copied.out = std::make_shared<Numbered>(3);
  owed.append(copied, 4);
  CHECK(owed.owes_copies() && owed.copies_done(0, 4) && !owed.copies_done(0, 5));
  CHECK(!owed.split(4).owes_copies());
  CHECK(owed.whole().out != nullptr);
}
