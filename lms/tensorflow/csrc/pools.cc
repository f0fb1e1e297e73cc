// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/pools.h"

#include <cstdlib>
#include <utility>

#include "tensorflow/core/common_runtime/lms/bfc.h"
#include "tensorflow/core/common_runtime/lms/frame.h"
#include "tensorflow/core/common_runtime/lms/runtime.h"
#include "tensorflow/core/common_runtime/lms/switch.h"

namespace tensorflow {
namespace lms {
namespace {

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// Host memory without a limit is not what runs out.
bool CpuIsLimited() {
  return IsSet("TF_CPU_ALLOCATOR_USE_BFC") && IsSet("TF_CPU_BFC_MEM_LIMIT_IN_MB");
}

}  // namespace

constexpr int Pools::kMost;

Pool* Pools::Of(const Allocator* allocator) const {
  for (Pool* pool : *this) {
    if (pool->allocator == allocator) return pool;
  }
  return nullptr;
}

void Pools::Add(const std::string& device, Allocator* allocator,
                std::unique_ptr<Transport> transport) {
  auto* bfc = dynamic_cast<BfcAllocator*>(allocator);
  if (bfc == nullptr || (transport == nullptr && !CpuIsLimited())) return;
  mutex_lock lock(adding_);
  const int count = count_;
  if (Of(bfc) != nullptr || count == kMost) return;
  if (transport == nullptr) {
    transport = NewCpuTransport();
    BfcAccess::GrowAtOnce(bfc);  // costs nothing: pages come with their first use
  }
  pools_[count] = new Pool(count, device, bfc, std::move(transport));
  count_ = count + 1;
  BfcAllocator::SetReclaimer(this);
}

bool Pools::Manages(const BfcAllocator* allocator) {
  return EverActive() && Of(allocator) != nullptr;
}

void* Pools::Allocate(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) {
  return Of(allocator)->Allocate(bytes, freed_before);
}

bool Pools::Waits(const BfcAllocator* allocator) { return Active() && Of(allocator) != nullptr; }

void* Pools::AllocateOrWait(BfcAllocator* allocator, size_t bytes, uint64_t freed_before) {
  Pool* const pool = Of(allocator);
  if (!pool->FitsAlone(static_cast<int64_t>(bytes))) return nullptr;
  void* ptr = nullptr;
  const auto take = [&] {
    ptr = pool->Allocate(bytes, freed_before);
    return ptr != nullptr;
  };
  const bool fits_alone = pool->FitsAlone(static_cast<int64_t>(OpFrame::OwnBytes(pool, 0) + bytes));
  const bool taken =
      Runtime::Get().turns.wait(take, OpFrame::LackOfThread(), OpFrame::Depth(), fits_alone);
  if (taken) OpFrame::ForgetShortage();
  return ptr;
}

}  // namespace lms
}  // namespace tensorflow
