// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/lms/AllocatorHook.h>
#include <torch/csrc/api/include/torch/version.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

// The virtual functions of CUDAAllocator by version: each is passed on to another allocator.
#define LMS_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace c10::cuda::lms {

namespace CA = CUDACachingAllocator;

class Forward : public CA::CUDAAllocator {
 public:
  explicit Forward(CA::CUDAAllocator* base) : base_(base) {}
  CA::CUDAAllocator* base() const { return base_; }

  // What differs by version only in its arguments.
  CA::SnapshotInfo blocks() {
#if LMS_TORCH >= 211
    return base_->snapshot({0, 0}, /*include_traces=*/false);
#elif LMS_TORCH >= 208
    return base_->snapshot({0, 0});
#else
    return base_->snapshot();
#endif
  }

  DataPtr allocate(size_t bytes) override { return base_->allocate(bytes); }
  DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  bool is_simple_data_ptr(const DataPtr& pointer) const override {
    return base_->is_simple_data_ptr(pointer);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }
  void* raw_alloc(size_t bytes) override { return base_->raw_alloc(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return base_->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* ptr) override { base_->raw_delete(ptr); }
  void init(int devices) override { base_->init(devices); }
  bool initialized() override { return base_->initialized(); }
  double getMemoryFraction(DeviceIndex device) override { return base_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    base_->setMemoryFraction(fraction, device);
  }
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    base_->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* ptr, size_t* bytes) override {
    return base_->getBaseAllocation(ptr, bytes);
  }
  void recordStream(const DataPtr& pointer, CUDAStream stream) override {
    base_->recordStream(pointer, stream);
  }
  CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return base_->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { base_->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { base_->resetPeakStats(device); }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    base_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    base_->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    base_->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return base_->getPoolUseCount(device, pool);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return base_->checkPoolLiveAllocations(device, pool, expected);
  }
  CA::ShareableHandle shareIpcHandle(void* ptr) override { return base_->shareIpcHandle(ptr); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return base_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return base_->isHistoryEnabled(); }
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& annotation) override {
    base_->recordAnnotation(annotation);
  }
  void attachOutOfMemoryObserver(CA::OutOfMemoryObserver observer) override {
    base_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(CA::AllocatorTraceTracker tracker) override {
    base_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
    base_->enablePeerAccess(device, to);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool p2p) override {
    return base_->memcpyAsync(to, to_device, from, from_device, bytes, stream, p2p);
  }
  std::shared_ptr<CA::AllocatorState> getCheckpointState(DeviceIndex device,
                                                         MempoolId_t pool) override {
    return base_->getCheckpointState(device, pool);
  }
  CA::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                             std::shared_ptr<CA::AllocatorState> state) override {
    return base_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return base_->name(); }

#if LMS_TORCH >= 208
  void emptyCache(MempoolId_t pool) override {
    finish_default_streams();
    base_->emptyCache(pool);
  }
  void pushCompileContext(std::string& context) override { base_->pushCompileContext(context); }
  void popCompileContext() override { base_->popCompileContext(); }
#else
  void emptyCache() override {
    finish_default_streams();
    base_->emptyCache();
  }
  CA::SnapshotInfo snapshot() override { return base_->snapshot(); }
  void recordHistory(bool enabled, CA::CreateContextFn recorder, size_t entries,
                     CA::RecordContext when) override {
    base_->recordHistory(enabled, safe_recorder(recorder), entries, when);
  }
  void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t pool) override {
    base_->ensureExistsAndIncrefPool(device, pool);
  }
#endif

#if LMS_TORCH >= 208 && LMS_TORCH < 211
  CA::SnapshotInfo snapshot(MempoolId_t pool) override { return base_->snapshot(pool); }
  void recordHistory(bool enabled, CA::CreateContextFn recorder, size_t entries,
                     CA::RecordContext when, bool clear) override {
    base_->recordHistory(enabled, safe_recorder(recorder), entries, when, clear);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          CA::CUDAAllocator* allocator) override {
    base_->createOrIncrefPool(device, pool, allocator);
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    base_->setUseOnOOM(device, pool);
  }
#endif

#if LMS_TORCH >= 209
  using CA::CUDAAllocator::recordStream;
#endif

#if LMS_TORCH >= 210
  std::vector<CA::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return base_->getExpandableSegmentSizes(device);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    base_->setNoSplit(device, pool);
  }
  void setUserMetadata(const std::string& metadata) override { base_->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return base_->getUserMetadata(); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return base_->getMemoryInfo(device);
  }
#endif

#if LMS_TORCH >= 211
  CA::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    return base_->snapshot(pool, traces);
  }
  void recordHistory(bool enabled, CA::CreateContextFn recorder, size_t entries,
                     CA::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    base_->recordHistory(enabled, safe_recorder(recorder), entries, when, clear, skip);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CA::CUDAAllocator> allocator) override {
    base_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    base_->setUseOnOOM(device, pool, use);
  }
#endif

#if LMS_TORCH >= 212
  std::shared_ptr<GatheredContext> getContextForPointer(const void* ptr) override {
    return base_->getContextForPointer(ptr);
  }
  void attachOomRejectionObserver(CA::OomRejectionObserver observer) override {
    base_->attachOomRejectionObserver(std::move(observer));
  }
#endif

#if LMS_TORCH >= 213
  void markCaptureBegin(DeviceIndex device) override { base_->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { base_->markCaptureEnd(device); }
#endif

#if LMS_TORCH >= 214
  bool supportsUserMetadata() override { return base_->supportsUserMetadata(); }
  void annotateMemory(const void* ptr, const std::string& metadata) override {
    base_->annotateMemory(ptr, metadata);
  }
#endif

 protected:
  // The recorder to use in place of the user's, which runs Python.
  virtual CA::CreateContextFn safe_recorder(CA::CreateContextFn recorder) = 0;

 private:
  CA::CUDAAllocator* const base_;
};

}  // namespace c10::cuda::lms
