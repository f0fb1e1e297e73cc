// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"

namespace {

using fake::StorageRef;
using fake::stream;
using lms::Access;
using lms::Engine;
using lms::EngineStats;
using lms::Place;
using lms::Use;

constexpr std::size_t kBytes = 1024;
constexpr std::size_t kSmall = 4096;  // the first of two size classes
constexpr std::size_t kStreams = 4;

// An engine on a device with room for `blocks` storages of kBytes in each of its pools.
struct Rig {
  explicit Rig(std::size_t blocks = 64, std::size_t bytes = kBytes)
      : device(1, fake::Backend::streams_needed(kStreams)),
        memory(64 * bytes),
        pool(memory, bytes),
        backend(device, kStreams, blocks * bytes),
        engine(new Engine(backend, pool, {kSmall})) {
    backend.attach(engine.get(), &pool);
    engine->set_min_bytes(0);
  }
  ~Rig() { device.drain(); }

  // A storage that an op has just made on stream 0.
  StorageRef make(std::uint64_t tag, std::size_t bytes = kBytes, int of = 0) {
    StorageRef storage = backend.create(bytes, stream(0), of);
    write(storage, tag, stream(0));
    engine->note(nullptr, storage.get(), stream(0), 0, of);
    return storage;
  }
  void write(const StorageRef& storage, std::uint64_t tag, lms::Stream on) {
    void* ptr = storage->ptr;
    const std::size_t bytes = storage->bytes;
    device.launch(on, [ptr, bytes, tag] { fake::fill(ptr, bytes, tag); });
  }
  void read(const StorageRef& storage, std::uint64_t tag, lms::Stream on) {
    fake::Device* target = &device;
    void* ptr = storage->ptr;
    const std::size_t bytes = storage->bytes;
    device.launch(on, [target, ptr, bytes, tag] {
      if (!fake::holds(ptr, bytes, tag)) target->fail("an op read wrong bytes");
    });
  }
  void enter(Engine::Frame* frame, const std::vector<std::pair<StorageRef*, Access>>& uses,
             lms::Stream on = stream(0), Engine::Overwritten* old = nullptr) {
    std::vector<Use> list;
    int of = uses.empty() ? -1 : (*uses[0].first)->device;
    for (const auto& use : uses) {
      list.push_back({use.first->get(), use.second, on});
      if ((*use.first)->device != of) of = -1;
    }
    engine->enter(*frame, list.data(), list.size(), old, "", of);
  }
  // An op that only reads, on the storage alone.
  void use(StorageRef* storage, Access access = Access::kRead, lms::Stream on = stream(0)) {
    fake::Scope scope;
    Engine::Frame frame;
    Engine::Overwritten old;
    enter(&frame, {{storage, access}}, on, &old);
    if (old.key != nullptr) engine->overwrote(&old);
    engine->leave(frame);
  }
  // Ops of one frame, more than it takes for its thread to own a lock.
  void use_often(Engine::Frame* frame, StorageRef* storage) {
    fake::Scope scope;
    for (int i = 0; i < 500; ++i) {
      enter(frame, {{storage, Access::kRead}});
      engine->leave(*frame);
    }
  }
  // One whose kernel is `work`.
  template <class Work>
  void run_op(StorageRef* storage, lms::Stream on, const Work& work) {
    fake::Scope scope;
    Engine::Frame frame;
    enter(&frame, {{storage, Access::kWrite}}, on);
    work();
    engine->leave(frame);
  }
  bool evict(const StorageRef& storage) {
    fake::Scope scope;
    return engine->evict(storage.get());
  }
  bool has(const StorageRef& storage, std::uint64_t tag) {
    device.drain();
    return fake::holds(storage->ptr, storage->bytes, tag);
  }
  bool resident(const StorageRef& storage) { return storage->place == Place::kDevice; }
  EngineStats stats() { return engine->stats(0); }
  void check() {
    device.drain();
    CHECK_EQ(device.failure(), "");
    pool.check();
  }

  fake::Device device;
  fake::HostMemory memory;
  lms::HostPool pool;
  fake::Backend backend;
  std::unique_ptr<Engine> engine;
};

}  // namespace

// ---- pins

TEST(engine_pins_all_before_paging_in) {
  Rig rig(2);
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  StorageRef b = rig.make(2), c = rig.make(3);
  rig.use(&c);  // b is the older one: the victim, if it were one
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}, {&b, Access::kRead}});
  CHECK(rig.resident(a) && rig.resident(b) && !rig.resident(c));
  CHECK_EQ(rig.backend.counts.outs, 2);
  rig.engine->leave(frame);
  CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

TEST(engine_never_evicts_what_is_pinned) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}});
  a->held = 1;
  CHECK(!rig.engine->evict(a.get()));
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kAny).size(), 1u);
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), kBytes);
  CHECK(rig.resident(a) && !rig.resident(b));
  a->held = 0;
  rig.engine->leave(frame);
  CHECK(rig.engine->evict(a.get()));
  rig.check();
}

TEST(engine_nested_results_are_pinned) {
  Rig rig;
  fake::Scope scope;
  Engine::Frame frame;
  StorageRef input = rig.make(1);
  rig.enter(&frame, {{&input, Access::kRead}});
  StorageRef result = rig.backend.create(kBytes, stream(0));
  rig.engine->note(&frame, result.get(), stream(0));
  result->held = 1;
  CHECK(!rig.engine->evict(result.get()));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  result->held = 0;
  rig.engine->leave(frame);
  CHECK(rig.engine->evict(result.get()));
  rig.check();
}

// Idle at once, since it was made by the op: its last use is the op's, which a copy out waits for.
TEST(engine_knows_results_from_the_end_of_their_op) {
  Rig rig;
  StorageRef input = rig.make(1);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&input, Access::kRead}});
  StorageRef result = rig.backend.create(kBytes, stream(0));
  rig.write(result, 2, stream(0));
  const Use made{result.get(), Access::kWrite, stream(0)};
  const std::int64_t pinned = rig.stats().pinned.count.allocated;
  rig.engine->leave(frame, &made, 1);
  CHECK(frame.empty());
  CHECK_EQ(rig.stats().pinned.count.allocated, pinned + 1);
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  CHECK(rig.engine->evict(input.get()) && rig.engine->evict(result.get()));
  CHECK(rig.backend.knew_last_uses);
  CHECK(rig.has(result, 2));
  rig.check();
}

TEST(engine_holds_where_the_bytes_are) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(a));
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kHold}, {&b, Access::kHold}});
  CHECK(!rig.resident(a) && rig.resident(b));  // nothing came in, and nothing may leave
  CHECK_EQ(rig.backend.counts.ins, 0);
  CHECK(!rig.engine->evict(b.get()));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  rig.engine->leave(frame);
  CHECK(rig.engine->evict(b.get()));
  rig.use(&b);
  CHECK(rig.has(a, 1) && rig.has(b, 2));
  rig.check();
}

// Another op may want it in the device meanwhile: it reads it where it is, too.
TEST(engine_reads_in_place) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  fake::Scope scope;
  Engine::Frame first, second;
  rig.enter(&first, {{&a, Access::kInPlace}});
  rig.enter(&second, {{&a, Access::kRead}});
  rig.engine->expose(a.get(), stream(1));
  CHECK(!rig.engine->page_in(a.get(), stream(1), lms::Reclaim::kAllowed));
  rig.engine->leave(first);  // the other one has its pointer
  rig.enter(&first, {{&a, Access::kWrite}});
  CHECK(!rig.resident(a));
  CHECK_EQ(rig.backend.counts.ins, 0);
  rig.engine->leave(first);
  rig.engine->leave(second);
  rig.use(&a);
  CHECK(rig.resident(a) && rig.has(a, 1));
  rig.check();
}

TEST(engine_pin_holds_until_unpin) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.engine->pin(a.get(), stream(1));
  rig.engine->pin(a.get(), stream(1));
  CHECK(rig.resident(a));
  rig.read(a, 1, stream(1));
  CHECK(!rig.evict(a));
  rig.engine->unpin(a.get());
  CHECK(!rig.evict(a));
  rig.engine->unpin(a.get());
  CHECK(rig.evict(a));
  rig.check();
}

TEST(engine_failed_pin_leaves_no_pin) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.backend.fail_page_in = 1;
  CHECK_THROWS(rig.engine->pin(a.get(), stream(0)), fake::OutOfMemory);
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  rig.use(&a);
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 1));
}

