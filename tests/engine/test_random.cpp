// SPDX-License-Identifier: Apache-2.0
// Random programs on the engine, against a model that only knows what each storage must hold.
// Options: seeds, first (the first seed), steps, verbose, policy (0: not that of victims.cpp).
#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"

namespace {

using fake::EventPtr;
using fake::Random;
using fake::Storage;
using fake::StorageRef;
using fake::stream;
using lms::Access;
using lms::Engine;
using lms::EngineStats;
using lms::Place;
using lms::Use;

constexpr std::size_t kMaxBytes = 2048;
constexpr std::size_t kMaxLive = 24;
constexpr int kMaxDepth = 3;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return Random(a * 31 + b).next(); }

// A storage as the program sees it.
struct Tensor {
  StorageRef storage;
  std::uint64_t tag = 0;
  // What a correct program orders by itself: its own reads and writes on different streams.
  std::pair<lms::Stream, EventPtr> last_write;
  std::vector<std::pair<lms::Stream, EventPtr>> reads;
  int user_pins = 0;
  lms::Stream pin_stream = nullptr;
  int frame_pins = 0;
  bool exposed = false, excluded = false;
  void* pointer = nullptr;  // what it was when it was pinned, exposed or excluded
  bool fixed() const { return user_pins > 0 || frame_pins > 0 || exposed || excluded; }
};
using TensorPtr = std::shared_ptr<Tensor>;

class World {
 public:
  explicit World(std::uint64_t seed)
      : setup_(mix(seed, 1)),
        streams_(2 + setup_.below(3)),
        device_(seed, fake::Backend::streams_needed(streams_)),
        memory_(kMaxLive * kMaxBytes),
        pool_(memory_, 512 * (1 + setup_.below(16))),
        backend_(device_, streams_, 4096 + 1024 * setup_.below(16),
                 setup_.one_in(2) ? 0 : 1024 * (1 + setup_.below(8))),
        engine_(new Engine(backend_, pool_, {kMaxBytes / 2})) {
    backend_.attach(engine_.get(), &pool_);
    backend_.blind = mix(seed, 3) % 8 == 0;
    backend_.unseen = mix(seed, 4) % 2 == 0;
    engine_->set_min_bytes(0);
  }

  // Throws harness::Failure.
  void step(std::uint64_t seed) {
    Random random(seed);
    device_.set_seed(mix(seed, 2));
    {
      fake::Scope scope;
      backend_.current = any_stream_(&random);
      act_(&random);
    }
    device_.run(random.below(random.one_in(4) ? 40 : 6));
    check_();
    if (random.one_in(16)) compare_all_();
  }

  void finish() {
    while (!dead_pins_.empty()) unpin_dead_(0);
    compare_all_();
    for (const TensorPtr& tensor : tensors_) {
      fake::Scope scope;
      for (; tensor->user_pins > 0; --tensor->user_pins) engine_->unpin(tensor->storage.get());
      drop_order_(tensor.get());
    }
    tensors_.clear();
    engine_->purge();
    CHECK_EQ(backend_.retained.size(), 0u);
    CHECK_EQ(engine_->stats(0).pinned.count.current, 0);
    device_.drain();
    CHECK_EQ(device_.failure(), "");
    CHECK_EQ(pool_.stats().used, 0u);
    pool_.set_limit(0);
    pool_.trim();
    CHECK_EQ(pool_.stats().reserved, 0u);
    CHECK_EQ(memory_.used.load(), 0u);
    engine_.reset();
  }

  const std::vector<std::string>& log() const { return log_; }
  // What a sum of worlds must have seen for the test to mean anything.
  const fake::Counts& counts() const { return backend_.counts; }
  const lms::RouteCounts& routes() const { return backend_.routes; }
  EngineStats stats() { return engine_->stats(0); }
  std::size_t out_of_memory() const { return out_of_memory_; }

