// SPDX-License-Identifier: Apache-2.0
// What the statistics say of a pool that grows and shrinks, as a GPU's does: the CPU's has all of
// its memory from the first on. Compiled with a runtime of its own. Prints names and numbers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"

namespace {

using tensorflow::lms::BfcAccess;
using tensorflow::lms::BfcAllocator;
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

void Tell(const char* when) {
  const std::string all = Runtime::Get().Statistics();
  for (const char* name : {"bytes_reserved", "peak_bytes_reserved", "bytes_in_use"}) {
    const auto at = all.find("\"" + std::string(name) + "\": ");
    std::printf("%s_%s %lld\n", when, name, std::atoll(all.c_str() + at + std::strlen(name) + 4));
  }
}

}  // namespace

int main() {
  tsl::BFCAllocator::Options options;
  options.allow_growth = true;
  auto* pool =
      new BfcAllocator(std::unique_ptr<tsl::SubAllocator>(new Heap), 64 * kMiB, "pool", options);
  Runtime& runtime = Runtime::Get();
  runtime.OnDevice(tensorflow::SessionOptions(), "device", pool, new NoTransport);
  if (!runtime.SetEnabled(true).ok()) return 1;
  std::vector<void*> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool->AllocateRaw(64, 8 * kMiB));
  for (void* ptr : held) pool->DeallocateRaw(ptr);
  BfcAccess::Release(pool, BfcAccess::Regions(pool));
  Tell("released");
  runtime.ResetPeaks();
  Tell("reset");
  std::fflush(stdout);
  std::_Exit(0);
}
