// SPDX-License-Identifier: Apache-2.0
// What a pool takes of its device, and gives back, as a GPU's does: the CPU's has all of its memory
// from the first on. Compiled with a runtime of its own. Prints names and numbers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/buffer.h"
#include "tensorflow/core/common_runtime/lms/options.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/statistics.h"
#include "tensorflow/core/common_runtime/lms/switch.h"

namespace {

using tensorflow::lms::BfcAccess;
using tensorflow::lms::BfcAllocator;
using tensorflow::lms::MovableBuffer;
using tensorflow::lms::Runtime;

constexpr size_t kMiB = 1 << 20;

class Heap final : public tsl::SubAllocator {
 public:
  Heap() : SubAllocator({}, {}) {}
  void* Alloc(size_t alignment, size_t bytes, size_t* received) override {
    *received = bytes;
    return std::aligned_alloc(alignment, bytes);
  }
  void Free(void* ptr, size_t) override { std::free(ptr); }
  bool SupportsCoalescing() const override { return false; }
};

class NoTransport final : public tensorflow::lms::Transport {
 public:
  ::lms::Stream stream() override { return this; }
  ::lms::FencePtr ToHost(void*, const void*, size_t) override { return nullptr; }
  ::lms::FencePtr ToDevice(void*, const void*, size_t) override { return nullptr; }
  void Poison(void*, size_t) override {}
};

class Bytes final : public MovableBuffer {
 public:
  Bytes(BfcAllocator* pool, size_t bytes)
      : MovableBuffer(pool, pool->AllocateRaw(64, bytes)), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  const size_t bytes_;
};

BfcAllocator* MakePool(const char* name, bool grows) {
  BfcAllocator::Options options;
  options.allow_growth = grows;
  auto* pool =
      new BfcAllocator(std::unique_ptr<tsl::SubAllocator>(new Heap), 64 * kMiB, name, options);
  Runtime::Get().OnDevice(tensorflow::SessionOptions(), name, pool,
                          std::unique_ptr<NoTransport>(new NoTransport));
  return pool;
}

void Tell(const char* when) {
  const std::string all = tensorflow::lms::Statistics();
  for (const char* name : {"bytes_reserved", "peak_bytes_reserved", "bytes_in_use"}) {
    const auto at = all.find("\"" + std::string(name) + "\": ");
    std::printf("%s_%s %lld\n", when, name, std::atoll(all.c_str() + at + std::strlen(name) + 4));
  }
}

void GrowAndShrink() {
  BfcAllocator* pool = MakePool("growing", /*grows=*/true);
  std::vector<void*> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool->AllocateRaw(64, 8 * kMiB));
  for (void* ptr : held) pool->DeallocateRaw(ptr);
  BfcAccess::Release(pool, BfcAccess::Regions(pool));
  Tell("released");
  tensorflow::lms::ResetPeaks();
  Tell("reset");
}

// A buffer of 8 MiB comes in where a hole of 12 MiB is all that is left, and no op waits for it.
void PageInAheadOfNeed() {
  BfcAllocator* pool = MakePool("full", /*grows=*/false);
  Runtime& runtime = Runtime::Get();
  const auto in_use = [&] { return BfcAccess::Stats(pool).in_use; };
  const int64_t slabs = in_use();
  auto* buffer = new Bytes(pool, 8 * kMiB);
  {
    tensorflow::lms::EngineLock lock(runtime.engine.mutex());
    runtime.tracker.Track(buffer);
  }
  const auto page_in = [&] {
    return runtime.engine.page_in(buffer, nullptr, ::lms::Reclaim::kNone);
  };
  runtime.engine.evict(buffer);
  void* hole = pool->AllocateRaw(64, 12 * kMiB);
  pool->AllocateRaw(64, 50 * kMiB);
  pool->DeallocateRaw(hole);
  const int64_t before = in_use();
  std::printf("ahead_hole_is_all %d\n", before - slabs >= static_cast<int64_t>(50 * kMiB));
  std::printf("ahead_arrived %d\n", page_in());
  std::printf("ahead_taken %lld\n", static_cast<long long>(in_use() - before));
  runtime.engine.evict(buffer);
  tensorflow::lms::SetOption("limit", before + 4 * static_cast<int64_t>(kMiB)).IgnoreError();
  std::printf("ahead_arrived_beyond_limit %d\n", page_in());
}

}  // namespace

int main() {
  Runtime::Get();
  if (!tensorflow::lms::Enable().ok()) return 1;
  GrowAndShrink();
  PageInAheadOfNeed();
  std::fflush(stdout);
  std::_Exit(0);
}
