// SPDX-License-Identifier: Apache-2.0
// Where the operands of an op come to lie. Pools are drawn as text, a character for each 64 bytes:
// a letter is a storage, '.' is free.
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake.h"
#include "harness.h"
#include "manual_clock.h"
#include "placement.h"
#include "victims.h"

namespace {

using lms::Admission;
using lms::Demand;
using lms::Patience;
using lms::Placement;

constexpr std::size_t kUnit = 64;

class FakePool final : public lms::Space {
 public:
  // Runs of one letter are one storage each, upper-case letters those that another op has pinned.
  explicit FakePool(const std::string& picture)
      : size_(picture.size() * kUnit), arena_(size_), base_(first_()) {
    std::vector<void*> holes;
    for (std::size_t i = 0, end; i < picture.size(); i = end) {
      for (end = i; end < picture.size() && picture[end] == picture[i];) ++end;
      void* const ptr = arena_.allocate((end - i) * kUnit);
      if (picture[i] == '.') {
        holes.push_back(ptr);
      } else {
        storages_[picture[i]] = {(end - i) * kUnit, ptr, picture[i] < 'a' ? 1 : 0};
      }
    }
    for (void* hole : holes) arena_.free(hole);
  }

  std::string picture() const {
    std::string text(size_ / kUnit, '.');
    for (const auto& item : storages_) {
      if (item.second.ptr == nullptr) continue;
      const auto at = static_cast<std::size_t>(static_cast<char*>(item.second.ptr) - base_) / kUnit;
      text.replace(at, item.second.bytes / kUnit, item.second.bytes / kUnit, item.first);
    }
    return text;
  }

  // A storage that is out.
  void add_out(char name, std::size_t units) { storages_[name] = {units * kUnit, nullptr, 0}; }

  bool pin(const std::string& names) {
    for (const char name : names) ++storages_.at(name).pins;
    for (const char name : names) {
      Storage& storage = storages_.at(name);
      if (storage.ptr != nullptr) continue;
      if (make(static_cast<std::int64_t>(storage.bytes)))
        storage.ptr = arena_.allocate(storage.bytes);
      if (storage.ptr != nullptr) continue;
      unpin(names);
      return false;
    }
    return true;
  }
  void unpin(const std::string& names) {
    for (const char name : names) --storages_.at(name).pins;
  }
  int pins(char name) const { return storages_.at(name).pins; }
  std::int64_t bytes_of(const std::string& names) const {
    std::size_t bytes = 0;
    for (const char name : names) bytes += storages_.at(name).bytes;
    return static_cast<std::int64_t>(bytes);
  }

  std::int64_t bytes() const override { return static_cast<std::int64_t>(size_); }
  std::int64_t limit() const override { return bytes(); }
  bool has(std::int64_t bytes) const override {
    for (const auto& block : arena_.blocks()) {
      if (block.free && block.bytes >= static_cast<std::size_t>(bytes)) return true;
    }
    return false;
  }
  bool make(std::int64_t bytes) override {
    if (has(bytes)) return true;
    lms::Segment segment{{}, true, false};
    std::vector<Storage*> idle;
    for (const auto& block : arena_.blocks()) {
      lms::Block found{lms::Block::State::kFree, block.bytes, 0, 0};
      if (!block.free) found.state = lms::Block::State::kBusy;
      for (auto& item : storages_) {
        if (item.second.ptr != block.ptr || item.second.pins > 0) continue;
        found.state = lms::Block::State::kIdle;
        found.cost = static_cast<double>(block.bytes);
        found.victim = idle.size();
        idle.push_back(&item.second);
      }
      segment.blocks.push_back(found);
    }
    const auto choice = lms::choose_victims({segment}, {static_cast<std::size_t>(bytes), 0, 0});
    for (const std::size_t victim : choice.victims) evict_(idle[victim]);
    return choice.kind != lms::Choice::Kind::kNone;
  }
  void evict_idle() override {
    ++emptied;
    for (auto& item : storages_) {
      if (item.second.pins == 0 && item.second.ptr != nullptr) evict_(&item.second);
    }
  }
  void* set_aside(std::int64_t bytes) override {
    return arena_.allocate(static_cast<std::size_t>(bytes));
  }
  void give_back(void* hole) override { arena_.free(hole); }