TEST(engine_unpin_takes_no_pin_of_an_op) {
  Rig rig;
  StorageRef a = rig.make(1);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}});
  rig.engine->unpin(a.get());
  CHECK(!rig.engine->evict(a.get()));
  rig.engine->leave(frame);
  CHECK(rig.engine->evict(a.get()));
  CHECK_EQ(rig.stats().pinned.count.current, 0);
}

// Whoever holds a pin may use the raw pointer, and the barrier is not armed meanwhile.
TEST(engine_write_under_a_pin_is_kept) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);  // resident with a copy
  rig.engine->pin(a.get(), stream(1));
  rig.write(a, 2, stream(1));
  rig.engine->unpin(a.get());
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 2));
  CHECK(rig.evict(a) == false);
  rig.engine->pin(a.get(), stream(1));  // paged in by the pin itself
  rig.write(a, 3, stream(1));
  rig.engine->unpin(a.get());
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 3));
  rig.check();
}

// ---- copies

TEST(engine_keeps_the_copy_of_what_is_read) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);
  rig.read(a, 1, stream(0));
  CHECK(rig.evict(a));
  CHECK_EQ(rig.backend.counts.outs, 1);
  CHECK_EQ(rig.backend.counts.clean_outs, 1);
  CHECK_EQ(rig.stats().clean_evictions, 1);
  CHECK(rig.has(a, 1));
  rig.engine->set_keep_clean(false);
  rig.use(&a);
  CHECK(rig.evict(a));
  CHECK_EQ(rig.backend.counts.outs, 2);
  CHECK(rig.has(a, 1));
  rig.check();
}

TEST(engine_drops_the_copy_on_a_write) {
  for (Access access : {Access::kWrite, Access::kOverwrite}) {
    Rig rig;
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.use(&a);
    {
      fake::Scope scope;
      Engine::Frame frame;
      rig.enter(&frame, {{&a, access}});
      rig.write(a, 2, stream(0));
      rig.engine->leave(frame);
    }
    CHECK(rig.evict(a));
    CHECK_EQ(rig.backend.counts.clean_outs, 0);
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

TEST(engine_keeps_no_copy_of_what_comes_in_to_be_written) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a, Access::kWrite);
  rig.write(a, 2, stream(0));
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, 0u);
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 2));
  rig.check();
}

TEST(engine_arms_the_barrier_between_ops) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(!a->guarded);
  CHECK(rig.evict(a));
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}});
  CHECK(!a->guarded);
  rig.engine->leave(frame);
  CHECK(a->guarded);
  rig.enter(&frame, {{&a, Access::kRead}});
  CHECK(!a->guarded);
  rig.engine->leave(frame);
  CHECK(a->guarded);
  CHECK(rig.engine->evict(a.get()));
  CHECK(!a->guarded);
  CHECK_EQ(rig.stats().silent_writes, 0);
  rig.check();
}

TEST(engine_notices_a_silent_write) {
  for (bool op_between : {false, true}) {
    Rig rig;
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.use(&a);
    rig.backend.write_pointer(a.get());
    rig.write(a, 2, stream(0));
    if (op_between) rig.use(&a);
    CHECK_EQ(rig.stats().silent_writes, op_between ? 1 : 0);
    CHECK(rig.evict(a));
    CHECK_EQ(rig.stats().silent_writes, 1);
    CHECK_EQ(rig.backend.counts.outs, 2);
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

// A framework that cannot tell of writes answers that there might have been one: then a host copy
// is never trusted.
TEST(engine_trusts_no_copy_where_writes_are_unknown) {
  for (bool op_between : {false, true}) {
    Rig rig;
    rig.backend.blind = true;
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.use(&a);
    rig.write(a, 2, stream(0));  // past the barrier
    if (op_between) rig.use(&a);
    CHECK(rig.evict(a));
    CHECK_EQ(rig.backend.counts.outs, 2);
    CHECK_EQ(rig.backend.counts.clean_outs, 0);
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

TEST(engine_notices_a_new_pointer) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);
  {
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&a, Access::kRead}});  // no barrier now
    rig.backend.replace(a.get(), kBytes, [](const void*, void* to) { fake::fill(to, kBytes, 2); });
    rig.engine->leave(frame);
    CHECK(rig.engine->evict(a.get()));
  }
  CHECK(rig.has(a, 2));
  rig.use(&a);
  const std::size_t wide = 2 * kBytes;
  rig.backend.replace(a.get(), wide, [wide](const void*, void* to) { fake::fill(to, wide, 3); });
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 3));
  CHECK_EQ(a->bytes, wide);
  rig.check();
}

TEST(engine_failed_page_out_keeps_writes_visible) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);
  rig.backend.fail_page_out = 1;
  CHECK_THROWS(rig.evict(a), fake::BackendError);
  CHECK(rig.resident(a));
  rig.backend.write_pointer(a.get());
  rig.write(a, 2, stream(0));
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 2));
  rig.backend.fail_page_out = 1;
  rig.use(&a, Access::kWrite);
  CHECK_THROWS(rig.evict(a), fake::BackendError);  // with a range of its own
  CHECK(rig.evict(a));
  CHECK(rig.has(a, 2));
  rig.check();
  CHECK_EQ(rig.pool.stats().used, kBytes);
}

