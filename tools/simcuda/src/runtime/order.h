// SPDX-License-Identifier: Apache-2.0
// What the files of the runtime tell the order checker: all that orders, and all that touches
// memory, when it is issued. Each returns at once where the checker is off. All are called with the
// mutex held.
#pragma once

#include "../order/clock.h"
#include "../order/region.h"
#include "state.h"

namespace simcuda {

// What a command does to memory. `name` lives as long as the process.
struct Work {
  struct Use {
    order::Region region;
    bool write;
  };
  const char* name;
  std::vector<Use> uses;
};

bool order_on();
Work work_of(const SimcudaWork& given);

// A command takes its place on its stream. An error: it races, and that is to be refused.
cudaError_t order_note(Stream& stream, const Work& work);
// The host reads or writes memory, or gives it back, with what it knows now.
cudaError_t order_host_use(const Work& work);
// The memory is gone.
void order_forget(const void* memory, size_t bytes);

order::Snapshot order_record(Stream& stream);
void order_wait(Stream& stream, const order::Snapshot& recorded);
// The host has learnt that something is done: what was recorded; all of a stream; all of a device,
// or of all (-1).
void order_host(const order::Snapshot& recorded);
void order_host_stream(Stream& stream);
void order_host_device(int device);
// Whether a query may say that this is done. Strict queries tell the host nothing that it did not
// wait for, until they were asked very often.
bool order_may_answer(const order::Snapshot& recorded, long& asked);
bool order_may_answer(Stream& stream);
void order_destroyed(Stream& stream);

}  // namespace simcuda
