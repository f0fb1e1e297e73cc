// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace c10::cuda::lms {

// What the allocator knows of a block and does not tell.
struct Block {
  cudaStream_t stream = nullptr;    // whose pool it came from
  std::vector<CUDAStream> used_on;  // as told by recordStream, and not yet passed on
  DeviceIndex device = 0;
  bool movable = false;  // not of a graph's or the user's own pool
  bool ours = false;     // freed through the plug-in's deleter, so that the entry ends with it
};

// The live blocks by address. An entry that is not `ours` may be of a block that was freed: the
// next allocation at its address replaces it. Thread-safe; its lock is a leaf.
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
          blocks_.emplace(ptr, Block{static_cast<cudaStream_t>(segment.stream),
                                     {},
                                     segment.device,
                                     segment.owner_private_pool_id == MempoolId_t{0, 0},
                                     false});
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

  // From now on its deleter is the plug-in's.
  void adopt(void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found != blocks_.end()) {
      found->second.ours = true;
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
    return block.ours;
  }

 private:
  mutable std::mutex mutex_;
  ska::flat_hash_map<void*, Block> blocks_;
};

}  // namespace c10::cuda::lms