// Nothing sees a write from then on.
TEST(engine_waits_for_all_that_is_queued_after_a_failed_page_out) {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.use(&a);
    rig.device.drain();
    rig.device.set_seed(seed);
    rig.backend.fail_page_out = 1;
    CHECK_THROWS(rig.evict(a), fake::BackendError);
    rig.backend.write_pointer(a.get());
    rig.write(a, 2, stream(0));
    CHECK(rig.evict(a));
    CHECK(!rig.backend.knew_last_uses);
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

TEST(engine_copies_make_way_for_evictions) {
  Rig rig;
  rig.pool.set_limit(2 * kBytes);
  StorageRef a = rig.make(1), b = rig.make(2), c = rig.make(3);
  CHECK(rig.evict(a));
  CHECK(rig.evict(b));
  rig.use(&a);
  rig.use(&b);
  CHECK(rig.evict(c));  // takes the range of a copy
  CHECK(!a->guarded || !b->guarded);
  CHECK(rig.evict(a));
  CHECK(!rig.evict(b));  // all that is left is needed
  CHECK_EQ(rig.stats().host_refused, 1);
  CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

struct Lacking {
  std::size_t bytes;
};

// Host memory comes while nobody has the engine's lock, and what lacked it goes on.
TEST(engine_tells_before_host_memory_comes) {
  Rig rig(2);
  rig.backend.before_growth = [](std::size_t bytes, int) { throw Lacking{bytes}; };
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK_THROWS(rig.evict(a), Lacking);
  CHECK(rig.resident(a) && rig.has(a, 1));
  CHECK(rig.pool.prepare(kBytes, 0));
  CHECK(rig.evict(a));  // what has come is free now
  StorageRef c = rig.make(3);
  Engine::Frame frame;
  fake::Scope scope;
  CHECK_THROWS(rig.enter(&frame, {{&a, Access::kWrite}, {&b, Access::kWrite}}), Lacking);
  std::thread([&] { rig.engine->census(0); }).join();  // its lock is free
  CHECK(rig.pool.prepare(kBytes, 0));
  rig.enter(&frame, {{&a, Access::kWrite}, {&b, Access::kWrite}});
  CHECK(rig.resident(a) && rig.resident(b) && !rig.resident(c));
  rig.engine->leave(frame);
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

TEST(engine_tells_of_no_host_memory_beyond_the_limit) {
  Rig rig;
  rig.pool.set_limit(kBytes);
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(a));
  rig.backend.before_growth = [](std::size_t bytes, int) { throw Lacking{bytes}; };
  CHECK(!rig.evict(b));
  CHECK_EQ(rig.stats().host_refused, 1);
  rig.check();
}

// A dead storage's copy serves nobody: host memory does not grow beside it.
TEST(engine_takes_the_copies_of_the_dead_before_more_host_memory) {
  Rig rig(64, 64 * kBytes);  // host segments of 64 storages
  for (std::uint64_t i = 0; i < 600; ++i) {
    StorageRef a = rig.make(i);
    CHECK(rig.evict(a));
    fake::Scope scope;
    rig.engine->page_in(a.get(), stream(0), lms::Reclaim::kAllowed);  // and no op looks after it
    CHECK(a->guarded);
    a.reset();
    rig.device.drain();
  }
  CHECK_EQ(rig.pool.stats().segments, 1u);
  rig.check();
}

// Nor does the copy of what was written past every op, or given other memory.
TEST(engine_takes_stale_copies_before_more_host_memory) {
  Rig rig(8, 2 * kBytes);
  StorageRef a = rig.make(1), b = rig.make(2), c = rig.make(3);
  CHECK(rig.evict(a) && rig.evict(b));
  rig.use(&a);
  rig.use(&b);
  rig.backend.write_pointer(a.get());
  rig.write(a, 4, stream(0));
  rig.device.drain();
  CHECK(rig.evict(c));
  CHECK_EQ(rig.pool.stats().segments, 1u);
  CHECK(!a->guarded && b->guarded);
  CHECK_EQ(rig.stats().silent_writes, 1);
  rig.backend.write_pointer(b.get());  // the barrier is armed as before
  rig.write(b, 5, stream(0));
  CHECK(rig.evict(b));
  CHECK(rig.has(a, 4) && rig.has(b, 5) && rig.has(c, 3));
  rig.check();
}

// At the limit that is enough: copies of what lives stay.
TEST(engine_takes_the_copies_of_the_dead_at_the_limit) {
  Rig rig(8, 2 * kBytes);
  rig.pool.set_limit(2 * kBytes);
  StorageRef a = rig.make(1), b = rig.make(2), c = rig.make(3);
  CHECK(rig.evict(a) && rig.evict(b));
  rig.use(&a);
  rig.use(&b);
  a.reset();
  CHECK(rig.evict(c));
  CHECK(b->guarded);
  CHECK_EQ(rig.stats().host_refused, 0);
  CHECK(rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

// With no need of the room, too: ops look at copies in turn.
TEST(engine_lets_the_copies_of_the_dead_go) {
  Rig rig;
  std::vector<StorageRef> made;
  for (std::uint64_t i = 0; i < 10; ++i) made.push_back(rig.make(i));
  for (StorageRef& storage : made) CHECK(rig.evict(storage));
  for (StorageRef& storage : made) rig.use(&storage);
  StorageRef kept = std::move(made.front());
  made.clear();
  StorageRef other = rig.make(11);
  for (int i = 0; i < 5; ++i) rig.use(&other);
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, kBytes);
  CHECK(kept->guarded && rig.has(kept, 0));
  rig.check();
}

// ---- order

TEST(engine_evicts_after_every_stream) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1);
    rig.device.drain();
    rig.device.set_seed(seed);
    rig.use(&a, Access::kWrite, stream(2));
    rig.write(a, 2, stream(2));
    CHECK(rig.evict(a));
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

// What is queued later on the stream of the last use has nothing to do with it.
TEST(engine_evicts_after_the_last_use_alone) {
  int before_later_work[] = {0, 0};  // where moves began before the last use, or after it
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1), other = rig.make(3);
    const bool ended_before_moves = seed % 2 == 1;
    if (!ended_before_moves) CHECK(rig.evict(other));
    rig.device.drain();
    rig.device.set_seed(seed);
    rig.run_op(&a, stream(0), [&] { rig.write(a, 2, stream(0)); });
    if (ended_before_moves) CHECK(rig.evict(other));
    bool later = false;
    rig.device.launch(stream(0), [&later] { later = true; });
    CHECK(rig.evict(a));
    const lms::MarkPtr copied = *a->written.begin();
    while (!copied->done()) rig.device.run(1);
    if (!later) ++before_later_work[ended_before_moves];
    CHECK(rig.has(a, 2));
    rig.check();
  }
  CHECK(before_later_work[false] > 0 && before_later_work[true] > 0);
}

// Of uses that ended before, each on its stream; it is after them alone.
TEST(engine_marks_each_stream_when_something_moves_first) {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1), b = rig.make(2), first = rig.make(3);
    rig.use(&first);
    rig.device.drain();
    rig.device.set_seed(seed);
    rig.run_op(&a, stream(0), [&] { rig.read(a, 1, stream(0)); });
    rig.run_op(&b, stream(0), [] {});
    rig.run_op(&b, stream(1), [&] { rig.write(b, 4, stream(1)); });
    CHECK(rig.evict(first) && rig.evict(a) && rig.evict(b));
    CHECK(rig.backend.knew_last_uses);
    CHECK(rig.has(a, 1) && rig.has(b, 4) && rig.has(first, 3));
    rig.check();
  }
}

// What is not known of a storage is not known by that either.
TEST(engine_marks_no_use_that_was_not_an_op_s) {
  Rig rig;
  StorageRef noted = rig.make(1), pinned = rig.make(2), exposed = rig.make(3), told = rig.make(4),
             replaced = rig.make(5), first = rig.make(6);
  for (StorageRef* used : {&noted, &pinned, &exposed, &told, &replaced, &first}) rig.use(used);
  rig.engine->note(nullptr, noted.get(), stream(0));
  rig.engine->pin(pinned.get(), stream(0));
  rig.engine->unpin(pinned.get());
  rig.engine->expose(exposed.get(), stream(0));
  rig.engine->unexpose(exposed.get());
  rig.engine->written(told.get());
  rig.backend.replace(replaced.get(), kBytes,
                      [](const void*, void* to) { fake::fill(to, kBytes, 7); });
  CHECK(rig.evict(first) && rig.backend.knew_last_uses);
  for (StorageRef* used : {&noted, &pinned, &exposed, &told, &replaced}) {
    CHECK(rig.evict(*used) && !rig.backend.knew_last_uses);
  }
  rig.check();
}

TEST(engine_tells_the_last_use_on_each_stream) {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Rig rig(1);
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.run_op(&a, stream(0), [] {});
    rig.device.drain();
    rig.device.set_seed(seed);
    rig.run_op(&a, stream(1), [&] { rig.read(a, 1, stream(1)); });
    rig.run_op(&a, stream(0), [&] { rig.read(a, 1, stream(0)); });
    CHECK(rig.evict(a));
    CHECK(rig.backend.knew_last_uses);
    StorageRef b = rig.make(2);  // in the same block
    rig.check();
  }
}

// Who used it past every op since may still be using it.
TEST(engine_knows_no_last_use_after_what_no_op_tells) {
  Rig rig;
  const auto known = [&rig](StorageRef* storage) {
    CHECK(rig.evict(*storage));
    return rig.backend.knew_last_uses;
  };
  const auto used = [&rig](std::uint64_t tag) {
    StorageRef storage = rig.make(tag);
    rig.use(&storage);
    return storage;
  };
  StorageRef a = used(1);
  CHECK(known(&a));
  StorageRef noted = used(2);
  rig.engine->note(nullptr, noted.get(), stream(0));
  CHECK(!known(&noted));
  StorageRef pinned = used(3);
  rig.engine->pin(pinned.get(), stream(1));
  rig.use(&pinned);
  rig.use(&pinned, Access::kRead, stream(1));
  rig.engine->unpin(pinned.get());
  CHECK(!known(&pinned));
  StorageRef exposed = used(4);
  rig.engine->expose(exposed.get(), stream(0));
  rig.use(&exposed);
  rig.engine->unexpose(exposed.get());
  CHECK(!known(&exposed));
  rig.use(&a);  // comes in, and keeps a copy
  rig.backend.write_pointer(a.get());
  CHECK(!known(&a));
  StorageRef written = used(5);
  rig.engine->written(written.get());
  CHECK(!known(&written));
  StorageRef small = used(6);
  rig.engine->set_min_bytes(2 * kBytes);
  rig.use(&small);
  CHECK(!known(&small));
  rig.check();
}

// The uses that are known are of other memory.
TEST(engine_knows_no_last_use_of_a_new_pointer) {
  for (bool op_between : {false, true}) {
    Rig rig;
    StorageRef a = rig.make(1);
    rig.use(&a);
    rig.use(&a, Access::kRead, stream(1));
    rig.device.drain();
    rig.backend.replace(a.get(), kBytes, [](const void*, void* to) { fake::fill(to, kBytes, 2); });
    if (op_between) rig.use(&a);
    CHECK(rig.evict(a));
    CHECK(!rig.backend.knew_last_uses);
    CHECK(rig.has(a, 2));
    rig.check();
  }
}

TEST(engine_waits_for_arrival_on_every_stream) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1);
    rig.device.set_seed(seed);
    CHECK(rig.evict(a));
    rig.use(&a, Access::kRead, stream(1));
    rig.read(a, 1, stream(1));
    rig.use(&a, Access::kRead, stream(2));
    rig.read(a, 1, stream(2));
    rig.check();
  }
}

