// SPDX-License-Identifier: Apache-2.0
// The patched caching allocator on the simulated device, without ATen and Python: for machines that
// have no wheel of the framework.
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/Lms.h>
#include <simcuda.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "harness.h"

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));  // in no header of upstream's
}

namespace {

namespace cuda_lms = c10::cuda::lms;
using Storage = c10::intrusive_ptr<c10::StorageImpl>;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kCapacity = 64 * kMiB;
constexpr size_t kSize = 8 * kMiB;
constexpr std::chrono::seconds kPatience{30};

struct Device {
  explicit Device(int mode) {
    simcuda_set_capacity(0, kCapacity);
    simcuda_set_mode(mode, 2);
    // As ATen does.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex index) { return index == 0; });
    c10::cuda::CUDACachingAllocator::init(1);
  }
};

Storage make(size_t bytes) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  auto made = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                    allocator->allocate(bytes), allocator, true);
  cuda_lms::OpGuard guard;
  c10::StorageImpl* result = made.get();
  guard.results(&result, 1);
  return made;
}

std::vector<uint32_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  std::minstd_rand random(seed + 1);
  for (uint32_t& value : values) {
    value = static_cast<uint32_t>(random());
  }
  return values;
}

// What an op does: pin, bring in, work on the current stream.
void write(const Storage& storage, uint32_t seed) {
  const auto values = pattern(storage->nbytes(), seed);
  cuda_lms::OpGuard guard;
  cuda_lms::Use use{storage.get(), cuda_lms::Access::kOverwrite, nullptr};
  guard.enter(&use, 1);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaMemcpyAsync(storage->mutable_data(), values.data(), storage->nbytes(),
                                 cudaMemcpyHostToDevice, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  guard.ran();
}

void check(const Storage& storage, uint32_t seed) {
  std::vector<uint32_t> found(storage->nbytes() / sizeof(uint32_t));
  cuda_lms::OpGuard guard;
  cuda_lms::Use use{storage.get(), cuda_lms::Access::kRead, nullptr};
  guard.enter(&use, 1);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaMemcpyAsync(found.data(), storage->data(), storage->nbytes(),
                                 cudaMemcpyDeviceToHost, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  CHECK(found == pattern(storage->nbytes(), seed));
}

size_t count_on_host(const std::vector<Storage>& storages) {
  size_t count = 0;
  for (const Storage& storage : storages) {
    count += cuda_lms::on_host(storage.get()) ? 1 : 0;
  }
  return count;
}

// Twice the device, each storage written once and read twice.
void oversubscribe(int mode) {
  const Device device(mode);
  cuda_lms::set_enabled(true, kPatience);
  std::vector<Storage> storages;
  for (uint32_t i = 0; i < 2 * kCapacity / kSize; ++i) {
    storages.push_back(make(kSize));
    write(storages.back(), i);
  }
  CHECK(count_on_host(storages) >= storages.size() / 2);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < storages.size(); ++i) {
      check(storages[i], i);
    }
  }
  SimcudaCounters counters;
  simcuda_counters(&counters);
  // Written by these tests and moved by the engine; a clean storage is not copied out again.
  CHECK(counters.d2h_pinned_bytes >= kCapacity);
  CHECK(counters.d2h_pinned_bytes <= storages.size() * kSize);
  CHECK(simcuda_peak(0) <= kCapacity);
}

}  // namespace

TEST(memory_is_reused_and_given_back) {
  const Device device(SIMCUDA_IMMEDIATE);
  {
    const Storage first = make(kSize);
    write(first, 1);
    check(first, 1);
  }
  const size_t used = simcuda_used(0);
  CHECK(used >= kSize);
  const Storage second = make(kSize);
  CHECK(simcuda_used(0) == used);
  write(second, 2);
  check(second, 2);
}

TEST(cache_is_emptied) {
  const Device device(SIMCUDA_IMMEDIATE);
  {
    const Storage storage = make(kSize);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  CHECK(simcuda_used(0) == 0);
}

TEST(without_it_the_device_is_full) {
  const Device device(SIMCUDA_IMMEDIATE);
  std::vector<Storage> storages;
  bool full = false;
  try {
    for (size_t i = 0; i < 2 * kCapacity / kSize; ++i) {
      storages.push_back(make(kSize));
    }
  } catch (const c10::OutOfMemoryError&) {
    full = true;
  }
  CHECK(full);
  CHECK(!storages.empty() && storages.size() <= kCapacity / kSize);
}

TEST(twice_the_device_immediate) { oversubscribe(SIMCUDA_IMMEDIATE); }
TEST(twice_the_device_lazy) { oversubscribe(SIMCUDA_LAZY); }
TEST(twice_the_device_eager_copy) { oversubscribe(SIMCUDA_EAGER_COPY); }

TEST(pinned_stays_and_message_says_so) {
  const Device device(SIMCUDA_IMMEDIATE);
  cuda_lms::set_enabled(true, kPatience);
  std::vector<Storage> storages;
  std::string message;
  try {
    for (size_t i = 0; i < 2 * kCapacity / kSize; ++i) {
      storages.push_back(make(kSize));
      cuda_lms::pin(storages.back().get());
    }
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what();
  }
  CHECK(message.find("pinned") != std::string::npos);
  CHECK(count_on_host(storages) == 0);
}

TEST(random_programs) {
  const Device device(SIMCUDA_LAZY);
  cuda_lms::set_enabled(true, kPatience);
  std::minstd_rand random(static_cast<uint32_t>(harness::option("seed", 1)));
  std::vector<std::pair<Storage, uint32_t>> live;
  uint32_t next = 0;
  const long steps = harness::option("steps", 300);
  for (long step = 0; step < steps; ++step) {
    const size_t choice = random() % 4;
    if (live.empty() || (choice == 0 && live.size() < 24)) {
      live.emplace_back(make((1 + random() % 12) * kMiB / 2), next);
      write(live.back().first, next++);
      continue;
    }
    const size_t which = random() % live.size();
    if (choice == 1) {
      live.erase(live.begin() + static_cast<long>(which));
    } else if (choice == 2) {
      live[which].second = next;
      write(live[which].first, next++);
    } else {
      check(live[which].first, live[which].second);
    }
  }
  for (const auto& [storage, seed] : live) {
    check(storage, seed);
  }
}

TEST(threads_share_the_allocator) {
  const Device device(SIMCUDA_IMMEDIATE);
  cuda_lms::set_enabled(true, kPatience);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(3);
  for (uint32_t id = 0; id < errors.size(); ++id) {
    threads.emplace_back([id, &errors] {
      try {
        std::vector<Storage> mine;
        for (uint32_t i = 0; i < 8; ++i) {
          mine.push_back(make(kSize / 2));
          write(mine.back(), 100 * id + i);
        }
        for (uint32_t i = 0; i < mine.size(); ++i) {
          check(mine[i], 100 * id + i);
        }
      } catch (const std::exception& error) {
        errors[id] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& error : errors) {
    CHECK(error.empty());
  }
}
