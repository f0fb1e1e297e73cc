// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <c10/cuda/lms/compat/storage.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

// What is said of single storages: by the user, or by code for him; and, while nothing is tracked,
// by ops.
namespace c10::cuda::lms {

// What ops of one thread have made while it was off, as weak references. Written within an
// UnpinnedOp, so who turns it on may read what all have, because none runs by then.
class MadeWhileOff {
 public:
  void add(StorageImpl* storage) {
    if (!storages.empty() && storages.back() == storage) {  // a factory's, within an op
      return;
    }
    if (C10_UNLIKELY(is_full())) {
      drop(take_dead());
    }
    storages.push_back(storage);
    add_weak(storage);
  }

  // Whether to look for those that are dead: each is looked at once, or so, for each that comes.
  bool is_full() const { return storages.size() >= full_; }
  std::vector<StorageImpl*> take_dead() {
    const auto end = std::stable_partition(storages.begin(), storages.end(),
                                           [](StorageImpl* one) { return !expired(one); });
    std::vector<StorageImpl*> dead(end, storages.end());
    storages.erase(end, storages.end());
    full_ = 2 * storages.size() + kFew;
    return dead;
  }
  // With no lock held: what goes with them may run ops.
  static void drop(const std::vector<StorageImpl*>& dead) {
    for (StorageImpl* storage : dead) {
      drop_weak(storage);
    }
  }

  std::vector<StorageImpl*> storages;

 private:
  // So many are not worth a look: fewer look more often, more keep more of the dead.
  static constexpr size_t kFew = 64;
  size_t full_ = kFew;
};

namespace {

// Leaked, as the engine is.
struct AllMadeWhileOff {
  std::mutex mutex;
  std::vector<MadeWhileOff*> threads;
  MadeWhileOff of_ended_threads;

  static AllMadeWhileOff& all() {
    static auto* all = new AllMadeWhileOff;
    return *all;
  }
  MadeWhileOff* open() {
    const std::lock_guard<std::mutex> lock(mutex);
    threads.push_back(new MadeWhileOff);
    return threads.back();
  }
  void close(MadeWhileOff* made) {
    std::vector<StorageImpl*> dead;
    {
      const std::lock_guard<std::mutex> lock(mutex);  // who turns it on reads them
      dead = made->take_dead();
      auto& ended = of_ended_threads.storages;
      ended.insert(ended.end(), made->storages.begin(), made->storages.end());
      threads.erase(std::find(threads.begin(), threads.end(), made));
      if (of_ended_threads.is_full()) {
        const auto more = of_ended_threads.take_dead();
        dead.insert(dead.end(), more.begin(), more.end());
      }
    }
    delete made;
    MadeWhileOff::drop(dead);
  }
};

void open_made(detail::Thread& mine) {
  struct Own {
    explicit Own(detail::Thread& thread) : mine(thread) {}
    ~Own() {
      MadeWhileOff* made = std::exchange(mine.made, nullptr);
      mine.ends = true;
      if (!in_child()) {  // a thread of the parent may have had the lock
        AllMadeWhileOff::all().close(made);
      }
    }
    detail::Thread& mine;
  };
  mine.made = AllMadeWhileOff::all().open();
  if (C10_LIKELY(!mine.ends)) {  // else nobody tells when it is over: leaked
    thread_local Own own(mine);
  }
}

}  // namespace

void note_later(StorageImpl* storage) {
  if (C10_UNLIKELY(in_child())) {
    return;
  }
  detail::Thread& mine = detail::this_thread();
  if (C10_UNLIKELY(mine.made == nullptr)) {
    open_made(mine);
  }
  mine.made->add(storage);
}

// All that they were used by is over. Other threads go on letting go of them: each is kept alive
// for as long as it is looked at.
void note_made_while_off() {
  std::vector<StorageImpl*> made;
  {
    auto& all = AllMadeWhileOff::all();
    const std::lock_guard<std::mutex> lock(all.mutex);
    made.swap(all.of_ended_threads.storages);
    for (MadeWhileOff* thread : all.threads) {
      made.insert(made.end(), thread->storages.begin(), thread->storages.end());
      thread->storages.clear();
    }
  }
  for (StorageImpl* storage : made) {
    EngineScope scope;
    const ::lms::EngineLock lock(state().engine.mutex());
    if (state().backend.acquire(storage) && manageable(storage)) {
      state().engine.note(nullptr, storage, stream_for(storage));
    }
    drop_weak_later(storage);
  }
}

void pin(StorageImpl* storage) {
  with_host_memory([storage] {
    EngineScope scope;
    state().engine.pin(storage, stream_for(storage));
  });
  EngineScope scope;
  expose_to_capture(storage, stream_for(storage));
}

void unpin(StorageImpl* storage) {
  EngineScope scope;
  mark_external_streams();  // after what has used the pointer
  state().engine.unpin(storage);
}

void expose(StorageImpl* storage) {
  with_host_memory([storage] {
    EngineScope scope;
    state().engine.expose(storage, stream_for(storage));
  });
}

void unexpose(StorageImpl* storage) {
  EngineScope scope;
  mark_external_streams();
  state().engine.unexpose(storage);
}

void wait_for_arrival(StorageImpl* storage) {
  for (const ::lms::FencePtr& copy : state().engine.before_use(storage)) {
    copy->wait();
  }
}

void wait_for_memory(void* pointer) {
  ::lms::Marks owed;
  {
    EngineScope scope;
    const ::lms::EngineLock lock(state().engine.mutex());
    owed = state().backend.owed_to_others({::lms::Place::kDevice, pointer, 0, 0});
  }
  for (const ::lms::MarkPtr& mark : owed) {
    mark->wait();
  }
}

bool exposed(StorageImpl* storage) { return state().engine.exposed(storage); }

void exclude(StorageImpl* storage) {
  with_host_memory([storage] {
    EngineScope scope;
    state().engine.exclude(storage, stream_for(storage));
  });
}

void include(StorageImpl* storage) {
  EngineScope scope;
  state().engine.include(storage);
}

bool excluded(StorageImpl* storage) { return state().engine.excluded(storage); }

bool on_host(StorageImpl* storage) {
  EngineScope scope;
  const ::lms::EngineLock lock(state().engine.mutex());
  return state().backend.locate(storage).place == ::lms::Place::kHost;
}

bool evict(StorageImpl* storage) {
  return with_host_memory([storage] {
    EngineScope scope;
    const ::lms::EngineLock lock(state().engine.mutex());
    return reclaiming() && state().engine.evict(storage);
  });
}

bool drop_if_out(StorageImpl* storage) {
  EngineScope scope;
  const ::lms::EngineLock lock(state().engine.mutex());
  return !state().engine.pinned(storage) && state().backend.drop_if_out(storage);
}

bool page_in_if_free(StorageImpl* storage) {
  EngineScope scope;
  return state().engine.page_in(storage, stream_for(storage), ::lms::Reclaim::kNone);
}

size_t reclaim_inactive(DeviceIndex device) {
  size_t moved = 0;
  with_host_memory([&moved, device] {
    EngineScope scope;
    const ::lms::EngineLock lock(state().engine.mutex());
    if (!reclaiming()) {
      return;
    }
    for (const auto& candidate : state().engine.candidates(device, ::lms::Sizes::kAny)) {
      if (state().engine.evict(candidate.key)) {
        moved += candidate.extent.bytes;
      }
    }
  });
  return moved;
}

}  // namespace c10::cuda::lms