TEST(engine_note_waits_for_arrival) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig;
    StorageRef a = rig.make(1);
    rig.device.set_seed(seed);
    CHECK(rig.evict(a));
    rig.use(&a, Access::kRead, stream(1));
    rig.engine->note(nullptr, a.get(), stream(2));
    rig.use(&a, Access::kRead, stream(2));
    rig.read(a, 1, stream(2));
    rig.check();
  }
}

// The stream that it was made for waits for what it owes, and is the only one that does.
TEST(engine_new_memory_waits_for_copies_on_every_stream) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (bool noted : {false, true}) {
      Rig rig(1);
      StorageRef a = rig.make(1);
      rig.device.set_seed(seed);
      CHECK(rig.evict(a));
      StorageRef b = rig.backend.create(kBytes, stream(0));
      if (noted) rig.engine->note(nullptr, b.get(), stream(0));
      rig.use(&b, Access::kWrite, stream(1));
      rig.write(b, 2, stream(1));
      CHECK(rig.has(a, 1));
      rig.check();
    }
  }
}

// No copy out is after the last use of what had its bytes on the host already.
TEST(engine_new_memory_waits_for_who_left_without_a_copy) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig(1);
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    rig.use(&a);
    rig.device.drain();
    rig.device.set_seed(seed);
    Engine::Frame frame;
    rig.enter(&frame, {{&a, Access::kRead}});
    rig.read(a, 1, stream(0));
    rig.engine->leave(frame);
    CHECK(rig.evict(a));
    CHECK_EQ(rig.stats().clean_evictions, 1);
    StorageRef b = rig.backend.create(kBytes, stream(0));
    rig.use(&b, Access::kWrite, stream(1));
    rig.write(b, 2, stream(1));
    rig.check();
  }
}

// Whoever had the memory in between, and did nothing there: other streams have still to wait.
TEST(engine_memory_given_twice_waits_for_the_copy_out_on_every_stream) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig(1);
    StorageRef a = rig.make(1);
    rig.device.set_seed(seed);
    CHECK(rig.evict(a));
    rig.backend.create(kBytes, stream(0));  // and it dies
    StorageRef b = rig.backend.create(kBytes, stream(0));
    rig.use(&b, Access::kWrite, stream(1));
    rig.write(b, 2, stream(1));
    CHECK(rig.has(a, 1));
    rig.check();
  }
}

TEST(engine_other_memory_waits_for_copies_on_every_stream) {
  enum { kBetweenOps, kInAnOp, kWithinTheOpThatUsesIt };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (int when : {kBetweenOps, kInAnOp, kWithinTheOpThatUsesIt}) {
      Rig rig(3);
      StorageRef a = rig.make(1), b = rig.make(2), c = rig.make(3);
      rig.use(&b, Access::kWrite, stream(1));
      rig.device.drain();
      rig.device.set_seed(seed);
      CHECK(rig.evict(a));
      fake::Scope scope;
      Engine::Frame frame;
      if (when == kWithinTheOpThatUsesIt) rig.enter(&frame, {{&b, Access::kWrite}});
      const auto replace = [&] { rig.backend.replace(b.get(), kBytes, [](const void*, void*) {}); };
      when == kInAnOp ? rig.run_op(&b, stream(0), replace) : replace();
      if (when == kInAnOp) rig.backend.create(kBytes, stream(0));  // that of another op
      rig.enter(&frame, {{&b, Access::kWrite}}, stream(1));
      rig.write(b, 4, stream(1));
      rig.engine->leave(frame);
      CHECK(rig.has(a, 1));
      rig.check();
    }
  }
}

// Another storage has had it meanwhile.
TEST(engine_other_memory_may_be_where_it_was) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig(1);
    StorageRef a = rig.make(1);
    void* where = a->ptr;
    rig.use(&a, Access::kWrite, stream(1));
    CHECK(rig.evict(a));
    StorageRef b = rig.make(2);
    rig.device.drain();
    rig.device.set_seed(seed);
    CHECK(rig.evict(b));
    rig.backend.replace(a.get(), kBytes, [](const void*, void*) {});
    CHECK(a->ptr == where);
    rig.use(&a, Access::kWrite, stream(1));
    rig.write(a, 3, stream(1));
    CHECK(rig.has(b, 2));
    rig.check();
  }
}

TEST(engine_frees_a_range_only_after_the_copy_from_it) {
  for (Access access : {Access::kWrite, Access::kRead}) {
    Rig rig;
    StorageRef a = rig.make(1), b = rig.make(2);
    CHECK(rig.evict(a));
    void* range = a->ptr;
    rig.device.drain();
    rig.use(&a, access);
    if (access == Access::kRead) rig.use(&a, Access::kWrite);  // drops the copy
    CHECK(rig.evict(b));
    CHECK(b->ptr != range);
    CHECK_EQ(rig.device.host_waits(), 0u);  // nor is it waited for while there is other room
    CHECK(rig.has(a, 1) && rig.has(b, 2));
    rig.check();
  }
}

TEST(engine_waits_for_a_range_at_the_limit) {
  Rig rig;
  rig.pool.set_limit(kBytes);
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(a));
  rig.device.drain();
  rig.use(&a, Access::kWrite);
  CHECK(rig.evict(b));
  CHECK_EQ(rig.device.host_waits(), 1u);
  CHECK(rig.has(a, 1) && rig.has(b, 2));
  rig.check();
}

// ---- failures

TEST(engine_overwrite_brings_no_bytes) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(a));
  CHECK(rig.evict(b));
  fake::Scope scope;
  Engine::Frame frame;
  Engine::Overwritten old;
  rig.enter(&frame, {{&a, Access::kOverwrite}, {&b, Access::kRead}}, stream(0), &old);
  rig.write(a, 3, stream(0));
  rig.read(b, 2, stream(0));
  rig.engine->overwrote(&old);
  CHECK(old.key == nullptr);
  rig.engine->leave(frame);
  CHECK_EQ(rig.backend.counts.overwrites, 1);
  CHECK_EQ(rig.backend.counts.ins, 1);
  CHECK_EQ(rig.stats().overwrites, 1);
  CHECK_EQ(rig.stats().overwrite_bytes, static_cast<std::int64_t>(kBytes));
  CHECK(rig.engine->evict(a.get()));
  CHECK(rig.has(a, 3) && rig.has(b, 2));
  rig.check();
}

// The op does not run, so what it would have overwritten is still wanted.
TEST(engine_failed_enter_loses_nothing) {
  for (int failing = 1; failing <= 4; ++failing) {
    Rig rig;
    StorageRef a = rig.make(1), b = rig.make(2), c = rig.make(3), d = rig.make(4);
    for (StorageRef* one : {&a, &b, &c, &d}) CHECK(rig.evict(*one));
    fake::Scope scope;
    Engine::Frame frame;
    rig.backend.fail_page_in = failing;
    Engine::Overwritten old;
    CHECK_THROWS(rig.enter(&frame,
                           {{&a, Access::kOverwrite},
                            {&b, Access::kRead},
                            {&c, Access::kOverwrite},
                            {&d, Access::kWrite}},
                           stream(0), &old),
                 fake::OutOfMemory);
    CHECK(old.key == nullptr);
    CHECK_EQ(rig.stats().pinned.count.current, 4);
    rig.engine->leave(frame);
    CHECK_EQ(rig.stats().pinned.count.current, 0);
    CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3) && rig.has(d, 4));
    rig.check();
  }
}

// An op may fail at any time before it has written: on another stream than the storage was made on,
// while somebody else has it pinned, and when it is used elsewhere at once.
TEST(engine_failed_overwrite_has_its_bytes_again) {
  for (const bool pinned : {false, true}) {
    Rig rig;
    StorageRef a = rig.make(1);
    CHECK(rig.evict(a));
    fake::Scope scope;
    Engine::Frame frame;
    Engine::Overwritten old;
    rig.enter(&frame, {{&a, Access::kOverwrite}}, stream(1), &old);
    CHECK(old.key == a.get());
    if (pinned) rig.engine->pin(a.get(), stream(0));
    rig.engine->restore(&old);
    CHECK(old.key == nullptr);
    rig.engine->leave(frame);
    rig.use(&a, Access::kRead, stream(0));
    rig.read(a, 1, stream(0));
    CHECK_EQ(rig.stats().overwrites, 0);
    CHECK_EQ(rig.stats().paged_in, 1);
    if (pinned) rig.engine->unpin(a.get());
    CHECK(rig.evict(a) && rig.has(a, 1));
    rig.check();
  }
}

