// SPDX-License-Identifier: Apache-2.0
// The dry device: its profile and its clock. What the other files do in dry mode is in them.
#include "trace.h"

using namespace simcuda;

namespace simcuda {

bool dry() { return state().clock != nullptr; }

bool tracing() { return state().trace != nullptr; }

State::~State() = default;

void spend(clock::Nanoseconds time) {
  if (dry()) state().clock->spend(time);
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

void simcuda_take_kernels() { state().unseen_kernels = dry(); }

void simcuda_keep_contents() {
  Lock lock(state().mutex);
  state().values.keep_all();
}

const SimcudaProfile* simcuda_dry() { return dry() ? &state().profile : nullptr; }

void simcuda_dry_op(void* handle, int device, const char* name, int64_t nanoseconds,
                    const SimcudaUse* uses, size_t count) {
  Lock lock(state().mutex);
  state().counters.ops++;
  spend(state().profile.op);
  Stream& stream = resolve(handle, device);
  if (tracing()) state().trace->op(name, stream, uses, count, true);
  uint64_t number = state().clock->run(*stream.line, clock::Unit::kCompute, nanoseconds);
  if (tracing()) state().trace->issued(number);
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
