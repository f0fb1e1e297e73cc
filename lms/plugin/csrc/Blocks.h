// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/core/ready.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace c10::cuda::lms {

// Which of the allocator's pools a block came from.
enum class PoolKind : uint8_t { kCommon, kPrivate };  // private: a graph's, or the user's own

// Whose deleter frees a block. Only through the plug-in's does its entry here end with it.
enum class Freer : uint8_t { kPlugin, kAllocator };

// What the allocator knows of a block and does not tell.
struct Block {
  cudaStream_t stream = nullptr;    // whose pool it came from
  std::vector<CUDAStream> used_on;  // as told by recordStream, and not yet passed on
  DeviceIndex device = 0;
  PoolKind pool = PoolKind::kPrivate;
  Freer freer = Freer::kAllocator;
  size_t bytes = 0;    // that its owner may use
  ::lms::Ready ready;  // what it owes, if a page-in has taken it
};

inline PoolKind kind_of(MempoolId_t owner) {
  return owner == MempoolId_t{0, 0} ? PoolKind::kCommon : PoolKind::kPrivate;
}

// The live blocks by address. One that the allocator frees may be gone already: the next
// allocation at its address replaces it. Thread-safe; its lock is a leaf.
class Blocks {
 public:
  void add(void* ptr, Block block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[ptr] = std::move(block);
  }

  // Adds the blocks of `segments` that are not known yet.
  template <class Segments>
  void learn(const Segments& segments) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& segment : segments) {
      auto* ptr = reinterpret_cast<char*>(segment.address);
      for (const auto& block : segment.blocks) {
        if (block.allocated) {
          ::lms::Ready ready;
          ready.freed = true;  // as far as is known
          blocks_.emplace(ptr, Block{static_cast<cudaStream_t>(segment.stream),
                                     {},
                                     segment.device,
                                     kind_of(segment.owner_private_pool_id),
                                     Freer::kAllocator,
                                     block.size,
                                     ready});
        }
        ptr += block.size;
      }
    }
  }

  std::optional<Block> find(void* ptr) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    return found == blocks_.end() ? std::nullopt : std::make_optional(found->second);
  }

  std::optional<Block> take(void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found == blocks_.end()) {
      return std::nullopt;
    }
    std::optional<Block> block(std::move(found->second));
    blocks_.erase(found);
    return block;
  }

  void set_ready(void* ptr, const ::lms::Ready& ready) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found != blocks_.end()) {
      found->second.ready = ready;
    }
  }

  // From now on its deleter is the plug-in's.
  void adopt(void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found != blocks_.end()) {
      found->second.freer = Freer::kPlugin;
    }
  }

  // Remembers that `stream` uses the block. False when it is not freed through the plug-in.
  bool record(void* ptr, CUDAStream stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found == blocks_.end()) {
      return false;
    }
    Block& block = found->second;
    if (stream.stream() != block.stream &&
        std::find(block.used_on.begin(), block.used_on.end(), stream) == block.used_on.end()) {
      block.used_on.push_back(stream);
    }
    return block.freer == Freer::kPlugin;
  }

 private:
  mutable std::mutex mutex_;
  ska::flat_hash_map<void*, Block> blocks_;
};

}  // namespace c10::cuda::lms