// Nothing can be done for the storage then, but host memory is not lost.
TEST(engine_failed_restore_lets_the_range_go) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  fake::Scope scope;
  Engine::Frame frame;
  Engine::Overwritten old;
  rig.enter(&frame, {{&a, Access::kOverwrite}}, stream(0), &old);
  rig.backend.fail_page_in = 1;
  CHECK_THROWS(rig.engine->restore(&old), fake::BackendError);
  rig.engine->leave(frame);
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, std::size_t{0});
  rig.check();
}

// It runs in destructors.
TEST(engine_leave_never_throws) {
  Rig rig;
  rig.engine->set_chaos(true);
  StorageRef a = rig.make(1);
  rig.backend.fail_page_out = 1;
  rig.use(&a);
  CHECK(rig.resident(a));
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  rig.backend.fail_mark = 1;
  rig.use(&a);
  CHECK(!rig.resident(a) && !rig.backend.knew_last_uses);
  CHECK(rig.has(a, 1));
  rig.check();
}

TEST(engine_host_limit_keeps_storages_on_the_device) {
  Rig rig;
  rig.pool.set_limit(kBytes);
  StorageRef a = rig.make(1), b = rig.make(2);
  fake::Scope scope;
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), kBytes);
  CHECK_EQ(rig.stats().host_refused, 1);
  CHECK_EQ(rig.pool.stats().reserved, kBytes);
  CHECK(rig.resident(a) != rig.resident(b));
  CHECK(rig.has(a, 1) && rig.has(b, 2));
  rig.check();
}

// ---- what stays

TEST(engine_exposed_is_never_evicted) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);  // with a copy
  fake::Scope scope;
  rig.engine->expose(a.get(), stream(1));
  CHECK(rig.engine->exposed(a.get()));
  rig.write(a, 2, stream(1));
  a->held = 1;
  CHECK(!rig.engine->evict(a.get()));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  rig.use(&a);
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  a->held = 0;
  rig.engine->unexpose(a.get());
  CHECK(rig.engine->evict(a.get()));
  CHECK_EQ(rig.backend.counts.clean_outs, 0);
  CHECK(rig.has(a, 2));
  rig.check();
}

TEST(engine_excluded_is_never_evicted) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  fake::Scope scope;
  rig.engine->exclude(a.get(), stream(1));
  CHECK(rig.engine->excluded(a.get()));
  CHECK(rig.resident(a));
  CHECK(!rig.engine->evict(a.get()));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  rig.backend.write_pointer(a.get());
  rig.write(a, 2, stream(0));
  rig.engine->include(a.get());
  CHECK(rig.engine->evict(a.get()));
  CHECK(rig.has(a, 2));
  rig.check();
}

TEST(engine_respects_the_minimum_size) {
  Rig rig;
  rig.engine->set_min_bytes(kBytes);
  StorageRef small = rig.make(1, kBytes - 1), large = rig.make(2, kBytes);
  fake::Scope scope;
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kFromMinimum).size(), 1u);
  CHECK_EQ(rig.engine->census(0).small, 1u);
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kFromMinimum), kBytes);
  CHECK(rig.resident(small) && !rig.resident(large));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), kBytes - 1);
  CHECK(!rig.resident(small));
  rig.check();
}

// What is too small is not even looked at before the rest did not suffice.
TEST(engine_does_not_look_at_what_is_too_small) {
  Rig rig(256);
  rig.engine->set_min_bytes(kBytes);
  std::vector<StorageRef> small;
  for (std::uint64_t i = 0; i < 100; ++i) small.push_back(rig.make(i, kBytes / 2));
  StorageRef large = rig.make(200);
  fake::Scope scope;
  const std::int64_t before = rig.backend.looks;
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kFromMinimum).size(), 1u);
  CHECK_EQ(rig.backend.looks - before, 1);
  const auto all = rig.engine->candidates(0, lms::Sizes::kAny);
  CHECK_EQ(all.size(), 101u);
  CHECK(all.front().key == small.front().get() && all.back().key == large.get());
  rig.use(&small.front());
  CHECK(rig.engine->candidates(0, lms::Sizes::kAny).back().key == small.front().get());
  rig.engine->set_min_bytes(0);
  const auto now = rig.engine->candidates(0, lms::Sizes::kFromMinimum);
  CHECK_EQ(now.size(), 101u);
  CHECK(now.front().key == small[1].get() && now.back().key == small.front().get());
  rig.check();
}

// An op may give a storage more memory than it was known with.
TEST(engine_looks_at_what_has_grown) {
  Rig rig;
  rig.engine->set_min_bytes(kBytes);
  StorageRef a = rig.make(1, kBytes / 2), b = rig.make(2, kBytes / 2);
  {
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&a, Access::kWrite}});
    rig.backend.replace(a.get(), kBytes, [](const void*, void*) {});
    rig.engine->leave(frame);
    rig.backend.replace(b.get(), kBytes, [](const void*, void*) {});
    rig.engine->note(nullptr, b.get(), stream(0));
  }
  fake::Scope scope;
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kFromMinimum).size(), 2u);
  rig.check();
}

TEST(engine_leaves_what_cannot_move) {
  Rig rig;
  StorageRef a = rig.make(1);
  rig.backend.immovable = true;
  CHECK(!rig.evict(a));
  rig.backend.immovable = false;
  StorageRef b = rig.make(2);
  void* ptr = b->ptr;
  b->place = Place::kForeign;
  rig.use(&b, Access::kWrite);
  CHECK(!rig.evict(b));
  CHECK(b->ptr == ptr);
  b->place = Place::kDevice;
  rig.check();
}

// ---- policy

TEST(engine_prefers_old_and_clean) {
  Rig rig;
  StorageRef clean = rig.make(1);
  CHECK(rig.evict(clean));
  rig.use(&clean);
  StorageRef old = rig.make(2), recent = rig.make(3);
  rig.use(&old);
  rig.use(&recent);
  fake::Scope scope;
  const auto candidates = rig.engine->candidates(0, lms::Sizes::kAny);
  CHECK_EQ(candidates.size(), 3u);
  const auto cost = [&](const StorageRef& storage) {
    return std::find_if(candidates.begin(), candidates.end(),
                        [&](const lms::Candidate& one) { return one.key == storage.get(); })
        ->cost;
  };
  CHECK(cost(clean) < cost(old));
  CHECK(cost(old) < cost(recent));
}

TEST(engine_chaos_evicts_after_every_op) {
  Rig rig;
  rig.engine->set_chaos(true);
  StorageRef a = rig.make(1), b = rig.make(2);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}});
  CHECK(rig.resident(b));
  rig.engine->leave(frame);
  CHECK(!rig.resident(a) && !rig.resident(b));
  rig.engine->set_chaos(false);
  rig.use(&a);
  CHECK(rig.resident(a));
  rig.check();
}

TEST(engine_page_in_all_brings_what_fits) {
  Rig rig(2);
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  StorageRef b = rig.make(2), c = rig.make(3);
  CHECK(rig.evict(b));
  CHECK(rig.evict(c));
  fake::Scope scope;
  CHECK_EQ(rig.engine->page_in_all([](int) { return stream(1); }), 1u);
  CHECK_EQ(static_cast<int>(rig.resident(a)) + rig.resident(b) + rig.resident(c), 2);
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

// So that the same program does the same in each run, wherever its storages are.
TEST(engine_page_in_all_begins_with_what_was_used_last) {
  Rig rig(2);
  std::vector<StorageRef> made;
  for (int i = 0; i < 8; ++i) {
    made.push_back(rig.make(1));
    CHECK(rig.evict(made.back()));
  }
  for (const std::size_t i : {5u, 2u, 7u, 0u}) {
    rig.use(&made[i]);
    CHECK(rig.evict(made[i]));
  }
  fake::Scope scope;
  CHECK_EQ(rig.engine->page_in_all([](int) { return stream(0); }), 6u);
  CHECK(rig.resident(made[0]) && rig.resident(made[7]));
  rig.check();
}

// ---- the table

TEST(engine_forgets_the_dead) {
  Rig rig;
  for (int i = 0; i < 3000; ++i) {
    StorageRef a = rig.backend.create(kBytes, stream(0));
    rig.use(&a, Access::kWrite);
    if (i % 3 == 0) CHECK(rig.evict(a));
    if (i % 6 == 0) rig.use(&a);  // dies with a copy on the host
    CHECK(rig.backend.retained.size() < 600);
    if (i % 64 == 0) rig.device.drain();
  }
  rig.engine->purge();
  CHECK_EQ(rig.backend.retained.size(), 0u);
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, 0u);
  CHECK(rig.pool.trim() > 0);
  CHECK_EQ(rig.pool.stats().reserved, 0u);
  rig.check();
}

