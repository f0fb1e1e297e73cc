// SPDX-License-Identifier: Apache-2.0
// The dry device: its profile and its clock. What the other files do in dry mode is in them.
#include "state.h"

using namespace simcuda;

namespace simcuda {

bool dry() { return state().clock != nullptr; }

void spend(clock::Nanoseconds time) {
  if (dry()) state().clock->spend(time);
}

clock::Nanoseconds transfer_time(size_t bytes, double rate) {
  return static_cast<clock::Nanoseconds>(1e9 * static_cast<double>(bytes) / rate);
}

}  // namespace simcuda

extern "C" {

void simcuda_start_dry(const SimcudaProfile* profile) {
  Lock lock(state().mutex);
  auto& g = state();
  g.profile = *profile;
  g.poison = false;
  g.clock = std::make_unique<clock::Clock>(static_cast<int>(g.devices.size()), profile->duplex);
  for (auto& device : g.devices) {
    Stream& stream = device->default_stream;
    stream.line = &g.clock->open(stream.device, clock::Order::kLegacy);
  }
}

const SimcudaProfile* simcuda_dry() { return dry() ? &state().profile : nullptr; }

void simcuda_dry_op(void* handle, int device, int64_t nanoseconds) {
  Lock lock(state().mutex);
  state().counters.ops++;
  spend(state().profile.op);
  state().clock->run(*resolve(handle, device).line, clock::Unit::kCompute, nanoseconds);
}

void simcuda_times(int device, SimcudaTimes* out) {
  Lock lock(state().mutex);
  *out = {};
  if (!dry() || !valid_device(device)) return;
  clock::Clock& c = *state().clock;
  *out = {c.now(), c.waited(), c.busy(device, clock::Unit::kCompute),
          c.busy(device, clock::Unit::kIn), c.busy(device, clock::Unit::kOut)};
}

}  // extern "C"
