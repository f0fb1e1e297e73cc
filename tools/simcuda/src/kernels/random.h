// SPDX-License-Identifier: Apache-2.0
// Random numbers: a CPU generator behind every CUDA generator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <optional>

namespace simcuda {

// While it lives, `cpu()` continues the sequence of a CUDA generator, which stays locked.
//
// The sequence starts from the generator's seed, so a program that draws only on the device draws
// what it would on the CPU. The state after each draw is kept under the generator's (seed, offset),
// which is what torch saves and restores. In a CUDA graph both lie in device memory, where torch
// puts them before each launch.
class RandomSequence {
 public:
  // `generator` is a CUDA generator, or none for the default one of the device.
  RandomSequence(std::optional<at::Generator> generator, c10::Device device);
  // For the launch of a graph in which a sequence was captured with this state.
  explicit RandomSequence(const at::PhiloxCudaState& captured);
  ~RandomSequence();
  RandomSequence(const RandomSequence&) = delete;
  RandomSequence& operator=(const RandomSequence&) = delete;

  const at::Generator& cpu() const { return cpu_; }
  const at::PhiloxCudaState& state() const { return state_; }

 private:
  std::unique_lock<std::mutex> lock_;
  at::PhiloxCudaState state_;
  uint64_t seed_ = 0, offset_ = 0;
  at::Generator cpu_;
};

}  // namespace simcuda
