// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>

#include <mutex>

// What the user, or code for him, says of single storages.
namespace c10::cuda::lms {

// A look without the lock may fall between the halves of a new pointer, and then takes the storage
// for another's: only what is foreign under the lock, too, is.
bool manageable(const StorageImpl* storage) noexcept {
  if (C10_LIKELY(Backend::may_manage(*storage))) {
    return true;
  }
  if (!storage->device().is_cuda()) {
    return false;
  }
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return Backend::may_manage(*storage);
}

void pin(StorageImpl* storage) {
  EngineScope scope;
  state().engine.pin(storage, stream_for(storage));
  expose_to_capture(storage, stream_for(storage));
}

void unpin(StorageImpl* storage) {
  EngineScope scope;
  mark_external_streams();  // after what has used the pointer
  state().engine.unpin(storage);
}

void expose(StorageImpl* storage) {
  EngineScope scope;
  state().engine.expose(storage, stream_for(storage));
}

void unexpose(StorageImpl* storage) {
  EngineScope scope;
  mark_external_streams();
  state().engine.unexpose(storage);
}

bool exposed(StorageImpl* storage) { return state().engine.exposed(storage); }

void exclude(StorageImpl* storage) {
  EngineScope scope;
  state().engine.exclude(storage, stream_for(storage));
}

void include(StorageImpl* storage) {
  EngineScope scope;
  state().engine.include(storage);
}

bool excluded(StorageImpl* storage) { return state().engine.excluded(storage); }

bool on_host(StorageImpl* storage) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return state().backend.locate(storage).place == ::lms::Place::kHost;
}

bool evict(StorageImpl* storage) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return reclaiming() && state().engine.evict(storage);
}

bool drop_if_out(StorageImpl* storage) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return !state().engine.pinned(storage) && state().backend.drop_if_out(storage);
}

bool page_in_if_free(StorageImpl* storage) {
  EngineScope scope;
  return state().engine.page_in(storage, stream_for(storage), ::lms::Reclaim::kNone);
}

size_t reclaim_inactive(DeviceIndex device) {
  EngineScope scope;
  std::lock_guard<std::recursive_mutex> lock(state().engine.mutex());
  return reclaiming() ? state().engine.evict_all(device, ::lms::Sizes::kAny) : 0;
}

}  // namespace c10::cuda::lms