 private:
  void act_(Random* random) {
    const std::size_t act = random->below(32);
    if (!backend_.unseen && act >= 5 && act <= 7) return op_(random, 1);  // past every op
    switch (act) {
      case 0:
      case 1:
      case 2:
        return create_(random);
      case 3:
      case 4:
        return drop_(random);
      case 5:
        return silent_write_(random);
      case 6:
        return replace_(random);
      case 7:
        return exchange_(random);
      case 8:
        return pin_(random);
      case 9:
        return unpin_(random);
      case 10:
        return raw_write_(random);
      case 11:
        return random->one_in(2) ? expose_(random) : exclude_(random);
      case 12:
      case 13:
        return release_(random);
      case 14:
      case 15:
        return evict_all_(random);
      case 16:
      case 17:
        return evict_one_(random);
      case 18:
        return random->one_in(4) ? page_in_all_(random) : note_(random);
      case 19:
        return page_in_(random);
      case 20:
        return settings_(random);
      case 21:
        return faults_(random);
      case 22:
        if (random->one_in(4)) return habit_(random);
        say_("purge");
        return engine_->purge();
      default:
        return op_(random, 1);
    }
  }

  // ---- the program

  void create_(Random* random) {
    const std::size_t bytes = 1 + random->below(kMaxBytes);
    const lms::Stream home = any_stream_(random);
    if (TensorPtr tensor = create_on_(bytes, home, random->next())) {
      if (!random->one_in(4)) engine_->note(nullptr, tensor->storage.get(), home);
    }
  }

  TensorPtr create_on_(std::size_t bytes, lms::Stream home, std::uint64_t tag) {
    if (tensors_.size() >= kMaxLive) return nullptr;
    auto tensor = std::make_shared<Tensor>();
    try {
      tensor->storage = backend_.create(bytes, home);
    } catch (const fake::OutOfMemory&) {
      ++out_of_memory_;
      return nullptr;
    } catch (const fake::BackendError&) {
      return nullptr;
    }
    say_("create", tensor.get(), home);
    tensors_.push_back(tensor);
    kernel_(tensor.get(), Access::kOverwrite, home, tag, tensor->storage->ptr);
    return tensor;
  }

