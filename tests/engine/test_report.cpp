// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>

#include "engine.h"
#include "fake.h"
#include "harness.h"
#include "host_pool.h"
#include "report.h"

namespace {

constexpr lms::Words kWords = {"tensors",   "operations",     "raise LIMIT", "use less",
                               "release()", "pin()",          "nobody's",    "join them",
                               "let go",    ", alone it fits"};

// Of an op that asks for 2 MiB where 8 are attainable.
lms::Report of_an_op() {
  lms::Report report;
  report.wanted = 2 << 20;
  report.pool = "GPU 0";
  report.pool_bytes = 8 << 20;
  report.pool_in_use = 8 << 20;
  report.own_known = true;
  return report;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(report_says_what_is_where) {
  lms::Report report;
  report.census.pinned = 3;
  report.census.pinned_bytes = 5 << 20;
  report.census.largest_pinned = 3 << 19;
  report.host.used = 1 << 20;
  CHECK_EQ(lms::shortage(report, kWords),
           "Large Model Support is on: 5.00 MiB in 3 tensors are pinned by running operations "
           "(largest 1.50 MiB), 0.00 MiB are in host memory. Device limit: none, host limit: none "
           "(1.00 MiB in use), minimum size: 0.00 MiB. Use less. ");
}

TEST(report_names_every_state_and_the_request) {
  lms::Report report;
  report.wanted = 2 << 20;
  report.pool = "GPU:0";
  lms::Census& c = report.census;
  c.exposed = c.excluded = c.small = c.idle = 1;
  c.exposed_bytes = 1 << 20;
  c.excluded_bytes = 2 << 20;
  c.small_bytes = 3 << 20;
  c.idle_bytes = 4 << 20;
  const std::string text = lms::shortage(report, kWords);
  CHECK(has(text, "Large Model Support could not make room for 2.00 MiB on GPU:0: "));
  CHECK(has(text,
            ", 1.00 MiB cannot move because their pointers are exposed (release() lets them go), "
            "2.00 MiB are excluded, "
            "3.00 MiB are below the minimum size, 4.00 MiB are idle but did not move. "));
  report.pool_bytes = 8 << 20;
  report.pool_in_use = 7 << 20;
  CHECK(
      has(lms::shortage(report, kWords), " on GPU:0, of which 7.00 MiB of 8.00 MiB are in use: "));
}

TEST(report_says_what_helps) {
  lms::Report report;
  report.device_limit = 1 << 20;
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Raise the device limit, or use less. "));
  report.stats.host_short = true;  // for what is gone by now
  CHECK(has(lms::shortage(report, kWords), "Raise the device limit, or use less. "));
  report.census.idle = 1;
  CHECK(has(lms::shortage(report, kWords), "The machine gives no more host memory. Use less. "));
  report.host.limit = 1 << 20;
  CHECK(has(lms::shortage(report, kWords), "Host memory is at its limit: raise LIMIT. Use less. "));
  report.stats.host_refused = 1;
  report.stats.host_short = false;  // but not any more
  CHECK(has(lms::shortage(report, kWords), "Raise the device limit, or use less. "));
}

TEST(report_accounts_for_every_byte) {
  lms::Report report = of_an_op();
  lms::Census& c = report.census;
  c.pinned = 3;
  c.pinned_bytes = 3 << 20;
  c.held = 1;
  c.held_bytes = 1 << 20;
  c.immovable = 1;
  c.immovable_bytes = 1 << 20;
  c.excluded = 1;
  c.excluded_bytes = 1 << 20;
  c.largest_pinned = 3 << 19;
  const std::string text = lms::shortage(report, kWords);
  CHECK(has(text, "2.00 MiB in 2 tensors are pinned by running operations (largest 1.50 MiB)"));
  CHECK(has(text, ", 1.00 MiB are pinned by pin(), 0.00 MiB are in host memory"));
  CHECK(has(text, ", 1.00 MiB are in pools that nothing may leave, 3.00 MiB are nobody's. "));
  lms::Words words = kWords;
  words.immovable = "must stay";
  CHECK(has(lms::shortage(report, words), ", 1.00 MiB must stay, 3.00 MiB are nobody's. "));
}

// To use less helps only an op that is too large by itself.
TEST(report_says_who_is_in_the_way) {
  lms::Report report = of_an_op();
  report.own_bytes = 6 << 20;
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Let go, alone it fits. "));
  report.own_bytes = 7 << 20;
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Use less. "));
  report.device_limit = 8 << 20;
  CHECK(has(lms::shortage(report, kWords), "Raise the device limit, or use less. "));
  report.pool_in_use = 6 << 20;
  CHECK(
      has(lms::shortage(report, kWords),
          "Enough is free, but not in one piece that this stream may use: let go, or join them. "));
  report.own_known = false;
  CHECK(has(lms::shortage(report, kWords), "Raise the device limit, or use less. "));
}

// What blocks have beyond what was asked for is in use, and nobody can make it known.
TEST(report_does_not_call_unknown_what_nobody_has_asked_for) {
  lms::Report report = of_an_op();
  report.census.exposed = 1;
  report.census.exposed_bytes = 6 << 20;
  report.pool_requested = 7 << 20;
  CHECK_EQ(lms::unknown_bytes(report), std::size_t{1} << 20);
  report.pool_requested = 10 << 20;  // of which 2 are freed, and wait for other streams
  CHECK_EQ(lms::unknown_bytes(report), std::size_t{2} << 20);
  report.pool_requested = 6 << 20;
  CHECK(!has(lms::shortage(report, kWords), "nobody's"));
  report.own_complete = false;  // what it has not asked for may be in its way all the same
  report.pool_bytes = 3 << 20;
  CHECK(has(lms::shortage(report, kWords), "Let go, or use less. "));
}

// What its kernel has made so far may be among what nobody knows.
TEST(report_does_not_say_that_an_op_fits_alone_which_may_not) {
  lms::Report report = of_an_op();
  report.own_complete = false;
  report.own_bytes = 4 << 20;
  CHECK(has(lms::shortage(report, kWords), ", 8.00 MiB are nobody's. "));
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Let go, or use less. "));
  report.census.excluded = 1;
  report.census.excluded_bytes = 6 << 20;
  CHECK(has(lms::shortage(report, kWords), ", 2.00 MiB are nobody's. "));
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Let go, alone it fits. "));
}

// What is in use takes whole segments, and of each kind its own.
TEST(report_knows_what_cannot_be_joined) {
  lms::Report report = of_an_op();
  report.pool_granule = 2 << 20;
  report.pool_in_use = report.pool_elsewhere = 1 << 10;
  report.wanted = 6 << 20;
  CHECK(has(lms::shortage(report, kWords),
            "Enough is free, but not in one piece that this stream may use: join them. "));
  report.wanted = 13 << 19;
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Let go, or use less. "));
  report.pool_elsewhere = 0;
  report.pool_in_use = report.own_bytes = 2 << 20;
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Use less. "));
  report.wanted = 8 << 20;
  report.pool_in_use = report.own_bytes = 0;
  report.pool_bytes = (8 << 20) + 1;
  CHECK(has(lms::shortage(report, kWords),
            "Enough is free, but not in one piece that this stream may use: join them. "));
  ++report.wanted;  // never fits, and nothing is in its way
  CHECK(has(lms::shortage(report, kWords), "0.00 MiB. Use less. "));
}

TEST(report_asks_for_host_memory_where_that_is_what_lacks) {
  lms::Report report = of_an_op();
  report.stats.host_short = true;
  report.host.limit = 1 << 20;
  report.own_bytes = 6 << 20;
  report.census.idle = 1;
  report.census.idle_bytes = 2 << 20;
  std::string text = lms::shortage(report, kWords);
  CHECK(has(text, "Host memory is at its limit: raise LIMIT. "));
  CHECK(!has(text, "it fits") && !has(text, "less"));
  report.census.idle_bytes = 1 << 20;  // not enough
  CHECK(has(lms::shortage(report, kWords), "raise LIMIT. Let go, alone it fits. "));
  report.pool_in_use = 4 << 20;
  CHECK(!has(lms::shortage(report, kWords), "in one piece"));
  report.host.limit = 0;
  text = lms::shortage(report, kWords);
  CHECK(has(text, "The machine gives no more host memory. Let go, alone it fits. "));
}

TEST(report_takes_one_look) {
  fake::Device device(1, fake::Backend::streams_needed(1));
  fake::HostMemory memory(8192);
  lms::HostPool pool(memory, 1024);
  fake::Backend backend(device, 1, 4096);
  lms::Engine engine(backend, pool);
  backend.attach(&engine, &pool);
  engine.set_min_bytes(7);
  {
    fake::Scope scope;
    const fake::StorageRef out = backend.create(512, fake::stream(0));
    const fake::StorageRef idle = backend.create(256, fake::stream(0));
    engine.note(nullptr, out.get(), fake::stream(0));
    engine.note(nullptr, idle.get(), fake::stream(0));
    CHECK(engine.evict(out.get()));
    const lms::Report report = lms::report(engine, pool, 0);
    std::map<std::string, std::int64_t> fields;
    for (const auto& field : lms::fields(report)) fields[field.first] = field.second;
    CHECK_EQ(fields["paged_out_bytes"], 512);
    CHECK_EQ(fields["on_host"], 1);
    CHECK_EQ(fields["on_host_bytes"], 512);
    CHECK_EQ(fields["idle_bytes"], 256);
    CHECK_EQ(fields["tracked"], 2);
    CHECK_EQ(fields.size(), lms::fields(report).size());
    CHECK_EQ(report.min_bytes, 7u);
    CHECK_EQ(report.host.used, 512u);
  }
  engine.purge();
}
