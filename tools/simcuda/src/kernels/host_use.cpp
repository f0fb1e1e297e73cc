// SPDX-License-Identifier: Apache-2.0
// For the order checker: what the CPU's own operators read and write in pinned host memory.
//
// A dispatch key of the CPU's cannot be hooked without putting aside the kernel that is there, so
// operators are observed as the profiler does it, before they run.
#include <ATen/record_function.h>
#include <simcuda.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels.h"
#include "launch.h"

namespace simcuda {
namespace {

// What an operator of aten does to the data of CPU tensors.
struct Facts {
  std::string name;
  bool touches = false;
  std::vector<bool> written;  // by argument
};

// Have a CPU kernel, but leave the data of their arguments alone.
bool leaves_data_alone(const std::string& name) {
  static const std::unordered_set<std::string> ops = {"aten::set_", "aten::resize_",
                                                      "aten::is_set_to", "aten::record_stream"};
  return ops.count(name) > 0 || name.rfind("aten::empty", 0) == 0 ||
         name.rfind("aten::_nested", 0) == 0;
}

const Facts& facts_of(const at::RecordFunction& function) {
  // By the address of the schema's name: those of aten stay as long as the process.
  thread_local std::unordered_map<const char*, Facts> known;
  auto [entry, fresh] = known.try_emplace(function.name());
  Facts& facts = entry->second;
  auto name = fresh ? function.operator_name() : nothing;
  auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : nothing;
  if (!op) return facts;
  facts.name = name->name;
  bool reads = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || name->name == "aten::copy_";
  facts.touches = reads && !is_view(op->schema()) && !leaves_data_alone(name->name);
  for (const auto& argument : op->schema().arguments()) {
    facts.written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }
  return facts;
}

// The checker keeps names for as long as the process; `known` goes with its thread.
const char* lasting(const std::string& name) {
  static auto* names = new std::unordered_set<std::string>;
  static auto* mutex = new std::mutex;
  std::lock_guard<std::mutex> guard(*mutex);
  return names->insert(name).first->c_str();
}

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  if (on_device() || strncmp(function.name(), "aten::", 6) != 0) return nullptr;
  const Facts& facts = facts_of(function);
  if (!facts.touches) return nullptr;
  auto inputs = function.inputs();
  std::vector<SimcudaView> views;
  bool elsewhere = false;
  for (size_t i = 0; i < inputs.size() && i < facts.written.size(); i++) {
    for_each_tensor(inputs[i], [&](const at::Tensor& t) {
      if (!t.defined()) return;
      elsewhere |= !t.is_cpu();
      if (!t.is_cpu() || t.layout() != c10::kStrided || t.numel() == 0 || !t.has_storage()) return;
      const void* base = t.storage().unsafeGetStorageImpl()->data();
      if (!simcuda_order_pinned(base)) return;
      views.push_back({data_of(t), static_cast<size_t>(t.element_size()), static_cast<int>(t.dim()),
                       t.sizes().data(), t.strides().data(), facts.written[i]});
    });
  }
  if (elsewhere || views.empty()) return nullptr;
  SimcudaWork work{lasting(facts.name), views.data(), views.size()};
  if (simcuda_order_host_use(&work) != 0) simcuda_refuse_later(simcuda_last_refusal());
  return nullptr;
}

}  // namespace

void observe_host_use() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace simcuda