  void drop_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor || tensor->frame_pins > 0) return;
    say_("drop", tensor.get());
    for (int i = 0; i < tensor->user_pins; ++i) dead_pins_.push_back(tensor->storage.get());
    tensor->storage->held = 0;
    drop_order_(tensor.get());
    tensors_.erase(std::find(tensors_.begin(), tensors_.end(), tensor));
  }

  // Its block goes back to the pool of its home stream: that comes after all uses.
  void drop_order_(Tensor* tensor) { join_(tensor, tensor->storage->home, /*writes=*/true); }

  // Not all who call it know it.
  int told_device_() { return ++told_ % 4 == 0 ? -1 : 0; }

  // An op: some storages are used, some by nested ops only; results; others interfere meanwhile.
  void op_(Random* random, int depth) {
    const lms::Stream on = any_stream_(random);
    std::vector<std::pair<TensorPtr, Access>> arguments;
    std::vector<Use> uses;
    const int device = told_device_();
    for (std::size_t i = random->below(5); i-- > 0;) {
      const TensorPtr tensor = pick_(random);
      if (!tensor) continue;
      const auto found = std::find_if(
          arguments.begin(), arguments.end(),
          [&](const std::pair<TensorPtr, Access>& argument) { return argument.first == tensor; });
      auto access = static_cast<Access>(random->below(3));
      if (found != arguments.end()) {
        // A storage that is named twice is not given as overwritten.
        if (access == Access::kOverwrite || found->second == Access::kOverwrite) continue;
        uses.push_back({tensor->storage.get(), access, on});
        if (access == Access::kWrite) found->second = access;
        continue;
      }
      arguments.push_back({tensor, access});
      uses.push_back({tensor->storage.get(), access, on});
    }
    say_("op", nullptr, on);
    for (const auto& argument : arguments) {
      say_(argument.second == Access::kRead    ? "  read"
           : argument.second == Access::kWrite ? "  write"
                                               : "  overwrite",
           argument.first.get());
    }
    depth_ = depth;
    const std::size_t first = frame_tensors_.size();
    for (const auto& argument : arguments) frame_tensors_.push_back(argument.first);
    Engine::Overwritten old;
    try {
      engine_->enter(frame_, uses.data(), uses.size(), &old, "", device);
    } catch (const fake::OutOfMemory&) {
      ++out_of_memory_;
      say_("  out of memory");
      frame_tensors_.resize(first);
      failed_pins_.insert(failed_pins_.end(), arguments.begin(), arguments.end());
      return leave_(depth);
    } catch (const fake::BackendError&) {
      say_("  backend error");
      frame_tensors_.resize(first);
      failed_pins_.insert(failed_pins_.end(), arguments.begin(), arguments.end());
      return leave_(depth);
    }
    for (const auto& argument : arguments) fix_(argument.first.get(), &Tensor::frame_pins);
    // The bytes that are to be overwritten are not there, unless the op fails.
    const bool fails = old.key != nullptr && random->one_in(4);
    if (fails) {
      say_("  fails");
      for (const auto& argument : arguments) {
        if (argument.first->storage.get() == old.key) join_(argument.first.get(), on, true);
      }
      try {
        engine_->restore(&old);
      } catch (const fake::BackendError&) {  // the bytes are lost: others take their place
        for (const auto& argument : arguments) {
          if (argument.second != Access::kOverwrite) continue;
          kernel_(argument.first.get(), Access::kOverwrite, on, random->next(),
                  argument.first->pointer);
        }
      }
    }
    for (const auto& argument : arguments) {
      if (fails || argument.second != Access::kOverwrite) continue;
      kernel_(argument.first.get(), Access::kOverwrite, on, random->next(),
              argument.first->pointer);
    }
    if (old.key != nullptr) engine_->overwrote(&old);
    while (random->one_in(3)) {
      if (depth < kMaxDepth && random->one_in(2)) {
        op_(random, depth + 1);
        depth_ = depth;
      } else if (random->one_in(2)) {
        evict_all_(random);
      } else {
        evict_one_(random);
      }
    }
    for (const auto& argument : arguments) {
      if (argument.second == Access::kOverwrite) continue;
      kernel_(argument.first.get(), argument.second, on, random->next(), argument.first->pointer);
    }
    if (random->one_in(3)) {
      if (TensorPtr result = create_on_(1 + random->below(kMaxBytes), on, random->next())) {
        engine_->note(depth > 1 ? &frame_ : nullptr, result->storage.get(), on, 0, device);
        if (depth > 1) {
          fix_(result.get(), &Tensor::frame_pins);
          frame_tensors_.push_back(result);
        }
      }
    }
    leave_(depth);
  }

  // Storages are used in a cycle until each next use is foreseen, and then in another order, a few
  // ops later, or no more.
  void habit_(Random* random) {
    const lms::Stream on = any_stream_(random);
    std::vector<TensorPtr> order = tensors_;
    for (std::size_t round = 4 + random->below(3); round-- > 0;) read_(order, on);
    const std::size_t half = order.size() / 2;
    switch (random->below(3)) {
      case 0:
        std::reverse(order.begin(), order.end());
        break;
      case 1:
        order.insert(order.begin(), order.begin(), order.begin() + static_cast<long>(half));
        break;
      default:
        order.resize(half);
    }
    for (std::size_t round = 2; round-- > 0;) read_(order, on);
  }

  // One op each.
  void read_(const std::vector<TensorPtr>& order, lms::Stream on) {
    for (const TensorPtr& tensor : order) {
      say_("read", tensor.get(), on);
      const Use use{tensor->storage.get(), Access::kRead, on};
      try {
        engine_->enter(frame_, &use, 1);
        fix_(tensor.get(), &Tensor::frame_pins);
        frame_tensors_.push_back(tensor);
        kernel_(tensor.get(), Access::kRead, on, 0, tensor->pointer);
      } catch (const fake::OutOfMemory&) {
        ++out_of_memory_;
      } catch (const fake::BackendError&) {
      }
      leave_(1);
      device_.run(1);
    }
  }

  void leave_(int depth) {
    if (depth > 1) return;
    for (const TensorPtr& tensor : frame_tensors_) unfix_(tensor.get(), &Tensor::frame_pins);
    frame_tensors_.clear();
    failed_pins_.clear();
    engine_->leave(frame_);
  }

  // A kernel checks what it reads when it runs, and writes what the tag says.
  void kernel_(Tensor* tensor, Access access, lms::Stream on, std::uint64_t tag, void* ptr) {
    join_(tensor, on, access != Access::kRead);
    fake::Device* device = &device_;
    const std::size_t bytes = tensor->storage->bytes, number = log_.size();
    const std::uint64_t expected = tensor->tag;
    device_.launch(on, [=] {
      if (access != Access::kOverwrite && !fake::holds(ptr, bytes, expected)) {
        device->fail("wrong bytes were read by the kernel launched at line " +
                     std::to_string(number));
      }
      if (access != Access::kRead) fake::fill(ptr, bytes, tag);
    });
    const std::pair<lms::Stream, EventPtr> use(on, device_.record(on));
    if (access == Access::kRead) {
      tensor->reads.push_back(use);
    } else {
      tensor->tag = tag;
      tensor->last_write = use;
      tensor->reads.clear();
    }
  }

  void join_(Tensor* tensor, lms::Stream on, bool writes) {
    const auto join = [&](const std::pair<lms::Stream, EventPtr>& use) {
      if (use.second && use.first != on) device_.wait(on, use.second);
    };
    join(tensor->last_write);
    if (!writes) return;
    for (const auto& read : tensor->reads) join(read);
  }

  // Through the pointer of the storage wherever it is, seen by the write barrier at most.
  void silent_write_(Random* random) {
    const TensorPtr tensor =
        random->one_in(2) ? pick_(random)
                          : pick_(random, [](const Tensor& one) { return one.storage->guarded; });
    if (!tensor || tensor->user_pins > 0) return;
    say_("silent write", tensor.get());
    void* ptr = backend_.write_pointer(tensor->storage.get());
    kernel_(tensor.get(), Access::kWrite, tensor->storage->home, random->next(), ptr);
  }

  // Through a pointer that a pin or an exposure makes good for, seen by nothing.
  void raw_write_(Random* random) {
    const TensorPtr tensor =
        pick_(random, [](const Tensor& one) { return one.user_pins > 0 || one.exposed; });
    if (!tensor) return;
    say_("raw write", tensor.get());
    kernel_(tensor.get(), Access::kWrite, tensor->pin_stream, random->next(), tensor->pointer);
  }

  void replace_(Random* random) {
    const TensorPtr tensor = pick_(random, [](const Tensor& one) { return !one.fixed(); });
    if (!tensor) return;
    say_("replace", tensor.get());
    Storage* storage = tensor->storage.get();
    const std::size_t before = storage->bytes;
    const std::size_t after = random->one_in(2) ? before : 1 + random->below(kMaxBytes);
    const std::uint64_t expected = tensor->tag, tag = random->next();
    join_(tensor.get(), storage->home, true);
    fake::Device* device = &device_;
    try {
      backend_.replace(storage, after, [=](const void* from, void* to) {
        if (!fake::holds(from, before, expected)) device->fail("wrong bytes were resized");
        fake::fill(to, after, tag);
      });
    } catch (const fake::OutOfMemory&) {
      ++out_of_memory_;
      return;
    } catch (const fake::BackendError&) {
      return;
    }
    tensor->tag = tag;
    tensor->reads.clear();
    tensor->last_write = {storage->home, device_.record(storage->home)};
  }

  void exchange_(Random* random) {
    const auto loose = [](const Tensor& one) { return !one.fixed(); };
    const TensorPtr a = pick_(random, loose), b = pick_(random, loose);
    if (!a || !b || a == b) return;
    say_("exchange", a.get());
    say_("    with", b.get());
    backend_.exchange(a->storage.get(), b->storage.get());
    std::swap(a->tag, b->tag);
    std::swap(a->last_write, b->last_write);
    std::swap(a->reads, b->reads);
    for (Tensor* tensor : {a.get(), b.get()}) {
      const lms::Stream home = tensor->storage->home;
      join_(tensor, home, true);
      tensor->reads.clear();
      tensor->last_write = {home, device_.record(home)};
    }
  }

  // ---- the user

  void pin_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor) return;
    say_("pin", tensor.get());
    const lms::Stream on =
        tensor->pin_stream != nullptr && tensor->fixed() ? tensor->pin_stream : any_stream_(random);
    try {
      engine_->pin(tensor->storage.get(), on);
    } catch (const fake::OutOfMemory&) {
      ++out_of_memory_;
      return;
    } catch (const fake::BackendError&) {
      return;
    }
    tensor->pin_stream = on;
    fix_(tensor.get(), &Tensor::user_pins);
  }

  void unpin_(Random* random) {
    if (!dead_pins_.empty() && random->one_in(2)) {
      return unpin_dead_(random->below(dead_pins_.size()));
    }
    // One without a pin, too: that must do nothing.
    const TensorPtr tensor =
        random->one_in(4) ? pick_(random)
                          : pick_(random, [](const Tensor& one) { return one.user_pins > 0; });
    if (!tensor) return;
    say_("unpin", tensor.get());
    if (tensor->user_pins > 0) unfix_(tensor.get(), &Tensor::user_pins);
    engine_->unpin(tensor->storage.get());
  }

  void unpin_dead_(std::size_t index) {
    say_("unpin a dead one");
    engine_->unpin(dead_pins_[index]);
    dead_pins_.erase(dead_pins_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void expose_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor || tensor->exposed) return;
    say_("expose", tensor.get());
    const lms::Stream on = tensor->user_pins > 0 ? tensor->pin_stream : any_stream_(random);
    try {
      engine_->expose(tensor->storage.get(), on);
    } catch (const std::runtime_error&) {
      return;
    }
    tensor->pin_stream = on;
    tensor->exposed = true;
    hold_(tensor.get());
  }

  void exclude_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor || tensor->excluded) return;
    say_("exclude", tensor.get());
    try {
      engine_->exclude(tensor->storage.get(), any_stream_(random));
    } catch (const std::runtime_error&) {
      return;
    }
    tensor->excluded = true;
    hold_(tensor.get());
  }

  void release_(Random* random) {
    const TensorPtr tensor =
        pick_(random, [](const Tensor& one) { return one.exposed || one.excluded; });
    if (!tensor) return;
    if (tensor->exposed) {
      say_("unexpose", tensor.get());
      tensor->exposed = false;
      --tensor->storage->held;
      engine_->unexpose(tensor->storage.get());
    } else {
      say_("include", tensor.get());
      tensor->excluded = false;
      --tensor->storage->held;
      engine_->include(tensor->storage.get());
    }
  }

  void note_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor) return;
    const lms::Stream on = any_stream_(random);
    say_("note", tensor.get(), on);
    engine_->note(nullptr, tensor->storage.get(), on);
  }

  void settings_(Random* random) {
    switch (random->below(7)) {
      case 0: {
        limit_ = !random->one_in(4) ? 0 : 512 * random->below(48);
        say_("host limit " + std::to_string(limit_));
        return pool_.set_limit(limit_);
      }
      case 1:
        memory_.capacity = !random->one_in(4) ? kMaxLive * kMaxBytes : 512 * random->below(48);
        return say_("host capacity " + std::to_string(memory_.capacity));
      case 2:
        return engine_->set_min_bytes(random->one_in(2) ? 0 : random->below(512));
      case 3:
        return engine_->set_keep_clean(!random->one_in(4));
      case 4:
        engine_->set_chaos(random->one_in(4));
        return say_(engine_->chaos() ? "chaos" : "no chaos");
      case 5:
        backend_.limit = random->one_in(2) ? 0 : 1024 * (4 + random->below(32));
        return say_("device limit " + std::to_string(backend_.limit));
      default:
        engine_->reset_peaks(0);
        pool_.reset_peaks();
        pool_.trim();
    }
  }

  void faults_(Random* random) {
    switch (random->below(6)) {
      case 4:
        backend_.fail_mark = static_cast<int>(1 + random->below(3));
        return say_("a mark will fail");
      case 0:
        backend_.fail_page_in = static_cast<int>(1 + random->below(3));
        return say_("a page-in will fail");
      case 1:
        backend_.fail_page_out = static_cast<int>(1 + random->below(3));
        return say_("a page-out will fail");
      case 2:
        memory_.refusals = static_cast<int>(random->below(4));
        return say_("host memory will be refused");
      case 3:
        if (const TensorPtr tensor = pick_(random)) {
          std::atomic<bool>& away = tensor->storage->out_of_reach;
          away = !away;
          say_(away ? "out of reach" : "within reach", tensor.get());
        }
        return;
      default:
        backend_.immovable = random->one_in(3);
        return say_(backend_.immovable ? "nothing can move" : "all can move");
    }
  }

  // ---- eviction from outside

  void evict_all_(Random* random) {
    say_("evict all");
    try {
      engine_->evict_all(0, random->one_in(2) ? lms::Sizes::kAny : lms::Sizes::kFromMinimum);
    } catch (const fake::BackendError&) {
    }
  }

  void evict_one_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor) return;
    say_("evict", tensor.get());
    try {
      engine_->evict(tensor->storage.get());
    } catch (const fake::BackendError&) {
    }
  }

  void page_in_(Random* random) {
    const TensorPtr tensor = pick_(random);
    if (!tensor) return;
    const auto reclaim = random->one_in(2) ? lms::Reclaim::kNone : lms::Reclaim::kAllowed;
    say_(reclaim == lms::Reclaim::kNone ? "page in if free" : "page in", tensor.get());
    const std::int64_t evicted = engine_->stats(0).reclaimed;
    try {
      const bool resident = engine_->page_in(tensor->storage.get(), any_stream_(random), reclaim);
      CHECK(!resident || tensor->storage->place == Place::kDevice);
    } catch (const fake::OutOfMemory&) {
      ++out_of_memory_;
    } catch (const fake::BackendError&) {
    }
    if (reclaim == lms::Reclaim::kNone) CHECK_EQ(engine_->stats(0).reclaimed, evicted);
  }

  void page_in_all_(Random*) {
    say_("page in all");
    const std::size_t left = engine_->page_in_all([](int) { return stream(1); });
    CHECK_EQ(left, engine_->census(0).on_host);
  }

  // ---- invariants

  void fix_(Tensor* tensor, int Tensor::* pins) {
    ++(tensor->*pins);
    hold_(tensor);
  }
  void hold_(Tensor* tensor) {
    if (tensor->storage->held++ == 0) tensor->pointer = tensor->storage->ptr;
    CHECK(tensor->storage->place == Place::kDevice);
  }
  void unfix_(Tensor* tensor, int Tensor::* pins) {
    --(tensor->*pins);
    --tensor->storage->held;
  }

  void check_() {
    CHECK_EQ(device_.failure(), "");
    pool_.check();
    std::size_t on_host = 0, pinned = dead_pinned_(), pinned_bytes = 0;
    for (const TensorPtr& tensor : tensors_) {
      const Storage* storage = tensor->storage.get();
      if (storage->held > 0) {
        CHECK(storage->place == Place::kDevice);
        CHECK(storage->ptr == tensor->pointer);
      }
      if (tensor->user_pins > 0) {
        ++pinned;
        pinned_bytes += storage->bytes;
      }
      CHECK(storage->place != Place::kForeign);
      if (storage->place == Place::kHost) on_host += storage->range.bytes;
    }
    const lms::HostStats host = pool_.stats();
    CHECK(host.used >= on_host);
    CHECK(host.used <= host.reserved && host.used_peak >= host.used);
    CHECK(limit_ == 0 || host.reserved <= std::max(limit_, reserved_before_));
    CHECK_EQ(host.reserved, memory_.used.load());
    reserved_before_ = host.reserved;

    const EngineStats stats = engine_->stats(0);
    const fake::Counts& counts = backend_.counts;
    CHECK_EQ(stats.paged_out, counts.outs);
    CHECK_EQ(stats.paged_out_bytes, counts.out_bytes);
    CHECK_EQ(stats.clean_evictions, counts.clean_outs);
    CHECK(!backend_.blind || stats.clean_evictions == 0);
    CHECK_EQ(stats.clean_bytes, counts.clean_bytes);
    CHECK_EQ(stats.paged_in, counts.ins);
    CHECK_EQ(stats.paged_in_bytes, counts.in_bytes);
    CHECK_EQ(stats.overwrites, counts.overwrites);
    CHECK_EQ(stats.overwrite_bytes, counts.overwrite_bytes);
    CHECK_EQ(stats.reclaimed + counts.ahead, stats.paged_out + stats.clean_evictions);
    CHECK_EQ(stats.reclaimed_bytes + counts.ahead_bytes, stats.paged_out_bytes + stats.clean_bytes);
    CHECK(stats.silent_writes >= before_.silent_writes);
    CHECK(stats.host_refused >= before_.host_refused);
    CHECK_EQ(stats.pinned.count.current, static_cast<std::int64_t>(pinned));
    if (dead_pins_.empty()) {
      CHECK_EQ(stats.pinned.bytes.current, static_cast<std::int64_t>(pinned_bytes));
    }
    std::vector<lms::Pinned> all = stats.by_size;
    all.push_back(stats.pinned);
    for (const lms::Pinned& pins : all) {
      for (const lms::Counter* counter : {&pins.count, &pins.bytes}) {
        CHECK_EQ(counter->current, counter->allocated - counter->freed);
        CHECK(counter->peak >= counter->current && counter->current >= 0);
      }
    }
    CHECK_EQ(all.size(), 3u);
    CHECK_EQ(all[2].count.allocated, all[0].count.allocated + all[1].count.allocated);
    CHECK_EQ(all[2].bytes.allocated, all[0].bytes.allocated + all[1].bytes.allocated);
    before_ = stats;
  }

  std::size_t dead_pinned_() const {
    auto keys = dead_pins_;
    std::sort(keys.begin(), keys.end());
    return static_cast<std::size_t>(std::unique(keys.begin(), keys.end()) - keys.begin());
  }

  void compare_all_() {
    device_.drain();
    CHECK_EQ(device_.failure(), "");
    for (const TensorPtr& tensor : tensors_) {
      if (!fake::holds(tensor->storage->ptr, tensor->storage->bytes, tensor->tag)) {
        say_("holds wrong bytes:", tensor.get());
        CHECK(false && "contents of every storage");
      }
    }
    fake::Scope scope;
    const lms::Census census = engine_->census(0);  // purges
    CHECK(backend_.retained.size() <= tensors_.size() + dead_pinned_());
    CHECK(census.tracked <= tensors_.size());
    CHECK_EQ(census.tracked, census.pinned + census.idle + census.on_host + census.exposed +
                                 census.excluded + census.small + census.immovable);
  }

  // ---- helpers

  lms::Stream any_stream_(Random* random) const { return stream(random->below(streams_)); }

  TensorPtr pick_(Random* random, bool (*wanted)(const Tensor&) = nullptr) {
    std::vector<TensorPtr> choice;
    for (const TensorPtr& tensor : tensors_) {
      if (wanted == nullptr || wanted(*tensor)) choice.push_back(tensor);
    }
    return choice.empty() ? nullptr : choice[random->below(choice.size())];
  }

  void say_(const std::string& what, const Tensor* tensor = nullptr, lms::Stream on = nullptr) {
    std::ostringstream out;
    out << std::string(depth_ > 1 ? 2 * static_cast<std::size_t>(depth_ - 1) : 0, ' ') << what;
    if (tensor != nullptr) {
      const Storage* storage = tensor->storage.get();
      out << " " << static_cast<const void*>(storage)
          << (storage->place == Place::kHost ? " on the host, " : ", ") << storage->bytes
          << " bytes";
    }
    if (on != nullptr) out << " on stream " << reinterpret_cast<std::uintptr_t>(on);
    log_.push_back(out.str());
  }

  Random setup_;
  const std::size_t streams_;
  fake::Device device_;
  fake::HostMemory memory_;
  lms::HostPool pool_;
  fake::Backend backend_;
  std::unique_ptr<Engine> engine_;
  std::vector<TensorPtr> tensors_;
  Engine::Frame frame_;
  std::vector<TensorPtr> frame_tensors_;
  std::vector<std::pair<TensorPtr, Access>> failed_pins_;  // alive until the frame is left
  std::vector<lms::Key> dead_pins_;
  int depth_ = 1;
  int told_ = 0;
  std::size_t limit_ = 0, reserved_before_ = 0, out_of_memory_ = 0;
  EngineStats before_;
  std::vector<std::string> log_;
};