  int emptied = 0;
  int evicted = 0;

 private:
  struct Storage {
    std::size_t bytes;
    void* ptr;
    int pins;
  };

  char* first_() {
    void* const ptr = arena_.allocate(kUnit);
    arena_.free(ptr);
    return static_cast<char*>(ptr);
  }
  void evict_(Storage* storage) {
    arena_.free(storage->ptr);
    storage->ptr = nullptr;
    ++evicted;
  }

  std::size_t size_;
  fake::Arena arena_;
  char* base_;
  std::map<char, Storage> storages_;
};

struct Operands final : lms::Pins {
  Operands(FakePool* fake_pool, std::string of_op) : pool(*fake_pool), names(std::move(of_op)) {}
  bool pin() override {
    if (++pins == throw_at) throw std::runtime_error("a copy failed");
    pinned = pool.pin(names);
    return pinned;
  }
  void unpin() override {
    pool.unpin(names);
    pinned = false;
  }
  std::size_t count() const override { return names.size(); }

  FakePool& pool;
  std::string names;
  bool pinned = false;
  int pins = 0, throw_at = 0;
};

struct Scene {
  Scene(const std::string& picture, const std::string& names)
      : pool(picture), operands(&pool, names) {}

  // An op with a reservation; its demand is in units.
  bool place(std::int64_t demand, Patience patience = Patience::kPatient) {
    Admission::Op op;
    op.reserved = true;
    op.operand_bytes = pool.bytes_of(operands.names);
    op.demand = demand == Demand::kUnknown ? demand : demand * static_cast<std::int64_t>(kUnit);
    return placement.place(op, patience);
  }
  // Whether so many units are free in one piece, with no eviction.
  bool has(std::int64_t units) const { return pool.has(units * static_cast<std::int64_t>(kUnit)); }
  void begin_another() {
    another.independent = true;
    admission.run(&another);
  }