// What is alive but cannot be taken now is left where it is, and nothing of it is trusted or lost.
TEST(engine_leaves_what_is_out_of_reach) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(b));
  a->out_of_reach = b->out_of_reach = true;
  fake::Scope scope;
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kAny).size(), 0u);
  CHECK(!rig.engine->evict(a.get()));
  CHECK_EQ(rig.engine->page_in_all([](int) { return stream(0); }), 0u);
  CHECK(!rig.resident(b));
  rig.engine->purge();
  CHECK_EQ(rig.backend.retained.size(), 2u);
  rig.use(&b);  // comes in, but no copy is kept that no barrier guards
  CHECK(!b->guarded);
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, 0u);
  a->out_of_reach = b->out_of_reach = false;
  rig.write(b, 3, stream(0));
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 2 * kBytes);
  CHECK(rig.has(a, 1) && rig.has(b, 3));
  rig.check();
}

// Its barrier stays when its copy makes way, and is known to be there.
TEST(engine_drops_a_copy_out_of_reach) {
  Rig rig;
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);
  CHECK(a->guarded);
  a->out_of_reach = true;
  fake::Scope scope;
  rig.engine->drop_copies();
  rig.device.drain();
  CHECK_EQ(rig.pool.stats().used, 0u);
  CHECK(a->guarded && a->intact);
  a->out_of_reach = false;
  CHECK(rig.evict(a));
  CHECK(!a->guarded);
  CHECK_EQ(rig.stats().clean_evictions, 0);
  CHECK(rig.has(a, 1));
  rig.check();
}

TEST(engine_keeps_the_dead_while_pinned) {
  Rig rig;
  StorageRef a = rig.make(1);
  lms::Key key = a.get();
  rig.engine->pin(key, stream(0));
  a.reset();
  fake::Scope scope;
  rig.engine->purge();
  CHECK_EQ(rig.backend.retained.size(), 1u);
  CHECK_EQ(rig.engine->census(0).tracked, 0u);
  CHECK_EQ(rig.engine->evict_all(0, lms::Sizes::kAny), 0u);
  rig.engine->unpin(key);
  rig.engine->purge();
  CHECK_EQ(rig.backend.retained.size(), 0u);
  rig.check();
}

// An owner that is not counted says when it dies, under a pin or not: from then on its frame must
// not touch it.
TEST(engine_tells_what_a_frame_has_pinned) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2, 2 * kBytes), c = rig.make(3, 3 * kBytes);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}, {&b, Access::kRead}, {&a, Access::kRead}});
  rig.engine->pin(c.get(), stream(0));
  CHECK_EQ(rig.engine->bytes_of(frame), 3 * kBytes);
  CHECK_EQ(rig.engine->census(0).pinned_bytes, 6 * kBytes);
  CHECK_EQ(rig.engine->census(0).held_bytes, 3 * kBytes);
  CHECK_EQ(rig.engine->census(0).largest_pinned, 2 * kBytes);
  rig.engine->unpin(c.get());
  rig.engine->leave(frame);
  CHECK(rig.engine->all_out().empty());
  CHECK(rig.engine->evict(b.get()));
  CHECK(rig.engine->all_out() == std::vector<lms::Key>{b.get()});
  rig.check();
}

// An op that runs many others, and is still running.
TEST(engine_forgets_the_dead_that_no_op_used) {
  Rig rig;
  for (int i = 0; i < 3000; ++i) {
    const fake::Scope scope;
    StorageRef a = rig.backend.create(kBytes, stream(0));
    rig.engine->note(nullptr, a.get(), stream(0));
    CHECK(rig.backend.retained.size() < 600);
  }
  rig.check();
}

TEST(engine_lets_go_of_what_died_under_a_long_op) {
  Rig rig;
  fake::Scope outer;
  Engine::Frame frame;
  StorageRef input = rig.make(1), result = rig.make(2);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    fake::Scope inner;
    rig.enter(&frame, {{&input, Access::kRead}});
    StorageRef temporary = rig.backend.create(kBytes, stream(0));
    rig.engine->note(&frame, temporary.get(), stream(0));
    if (i == 3) rig.engine->note(&frame, result.get(), stream(0));
    rig.device.drain();
  }
  CHECK(rig.backend.retained.size() < 1000);
  CHECK(rig.stats().pinned.count.current < 1000);
  CHECK(!rig.engine->evict(input.get()) && !rig.engine->evict(result.get()));
  rig.engine->leave(frame);
  CHECK_EQ(rig.stats().pinned.count.current, 0);
  CHECK_EQ(rig.stats().pinned.bytes.current, 0);
  CHECK(rig.engine->evict(input.get()) && rig.engine->evict(result.get()));
  rig.check();
}

TEST(engine_forgets_the_pinned_at_once) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kWrite}, {&b, Access::kRead}});
  rig.engine->forget(a.get());
  CHECK_EQ(rig.backend.retained.size(), 1u);
  CHECK(!rig.engine->pinned(a.get()) && rig.engine->pinned(b.get()));
  rig.engine->note(nullptr, a.get(), stream(0));  // another one, at the same address
  CHECK(rig.engine->evict(a.get()));
  rig.engine->leave(frame);
  CHECK(rig.engine->evict(b.get()));
  CHECK(rig.engine->candidates(0, lms::Sizes::kAny).empty());  // looks at none that is gone
  CHECK(rig.has(a, 1) && rig.has(b, 2));
  rig.check();
}

TEST(engine_lets_go_of_all_at_its_end) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2);
  CHECK(rig.evict(a));
  rig.use(&a);
  rig.device.drain();
  rig.engine.reset();
  CHECK_EQ(rig.backend.retained.size(), 0u);
  CHECK_EQ(rig.pool.stats().used, 0u);
  CHECK(rig.has(a, 1) && rig.has(b, 2));
}

// ---- ahead of need

TEST(engine_pages_in_where_room_is_free) {
  Rig rig(2);
  StorageRef a = rig.make(1), b = rig.make(2);
  fake::Scope scope;
  CHECK(rig.evict(a));
  StorageRef c = rig.make(3);
  CHECK(!rig.engine->page_in(a.get(), stream(0), lms::Reclaim::kNone));
  CHECK(!rig.resident(a) && rig.resident(b) && rig.resident(c));
  CHECK(rig.evict(b));
  CHECK(rig.engine->page_in(a.get(), stream(0), lms::Reclaim::kNone));
  CHECK(rig.resident(a) && rig.resident(c));
  CHECK_EQ(rig.engine->census(0).pinned, 0u);
  CHECK(rig.engine->page_in(a.get(), stream(0), lms::Reclaim::kNone));  // it is there already
  CHECK_EQ(rig.stats().paged_in, 1);
  CHECK(rig.evict(a));
  CHECK_EQ(rig.stats().clean_evictions, 1);  // nobody wrote to it
  CHECK(rig.engine->page_in(b.get(), stream(0), lms::Reclaim::kAllowed));
  CHECK(rig.engine->page_in(a.get(), stream(0), lms::Reclaim::kAllowed));
  CHECK(rig.resident(a));
  CHECK(rig.has(a, 1) && rig.has(b, 2) && rig.has(c, 3));
  rig.check();
}

// ---- time and cost

struct AgeIsCost final : lms::Cost {
  double evict(const lms::Eviction& eviction) const override {
    return static_cast<double>(eviction.age);
  }
  double replace_segments(std::size_t) const override { return 0; }
};

struct AllIsCost final : lms::Cost {
  double evict(const lms::Eviction& eviction) const override {
    return static_cast<double>(eviction.candidates);
  }
  double replace_segments(std::size_t) const override { return 0; }
};

TEST(engine_evicting_two_costs_more_than_one_as_large) {
  Rig rig(4);
  StorageRef a = rig.make(1), b = rig.make(2), pinned = rig.make(3);
  fake::Scope scope;
  rig.engine->pin(pinned.get(), stream(0));
  const auto candidates = rig.engine->candidates(0, lms::Sizes::kAny, AllIsCost());
  CHECK_EQ(candidates.size(), 2u);
  CHECK(candidates[0].cost == static_cast<double>(a->bytes + b->bytes));
  rig.engine->unpin(pinned.get());
  const std::size_t bytes = std::size_t{8} << 20, all = std::size_t{4} << 30;
  const auto cost = [&](std::size_t of) {
    return lms::default_cost().evict({of, false, 0, 0, all});
  };
  CHECK(cost(2 * bytes) < 2 * cost(bytes));
  CHECK(cost(2 * bytes) > cost(bytes));
}