struct Run {
  bool passed = true;
  std::size_t steps = 0;  // until it failed
  std::string message;
  std::vector<std::string> log;
};

struct Coverage {
  std::int64_t outs = 0, ahead = 0, clean = 0, ins = 0, overwrites = 0, silent = 0, refused = 0;
  std::int64_t predicted = 0, mispredicted = 0;
  std::size_t out_of_memory = 0;
  std::int64_t routes[lms::kRoutes] = {};
  void add(World* world) {
    outs += world->counts().outs;
    ahead += world->counts().ahead;
    clean += world->counts().clean_outs;
    ins += world->counts().ins;
    overwrites += world->counts().overwrites;
    silent += world->stats().silent_writes;
    refused += world->stats().host_refused;
    predicted += world->stats().predicted;
    mispredicted += world->stats().mispredicted;
    out_of_memory += world->out_of_memory();
    for (std::size_t i = 0; i < lms::kRoutes; ++i) {
      routes[i] += world->routes().of(static_cast<lms::Route>(i));
    }
  }
};

// Steps draw from generators of their own, so that leaving some out keeps the others as they were.
Run run(std::uint64_t seed, const std::vector<std::size_t>& steps, Coverage* coverage) {
  Run result;
  std::unique_ptr<World> world(new World(seed));
  try {
    for (std::size_t step : steps) {
      ++result.steps;
      world->step(mix(seed, step + 100));
    }
    coverage->add(world.get());
    world->finish();
  } catch (const std::exception& error) {
    result.passed = false;
    result.message = error.what();
    result.log = world->log();
    static_cast<void>(world.release());  // its destructors would trip over what went wrong
  }
  return result;
}