  fake::ManualClock clock;
  FakePool pool;
  Admission admission{pool, clock};
  Operands operands;
  Placement placement{pool, admission, operands};
  Admission::Op another;
};

TEST(placement_of_an_op_without_a_reservation) {
  Scene s("xxxxaaaayyyy....", "a");
  CHECK(s.placement.place(Admission::Op(), Patience::kPatient));
  CHECK_EQ(s.pool.picture(), "xxxxaaaayyyy....");
  CHECK_EQ(s.pool.pins('a'), 1);
}

TEST(placement_leaves_operands_that_are_not_in_the_way) {
  Scene s("aaaaxxxxyyyy....", "a");
  CHECK(s.place(8));
  CHECK_EQ(s.pool.picture(), "aaaaxxxx........");
}

// Operands in the middle leave 8, which evictions beside them cannot change.
TEST(placement_moves_operands_side_by_side) {
  Scene s("xxxxxxaayyyyyy..", "a");
  CHECK(s.place(12));
  CHECK_EQ(s.pool.picture(), "aa..............");
}

// Nowhere is room for both in one piece.
TEST(placement_puts_operands_beside_the_hole) {
  Scene s(".....Paaaa......", "a");
  CHECK(s.place(9));
  CHECK_EQ(s.pool.picture(), "aaaa.P..........");
  CHECK(s.has(9));
}

// Whatever becomes of the operands.
TEST(placement_gives_the_hole_back) {
  Scene s(".....Paaaa......", "a");
  s.operands.throw_at = 3;
  CHECK_THROWS(s.place(9), std::runtime_error);
  CHECK(s.has(10));
}

// Where the operands do not fit beside the hole, they take a part of it.
TEST(placement_prefers_operands_to_the_hole) {
  Scene s("..Paaaaaa..", "a");
  CHECK(s.place(6));
  CHECK(s.operands.pinned && !s.has(6));
}

// A part of the pool that others leave is taken to be free between few operands.
TEST(placement_makes_no_hole_for_a_little) {
  Scene s("xxxxxxaayyyyyyyy", "a");
  CHECK(s.place(1));
  CHECK_EQ(s.pool.evicted, 0);
  s.operands.unpin();
  CHECK(s.place(2));
  CHECK(s.pool.evicted > 0 && s.has(2));
}

// The more operands, the smaller the pieces between them.
TEST(placement_makes_a_hole_between_many_operands) {
  Scene s("aaxbbxccxddxeexff", "abcdef");
  CHECK(s.place(1));
  CHECK(s.pool.evicted > 0 && s.has(1));
}

// It may take most of the pool. What it finds no room for is not evicted again with every try.
TEST(placement_of_an_unknown_demand_empties_the_pool) {
  Scene s("xxxxaaaayyyyzzzz", "a");
  CHECK(s.place(Demand::kUnknown));
  CHECK_EQ(s.pool.picture(), "aaaa............");
  s.operands.unpin();
  CHECK(s.place(Demand::kUnknown));
  CHECK_EQ(s.pool.emptied, 1);
}

TEST(placement_without_room) {
  Scene s("PPPPPPPPaaaabbbb", "ab");
  s.pool.evict_idle();
  CHECK(s.pool.pin("a"));
  Operands larger(&s.pool, "b");
  CHECK(s.pool.set_aside(2 * kUnit) != nullptr);
  CHECK(!Placement(s.pool, s.admission, larger).place(Admission::Op(), Patience::kPatient));
  CHECK_EQ(s.pool.pins('b'), 0);
}

// While another op will end and its operands are in the way.
TEST(placement_of_a_patient_op_waits_for_a_place) {
  Scene s("....PaaaP.......", "a");
  s.begin_another();
  CHECK(!s.place(12));
  CHECK(!s.operands.pinned && s.pool.pins('a') == 0);
  CHECK(s.place(12, Patience::kImpatient));
  CHECK(s.operands.pinned);
}

// There is room for both, but on neither side of the one that is there.
TEST(placement_of_operands_that_are_in_each_others_way) {
  Scene s("......aaaa......", "ab");
  s.pool.add_out('b', 7);
  CHECK(s.place(5));
  CHECK_EQ(s.pool.picture(), "aaaabbbbbbb.....");
}

TEST(placement_empties_no_pool_while_others_will_end) {
  Scene s("......aaaa......", "ab");
  s.pool.add_out('b', 7);
  s.begin_another();
  CHECK(!s.place(5));
  CHECK_EQ(s.pool.emptied, 0);
  CHECK(s.place(5, Patience::kImpatient));
}

// What fits at all is placed wherever everything lies, with its demand in one piece unless that is
// little.
TEST(placement_of_what_fits_alone) {
  fake::Random random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string picture;
    for (char name = 'a'; picture.size() < 32; ++name) {
      picture.append(1 + random.below(4), random.below(3) == 0 ? '.' : name);
    }
    Scene s(picture, "");
    std::int64_t units = static_cast<std::int64_t>(picture.size());
    for (char name = 'a'; name <= 'z'; ++name) {
      const bool there = picture.find(name) != std::string::npos;
      if (!there) s.pool.add_out(name, 1 + random.below(8));
      const std::int64_t own = s.pool.bytes_of({name}) / static_cast<std::int64_t>(kUnit);
      if (random.below(3) != 0 || own > units) continue;
      s.operands.names += name;
      units -= own;
    }
    CHECK(s.place(units));
    const auto pieces = static_cast<std::int64_t>(s.operands.names.size()) + 1;
    const bool little = 4 * pieces * units < static_cast<std::int64_t>(picture.size());
    CHECK(little || s.has(units));
  }
}

// Nothing would come of waiting.
TEST(placement_of_an_op_that_is_alone_takes_any_place) {
  Scene s("....PaaaP.......", "a");
  CHECK(s.place(12));
  CHECK(s.operands.pinned);
}

}  // namespace