// While an op of one device is left, under the lock.
class Leaving {
 public:
  Leaving(Rig* rig, StorageRef* storage) : state_(std::make_shared<State>()) {
    rig->backend.before_mark = [state = state_, its = (*storage)->device](int device) {
      if (device != its) return;
      state->begun = true;
      while (!state->may_end) std::this_thread::yield();
    };
    thread_ = std::thread([rig, storage] { rig->use(storage); });
    while (!state_->begun) std::this_thread::yield();
  }
  ~Leaving() {
    state_->may_end = true;
    thread_.join();
  }

 private:
  struct State {
    std::atomic<bool> begun{false}, may_end{false};
  };
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

TEST(engine_ops_of_two_devices_do_not_wait_for_each_other) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2, kBytes, 1), c = rig.make(3, kBytes, 1);
  {
    const Leaving leaving(&rig, &a);
    rig.use(&b, Access::kWrite);
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&b, Access::kRead}, {&c, Access::kRead}});
    rig.engine->note(&frame, b.get(), stream(0), 0, 1);
    const Use made = {c.get(), Access::kWrite, stream(0)};
    rig.engine->leave(frame, &made, 1, 1);
  }
  CHECK_EQ(rig.engine->stats(0).used, 1);
  CHECK_EQ(rig.engine->stats(1).used, 3);
  CHECK_EQ(rig.engine->stats(1).pinned.count.current, 0);
}

TEST(engine_waits_for_ops_of_all_devices_before_it_moves_anything) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2, kBytes, 1);
  const auto waits = [&](const std::function<void()>& act) {
    std::atomic<bool> done{false};
    std::thread other;
    bool waited = false;
    {
      const Leaving leaving(&rig, &a);
      other = std::thread([&] {
        act();
        done = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      waited = !done;
    }
    other.join();
    return waited;
  };
  CHECK(waits([&] { CHECK(rig.evict(b)); }));
  CHECK(waits([&] { rig.use(&b); }));  // which comes in
  CHECK(rig.resident(b));
  CHECK(waits([&] {  // an op of both, or of one that nobody tells of
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&b, Access::kRead}, {&a, Access::kRead}});
    rig.engine->leave(frame);
  }));
  CHECK(waits([&] {
    fake::Scope scope;
    Engine::Frame frame;
    const Use use = {b.get(), Access::kRead, stream(0)};
    rig.engine->enter(frame, &use, 1);
    rig.engine->leave(frame);
  }));
  const auto makes = [&](const std::vector<Use>& made, int device) {
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&b, Access::kRead}});
    rig.engine->leave(frame, made.data(), made.size(), device);
  };
  const Use of_a = {a.get(), Access::kWrite, stream(0)},
            of_b = {b.get(), Access::kWrite, stream(0)};
  CHECK(!waits([&] { makes({of_b}, 1); }));
  CHECK(waits([&] { makes({of_b, of_a}, -1); }));
  CHECK(waits([&] { makes({of_a}, 0); }));
  rig.engine->set_chaos(true);
  CHECK(waits([&] { rig.use(&b); }));
  CHECK(!rig.resident(b));
}

TEST(engine_keeps_its_lock_for_who_has_it) {
  Rig rig;
  StorageRef a = rig.make(1);
  const pid_t child = fork();  // which can be left waiting
  if (child == 0) {
    alarm(10);
    const lms::EngineLock lock(rig.engine->mutex());
    rig.use(&a);
    const lms::EngineLock again(rig.engine->mutex());
    rig.use(&a, Access::kWrite);
    _exit(rig.stats().used == 2 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

TEST(engine_has_a_time_for_each_device) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2, kBytes, 1), other = rig.make(4, kBytes, 2);
  rig.use(&a);
  for (int i = 0; i < 10; ++i) rig.use(&b);
  fake::Scope scope;
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kAny, AgeIsCost())[0].cost, 0);
  Engine::Frame frame;
  for (int i = 0; i < 3; ++i) {  // of both
    rig.enter(&frame, {{&a, Access::kRead}, {&b, Access::kRead}});
    rig.engine->leave(frame);
  }
  StorageRef c = rig.make(3);
  rig.use(&c);
  CHECK_EQ(rig.engine->candidates(0, lms::Sizes::kAny, AgeIsCost())[0].cost, 1);
  CHECK_EQ(rig.engine->candidates(2, lms::Sizes::kAny, AgeIsCost())[0].cost, 0);
}

TEST(engine_follows_a_storage_to_another_device) {
  Rig rig;
  StorageRef a = rig.make(1), b = rig.make(2, kBytes, 1);
  CHECK(rig.evict(b));  // there are marks from now on
  rig.use(&b);
  {
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&a, Access::kRead}});
    a->device = 1;
    a->renumbered = true;
    rig.use(&a, Access::kWrite);
    CHECK(!rig.engine->evict(a.get()));
    rig.engine->leave(frame);
  }
  CHECK_EQ(rig.engine->stats(1).used, 2);
  {
    fake::Scope scope;
    Engine::Frame frame;
    rig.enter(&frame, {{&a, Access::kRead}});
    CHECK(!rig.engine->evict(a.get()));
    rig.engine->leave(frame);
  }
  for (std::uint64_t tag = 3; tag < 20; ++tag) {
    rig.device.drain();
    rig.run_op(&a, stream(1), [&] { rig.write(a, tag, stream(1)); });
    CHECK(rig.evict(a));
    CHECK(rig.backend.knew_last_uses);
    rig.use(&a);
    CHECK(rig.resident(a) && rig.has(a, tag));
  }
  {
    fake::Scope scope;
    CHECK(rig.engine->candidates(0, lms::Sizes::kAny).empty());
    CHECK_EQ(rig.engine->candidates(1, lms::Sizes::kAny).size(), 2u);
    rig.engine->pin(a.get(), stream(0));
    CHECK(rig.engine->pinned(a.get()));
    CHECK(!rig.engine->evict(a.get()));
    rig.engine->unpin(a.get());
  }
  a = StorageRef();
  b = StorageRef();
  fake::Scope scope;
  rig.engine->purge();
  CHECK_EQ(rig.backend.retained.size(), 0u);
}

TEST(engine_follows_what_is_held_to_another_device) {
  using Do = void (*)(Engine&, lms::Key);
  const Do hold[] = {[](Engine& e, lms::Key key) { e.pin(key, stream(0)); },
                     [](Engine& e, lms::Key key) { e.expose(key, stream(0)); },
                     [](Engine& e, lms::Key key) { e.exclude(key, stream(0)); }};
  const Do let_go[] = {[](Engine& e, lms::Key key) { e.unpin(key); },
                       [](Engine& e, lms::Key key) { e.unexpose(key); },
                       [](Engine& e, lms::Key key) { e.include(key); }};
  for (int i = 0; i < 3; ++i) {
    Rig rig;
    StorageRef a = rig.make(1), b = rig.make(2, kBytes, 1);
    {
      fake::Scope scope;
      hold[i](*rig.engine, a.get());
    }
    a->device = 1;
    a->renumbered = true;
    rig.use(&a);
    CHECK(!rig.evict(a));
    {
      fake::Scope scope;
      CHECK_EQ(rig.engine->census(1).tracked, 2u);
      CHECK_EQ(rig.engine->evict_all(1, lms::Sizes::kAny), kBytes);  // of the other
      CHECK_EQ(rig.engine->all_out().size(), 1u);
      Engine::Frame frame;
      rig.enter(&frame, {{&a, Access::kRead}});
      let_go[i](*rig.engine, a.get());
      CHECK(!rig.engine->evict(a.get()));
      rig.engine->leave(frame);
    }
    CHECK(rig.evict(a));
    fake::Scope scope;
    CHECK_EQ(rig.engine->census(0).tracked, 0u);
    CHECK_EQ(rig.engine->stats(0).pinned.count.current, 0);
    CHECK_EQ(rig.engine->stats(1).pinned.count.current, 0);
  }
}