// Leaves out ever smaller parts as long as the rest still fails, and at the same check.
std::vector<std::size_t> shrink(std::uint64_t seed, std::vector<std::size_t> steps,
                                const std::string& message) {
  const std::string place = message.substr(0, message.find(": "));
  Coverage ignored;
  int runs = 0;
  for (std::size_t part = steps.size() / 2; part > 0; part /= 2) {
    for (std::size_t begin = 0; begin < steps.size() && runs < 1500;) {
      std::vector<std::size_t> rest(steps.begin(),
                                    steps.begin() + static_cast<std::ptrdiff_t>(begin));
      const std::size_t end = std::min(begin + part, steps.size());
      rest.insert(rest.end(), steps.begin() + static_cast<std::ptrdiff_t>(end), steps.end());
      ++runs;
      const Run shorter = run(seed, rest, &ignored);
      if (shorter.passed || shorter.message.compare(0, place.size(), place) != 0) {
        begin = end;
      } else {
        rest.resize(std::min(rest.size(), shorter.steps));
        steps = rest;
      }
    }
  }
  return steps;
}

}  // namespace

TEST(random_programs) {
  const long seeds = harness::option("seeds", 30), count = harness::option("steps", 2000);
  const long first = harness::option("first", 0);
  Coverage coverage;
  for (long seed = first; seed < first + seeds; ++seed) {
    std::vector<std::size_t> steps;
    for (long i = 0; i < count; ++i) steps.push_back(static_cast<std::size_t>(i));
    const auto number = static_cast<std::uint64_t>(seed);
    const Run failed = run(number, steps, &coverage);
    if (failed.passed) continue;
    std::fprintf(stderr, "seed %ld fails at step %zu: %s\n", seed, failed.steps,
                 failed.message.c_str());
    steps.resize(failed.steps);
    steps = shrink(number, steps, failed.message);
    Coverage ignored;
    const Run last = run(number, steps, &ignored);
    std::fprintf(stderr, "shrunk to %zu steps: %s\n", steps.size(), last.message.c_str());
    for (std::size_t i = last.log.size() > 60 ? last.log.size() - 60 : 0; i < last.log.size();
         ++i) {
      std::fprintf(stderr, "%4zu  %s\n", i, last.log[i].c_str());
    }
    harness::fail(__FILE__, __LINE__, "seed " + std::to_string(seed));
  }
  if (harness::option("verbose", 0) != 0) {
    std::printf(
        "page-outs %lld, clean %lld, page-ins %lld, overwrites %lld, silent writes %lld, "
        "host refusals %lld, predicted %lld, mispredicted %lld, out of memory %zu\n",
        static_cast<long long>(coverage.outs), static_cast<long long>(coverage.clean),
        static_cast<long long>(coverage.ins), static_cast<long long>(coverage.overwrites),
        static_cast<long long>(coverage.silent), static_cast<long long>(coverage.refused),
        static_cast<long long>(coverage.predicted), static_cast<long long>(coverage.mispredicted),
        coverage.out_of_memory);
    for (const std::int64_t taken : coverage.routes) {
      std::printf("route: %lld\n", static_cast<long long>(taken));
    }
  }
  // Programs in which nothing happens prove nothing.
  if (harness::option("policy", 1) == 0) {
    CHECK(coverage.outs > 0 && coverage.ahead > 0 && coverage.clean > 0 && coverage.ins > 0);
    return;
  }
  CHECK(coverage.outs > 0 && coverage.clean > 0 && coverage.ins > 0 && coverage.overwrites > 0);
  CHECK(coverage.silent > 0 && coverage.refused > 0 && coverage.out_of_memory > 0);
  CHECK(coverage.predicted > 1000 && coverage.mispredicted > 1000);
  for (const lms::Route route : {lms::Route::kEvictOne, lms::Route::kEvictSome,
                                 lms::Route::kEvictAll, lms::Route::kReplaceSegments}) {
    CHECK(coverage.routes[static_cast<std::size_t>(route)] > 0);
  }
}
