// SPDX-License-Identifier: Apache-2.0
#include "random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <simcuda.h>

#include <list>
#include <map>
#include <mutex>

namespace simcuda {
namespace {

// The states that a program may still go back to, the latest first. A checkpointed step draws some
// hundred times between saving a state and restoring it.
class States {
 public:
  using Key = std::pair<uint64_t, uint64_t>;  // seed, offset

  void remember(Key key, at::Generator state) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = entries_.find(key);
    if (it != entries_.end()) order_.erase(it->second.second);
    order_.push_front(key);
    entries_[key] = {std::move(state), order_.begin()};
    if (order_.size() > kLimit) {
      entries_.erase(order_.back());
      order_.pop_back();
    }
  }

  at::Generator find(Key key) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto it = entries_.find(key);
    return it == entries_.end() ? at::Generator() : it->second.first.clone();
  }

 private:
  static constexpr size_t kLimit = 4096;  // 5 KiB each
  std::mutex mutex_;
  std::list<Key> order_;
  std::map<Key, std::pair<at::Generator, std::list<Key>::iterator>> entries_;
};

States& states() {
  static auto* instance = new States;
  return *instance;
}

constexpr uint64_t kStep = 4;  // torch wants offsets that are multiples of 4

at::Generator sequence_at(uint64_t seed, uint64_t offset) {
  if (offset != 0) {
    if (at::Generator known = states().find({seed, offset}); known.defined()) return known;
    TORCH_WARN_ONCE(
        "simcuda: a random state that was not reached in this process, or too long ago, "
        "was restored: the numbers that follow are determined by it, but are not "
        "those that followed it before");
    seed ^= offset * 0x9E3779B97F4A7C15ull;
  }
  return at::detail::createCPUGenerator(seed);
}

}  // namespace

RandomSequence::RandomSequence(std::optional<at::Generator> generator, c10::Device device) {
  at::Generator cuda = generator && generator->defined()
                           ? *generator
                           : at::cuda::detail::getDefaultCUDAGenerator(device.index());
  lock_ = std::unique_lock<std::mutex>(cuda.mutex());
  state_ = at::check_generator<at::CUDAGeneratorImpl>(cuda)->philox_cuda_state(kStep);
  if (state_.captured_) {  // the numbers of the captured run are nobody's
    cpu_ = at::detail::createCPUGenerator();
    return;
  }
  seed_ = state_.seed_.val;
  offset_ = state_.offset_.val;
  cpu_ = sequence_at(seed_, offset_);
}

RandomSequence::RandomSequence(const at::PhiloxCudaState& captured)
    : seed_(static_cast<uint64_t>(*captured.seed_.ptr)),
      offset_(static_cast<uint64_t>(*captured.offset_.ptr) + captured.offset_intragraph_),
      cpu_(sequence_at(seed_, offset_)) {}

RandomSequence::~RandomSequence() {
  if (!state_.captured_) states().remember({seed_, offset_ + kStep}, cpu_);
}

}  // namespace simcuda