TEST(engine_has_a_time_for_each_lane) {
  Rig rig(3);
  StorageRef slow = rig.make(1), fast = rig.make(2);
  fake::Scope scope;
  const auto run = [&](lms::Lane lane, StorageRef* storage) {
    Engine::Frame frame(lane);
    rig.enter(&frame, {{storage, Access::kRead}});
    rig.engine->leave(frame);
  };
  const auto find = [&](const StorageRef& storage) {
    for (const lms::Candidate& candidate :
         rig.engine->candidates(0, lms::Sizes::kAny, AgeIsCost())) {
      if (candidate.key == storage.get()) return candidate;
    }
    throw std::logic_error("not a candidate");
  };
  const lms::Lane one = rig.engine->open_lane(), two = rig.engine->open_lane();
  run(two, &fast);
  run(one, &slow);
  for (int i = 0; i < 10; ++i) run(two, &fast);
  const lms::Lane elsewhere = rig.engine->open_lane();
  StorageRef other = rig.make(3, kBytes, 1);
  run(elsewhere, &other);  // a lane of another device is not one that could be as fast
  // One lane's ten ops are not the other's, which would have run five if it were as fast.
  CHECK_EQ(find(slow).cost, 5);
  CHECK_EQ(find(fast).cost, 0);
  // Ops of its own count each.
  Engine::Frame frame(one);
  for (int i = 0; i < 6; ++i) rig.engine->leave(frame);
  CHECK_EQ(find(slow).cost, 8);  // half of sixteen
  for (int i = 0; i < 30; ++i) rig.engine->leave(frame);
  CHECK_EQ(find(slow).cost, 36);
  CHECK_EQ(find(fast).cost, 18);
  // A lane that is gone counts no longer.
  rig.engine->close_lane(frame);
  CHECK_EQ(find(fast).cost, 36);
  CHECK_EQ(rig.engine->open_lane(), one);
  rig.check();
}

// A thread's frame, by which it came to own a part of the lock, is gone with the thread.
TEST(engine_forgets_the_frame_of_a_lane_that_is_closed) {
  Rig rig(3);
  StorageRef storage = rig.make(1);
  std::thread([&rig, &storage] {
    const lms::Lane lane = rig.engine->open_lane();
    const std::unique_ptr<Engine::Frame> frame(new Engine::Frame(lane));
    rig.use_often(frame.get(), &storage);
    rig.engine->close_lane(*frame);
    rig.use_often(frame.get(), &storage);  // as what ends with the thread may do
  }).join();
  rig.use(&storage);
  CHECK_EQ(rig.engine->stats(0).used, 1001);
  rig.check();
}

// Nobody says when such a frame goes.
TEST(engine_frames_of_no_lane_own_nothing) {
  Rig rig(3);
  StorageRef storage = rig.make(1);
  std::thread([&rig, &storage] {
    const std::unique_ptr<Engine::Frame> frame(new Engine::Frame);
    rig.use_often(frame.get(), &storage);
  }).join();
  rig.use(&storage);
  CHECK_EQ(rig.engine->stats(0).used, 501);
  rig.check();
}

TEST(engine_asks_for_the_cost) {
  Rig rig(2);
  StorageRef old = rig.make(1), young = rig.make(2);
  rig.use(&old);
  rig.use(&young);
  fake::Scope scope;
  const auto costs = rig.engine->candidates(0, lms::Sizes::kAny, AgeIsCost());
  CHECK_EQ(costs.size(), 2u);
  CHECK(costs[0].key == old.get() && costs[0].cost == 1 && costs[1].cost == 0);
  const auto usual = rig.engine->candidates(0, lms::Sizes::kAny);
  CHECK(usual[0].cost < usual[1].cost);
  rig.check();
}

TEST(cost_is_copies_by_the_time_since_the_last_use) {
  const lms::Cost& cost = lms::default_cost();
  CHECK_EQ(cost.evict({100, false, 9, 9, 0}), 200);
  CHECK_EQ(cost.evict({100, true, 9, 9, 0}), 100);
  CHECK_EQ(cost.evict({1024, true, 0, 15, 0}), 25024);  // (1 + 2 * 15/16) * 17/16 / (1/16 + 1/16)
  CHECK_EQ(cost.evict({1024, true, 2, 15, 0}), 11424);  // (1 + 2 * 13/16) * 17/16 / (3/16 + 1/16)
  CHECK_EQ(cost.evict({100, true, 0, 0, 0}), 100);
}

// Else the tensors of a phase that is over stay, and those of the one that goes on leave for each
// other, because they are smaller.
TEST(cost_of_what_is_over_is_less_than_of_half_as_much_that_is_used) {
  const lms::Cost& cost = lms::default_cost();
  CHECK(cost.evict({64, false, 99, 99, 0}) < cost.evict({32, false, 49, 99, 0}));
}

// ---- statistics

TEST(engine_counts_pins_by_size) {
  const std::size_t small = kSmall, large = small + 1;
  Rig rig(4, 2 * small);
  StorageRef a = rig.make(1, small), b = rig.make(2, large);
  rig.engine->reset_accumulated(0);
  fake::Scope scope;
  Engine::Frame frame;
  rig.enter(&frame, {{&a, Access::kRead}, {&b, Access::kRead}, {&a, Access::kWrite}});
  EngineStats stats = rig.stats();
  CHECK_EQ(stats.pinned.count.current, 2);
  CHECK_EQ(stats.by_size[0].count.current, 1);
  CHECK_EQ(stats.by_size[1].count.current, 1);
  CHECK_EQ(stats.pinned.bytes.current, static_cast<std::int64_t>(small + large));
  CHECK_EQ(stats.by_size[0].bytes.current, static_cast<std::int64_t>(small));
  rig.engine->leave(frame);
  stats = rig.stats();
  CHECK_EQ(stats.pinned.count.current, 0);
  CHECK_EQ(stats.pinned.count.peak, 2);
  CHECK_EQ(stats.pinned.count.allocated, 2);
  CHECK_EQ(stats.pinned.count.freed, 2);
  rig.engine->reset_peaks(0);
  CHECK_EQ(rig.stats().pinned.count.peak, 0);
  rig.engine->reset_accumulated(0);
  CHECK_EQ(rig.stats().pinned.count.allocated, 0);
  CHECK_EQ(rig.engine->stats(7).reclaimed, 0);  // a device nothing was on
}

TEST(engine_counts_moves) {
  Rig rig;
  const auto bytes = static_cast<std::int64_t>(kBytes);
  StorageRef a = rig.make(1);
  CHECK(rig.evict(a));
  rig.use(&a);
  CHECK(rig.evict(a));
  rig.use(&a, Access::kOverwrite);
  EngineStats stats = rig.stats();
  CHECK_EQ(stats.reclaimed, 2);
  CHECK_EQ(stats.reclaimed_bytes, 2 * bytes);
  CHECK_EQ(stats.paged_out, 1);
  CHECK_EQ(stats.paged_out_bytes, bytes);
  CHECK_EQ(stats.clean_evictions, 1);
  CHECK_EQ(stats.clean_bytes, bytes);
  CHECK_EQ(stats.paged_in, 1);
  CHECK_EQ(stats.paged_in_bytes, bytes);
  CHECK_EQ(stats.overwrites, 1);
  rig.engine->reset_accumulated(0);
  stats = rig.stats();
  CHECK_EQ(stats.reclaimed + stats.paged_out + stats.paged_in + stats.clean_evictions, 0);
}

TEST(engine_census_tells_storages_apart) {
  Rig rig;
  rig.engine->set_min_bytes(kBytes);
  StorageRef out = rig.make(1), pinned = rig.make(2), exposed = rig.make(3), excluded = rig.make(4),
             small = rig.make(5, 8), idle = rig.make(6), dead = rig.make(7);
  CHECK(rig.evict(out));
  rig.engine->pin(pinned.get(), stream(0));
  rig.engine->expose(exposed.get(), stream(0));
  rig.engine->exclude(excluded.get(), stream(0));
  dead.reset();
  fake::Scope scope;
  const lms::Census census = rig.engine->census(0);
  CHECK_EQ(census.tracked, 6u);
  CHECK_EQ(census.on_host, 1u);
  CHECK_EQ(census.pinned, 1u);
  CHECK_EQ(census.largest_pinned, 0u);  // by no op
  CHECK_EQ(census.exposed, 1u);
  CHECK_EQ(census.excluded, 1u);
  CHECK_EQ(census.small, 1u);
  CHECK_EQ(census.small_bytes, 8u);
  CHECK_EQ(census.idle, 1u);
  CHECK_EQ(rig.engine->census(1).tracked, 0u);
}
