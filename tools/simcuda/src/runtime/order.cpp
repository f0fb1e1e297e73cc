// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../order/history.h"
#include "../order/races.h"
#include "../order/stack.h"
#include "refuse.h"

namespace simcuda {
namespace {

using order::Actor;
using order::Snapshot;

bool setting_is(const char* variable, const char* value) {
  const char* text = getenv(variable);
  return text && strcmp(text, value) == 0;
}

// A program that polls gets its answer in the end.
constexpr long kPatience = 1000;

struct Checker {
  bool refuses = setting_is("SIMCUDA_ORDER", "error");
  bool strict_queries = setting_is("SIMCUDA_QUERIES", "strict");
  uint64_t trace =
      getenv("SIMCUDA_ORDER_TRACE") ? strtoull(getenv("SIMCUDA_ORDER_TRACE"), nullptr, 10) : 0;
  order::Clocks clocks;
  std::vector<std::string> names{"the host"};  // by actor
  std::vector<Stream*> blocking;               // that wait for a legacy default stream
  order::History history;
  order::Races races;
  uint64_t operations = 0;

  Actor actor_of(Stream& stream);
  const order::Clock& known_to(Stream& stream);
  order::Operation begin(const char* name, const order::Epoch& when);
  cudaError_t tell(const order::Access& first, const order::Operation& second, bool write,
                   uintptr_t begin, uintptr_t end);
};

Checker* checker() {
  static Checker* const instance = [] {
    bool on = setting_is("SIMCUDA_ORDER", "report") || setting_is("SIMCUDA_ORDER", "error");
    return on ? new Checker : nullptr;
  }();
  return instance;
}

Stream& legacy_of(Stream& stream) { return state().devices[stream.device]->default_stream; }

bool blocks(Stream& stream) { return !(stream.flags & cudaStreamNonBlocking); }

Actor Checker::actor_of(Stream& stream) {
  if (stream.actor == order::kHost) {
    stream.actor = clocks.add();
    bool legacy = &stream == &legacy_of(stream);
    std::string name = legacy ? "the default stream" : "stream " + std::to_string(stream.actor);
    if (state().devices.size() > 1) name += " of device " + std::to_string(stream.device);
    names.push_back(std::move(name));
    if (!legacy && blocks(stream)) blocking.push_back(&stream);
  }
  return stream.actor;
}

// What is done before the stream's next command begins: a legacy default stream and the blocking
// streams of its device wait for each other.
const order::Clock& Checker::known_to(Stream& stream) {
  Actor actor = actor_of(stream);
  Stream& legacy = legacy_of(stream);
  if (&stream == &legacy) {
    for (Stream* other : blocking) {
      if (other->device == stream.device) clocks.order(other->actor, actor);
    }
  } else if (blocks(stream)) {
    clocks.order(actor_of(legacy), actor);
  }
  return clocks.of(actor);
}

order::Operation Checker::begin(const char* name, const order::Epoch& when) {
  order::Operation operation{name, ++operations, when};
  if (operation.number == trace) {
    fprintf(stderr, "simcuda: operation %llu is %s\n%s", static_cast<unsigned long long>(trace),
            name, order::python_stack().c_str());
  }
  return operation;
}

cudaError_t Checker::tell(const order::Access& first, const order::Operation& second, bool write,
                          uintptr_t begin, uintptr_t end) {
  auto party = [&](const order::Operation& o, bool writes) {
    return order::Party{o.name, names[o.when.actor], writes, o.when.actor == order::kHost,
                        o.number};
  };
  uintptr_t base = 0;
  Allocation* allocation = find_allocation(reinterpret_cast<void*>(begin), &base);
  order::Race race{party(first.operation, first.write),
                   party(second, write),
                   allocation && allocation->on_device() ? "device memory" : "pinned host memory",
                   base,
                   begin - base,
                   end - begin};
  auto [kept, fresh] = races.add(std::move(race));
  if (kept == nullptr) return cudaSuccess;
  if (fresh) {
    kept->stack = order::python_stack();
    fprintf(stderr, "simcuda: RACE %s\n%s", kept->text().c_str(), kept->stack.c_str());
    fflush(stderr);
  }
  if (!refuses) return cudaSuccess;
  if (state().abort_on_refusal) abort();
  remember_refusal("a race: " + kept->text());
  return fail(cudaErrorNotSupported);
}

}  // namespace

bool order_on() { return checker() != nullptr; }

cudaError_t order_note(Stream& stream, const Work& work) {
  Checker* c = checker();
  if (c == nullptr) return cudaSuccess;
  c->known_to(stream);
  auto operation = c->begin(work.name, c->clocks.advance(stream.actor));
  const auto &known = c->clocks.of(stream.actor), &host = c->clocks.of(order::kHost);
  cudaError_t error = cudaSuccess;
  for (const auto& use : work.uses) {
    c->history.note(use.region, operation, use.write, known, host,
                    [&](const order::Access& earlier, uintptr_t begin, uintptr_t end) {
                      if (cudaError_t e = c->tell(earlier, operation, use.write, begin, end)) {
                        error = e;
                      }
                    });
  }
  return error;
}

// Not remembered: whatever is issued later comes after it.
cudaError_t order_host_use(const Work& work) {
  Checker* c = checker();
  if (c == nullptr) return cudaSuccess;
  auto operation = c->begin(work.name, {order::kHost, 0});
  cudaError_t error = cudaSuccess;
  for (const auto& use : work.uses) {
    c->history.check(use.region, use.write, c->clocks.of(order::kHost),
                     [&](const order::Access& earlier, uintptr_t begin, uintptr_t end) {
                       if (cudaError_t e = c->tell(earlier, operation, use.write, begin, end)) {
                         error = e;
                       }
                     });
  }
  return error;
}

void order_forget(const void* memory, size_t bytes) {
  auto begin = reinterpret_cast<uintptr_t>(memory);
  if (Checker* c = checker()) c->history.forget(begin, begin + bytes);
}

Snapshot order_record(Stream& stream) {
  Checker* c = checker();
  if (c == nullptr) return nullptr;
  c->known_to(stream);
  return c->clocks.record(stream.actor);
}

void order_wait(Stream& stream, const Snapshot& recorded) {
  Checker* c = checker();
  if (c == nullptr) return;
  c->known_to(stream);
  c->clocks.wait(stream.actor, recorded);
}

void order_host(const Snapshot& recorded) {
  if (Checker* c = checker()) c->clocks.wait(order::kHost, recorded);
}

void order_host_stream(Stream& stream) {
  Checker* c = checker();
  if (c == nullptr) return;
  c->known_to(stream);
  c->clocks.order(stream.actor, order::kHost);
}

void order_host_device(int device) {
  if (!order_on()) return;
  for (auto& d : state().devices) {
    Stream& stream = d->default_stream;
    if (device < 0 || stream.device == device) order_host_stream(stream);
  }
  for (auto* streams : {&state().streams, &state().ending}) {
    for (Stream* stream : *streams) {
      if (stream->actor != order::kHost && (device < 0 || stream->device == device)) {
        order_host_stream(*stream);
      }
    }
  }
}

bool order_may_answer(const Snapshot& recorded, long& asked) {
  Checker* c = checker();
  if (c == nullptr || !c->strict_queries || !recorded) return true;
  return c->clocks.of(order::kHost).knows(*recorded) || ++asked > kPatience;
}

bool order_may_answer(Stream& stream) {
  return order_may_answer(order_record(stream), stream.asked);
}

void order_destroyed(Stream& stream) {
  Checker* c = checker();
  if (c == nullptr || stream.actor == order::kHost) return;
  auto& all = c->blocking;
  auto it = std::find(all.begin(), all.end(), &stream);
  if (it == all.end()) return;
  c->clocks.order(stream.actor, c->actor_of(legacy_of(stream)));  // its work is still waited for
  all.erase(it);
}

Work work_of(const SimcudaWork& given) {
  Work work{given.name, {}};
  work.uses.reserve(given.count);
  for (const auto* v = given.views; v != given.views + given.count; v++) {
    auto at = reinterpret_cast<uintptr_t>(v->at);
    work.uses.push_back(
        {order::Region(at, v->element, v->dimensions, v->sizes, v->strides), v->written != 0});
  }
  return work;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int simcuda_order_on() { return order_on(); }

int simcuda_order_note(void* handle, int device, const SimcudaWork* work) {
  Lock lock(state().mutex);
  return order_note(resolve(handle, device), work_of(*work));
}

int simcuda_order_host_use(const SimcudaWork* work) {
  Lock lock(state().mutex);
  return order_host_use(work_of(*work));
}

int simcuda_order_pinned(const void* pointer) {
  auto& g = state();
  const char* base = g.host_arena.base();
  if (pointer >= base && pointer < base + g.host_arena.size()) return 1;
  if (g.registered == 0) return 0;
  Lock lock(g.mutex);
  Allocation* allocation = find_allocation(pointer);
  return allocation && allocation->kind == Kind::kRegistered;
}

void simcuda_order_stack(int file, int signal) {
  Lock lock(state().mutex);
  order::set_python_stack(file, signal);
}

void simcuda_order_suppress(const char* first, const char* second, size_t bytes) {
  Lock lock(state().mutex);
  if (Checker* c = checker()) c->races.suppress({first, second, bytes});
}

// Records end with 0x1E, the fields in them with 0x1F.
const char* simcuda_order_races() {
  thread_local std::string text;
  text.clear();
  Lock lock(state().mutex);
  Checker* c = checker();
  if (c == nullptr) return "";
  auto field = [](const std::string& value) { text += value + '\x1f'; };
  for (const auto& race : c->races.found()) {
    for (const auto* party : {&race.first, &race.second}) {
      field(party->name);
      field(party->actor);
      field(party->write ? "write" : "read");
      field(std::to_string(party->number));
    }
    field(race.memory);
    field(std::to_string(race.base));
    field(std::to_string(race.offset));
    field(std::to_string(race.bytes));
    field(std::to_string(race.count));
    field(race.missing());
    field(race.stack);
    text += '\x1e';
  }
  return text.c_str();
}

void simcuda_order_clear() {
  Lock lock(state().mutex);
  if (Checker* c = checker()) c->races.clear();
}

void simcuda_order_set_strict(int on) {
  Lock lock(state().mutex);
  if (Checker* c = checker()) c->strict_queries = on != 0;
}

uint64_t simcuda_order_suppressed(size_t index) {
  Lock lock(state().mutex);
  Checker* c = checker();
  return c && index < c->races.suppressions().size() ? c->races.suppressions()[index].count : 0;
}

void simcuda_order_size(SimcudaOrderSize* out) {
  Lock lock(state().mutex);
  *out = {};
  if (Checker* c = checker()) *out = {c->operations, c->history.ranges(), c->history.dropped()};
}

}  // extern "C"
