// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels in the tables of ATenDispatch, in PyTorch 1.2 and 1.3: plain functions, with nothing that
// comes with a call and tells which it is. So each place of a table has a function of its own.
// Included by the versions' headers, which say where a table has what (kPlaces).

#include <ATen/core/ATenDispatch.h>
#include <torch/csrc/jit/script/function_schema_parser.h>
#include <torch/csrc/lms/compat/interception_call.h>
#include <torch/csrc/lms/compat/interception_private.h>

#include <array>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>

namespace torch::lms {

struct Tables {
  friend auto member(Tables);
};
template struct Grant<Tables, &at::ATenDispatch::op_tables_>;

struct TablesMutex {
  friend auto member(TablesMutex);
};
template struct Grant<TablesMutex, &at::ATenDispatch::mutex_>;

struct Functions {
  friend auto member(Functions);
};
template struct Grant<Functions, &at::ATenOpTable::function_table_>;

template <class Signature, size_t kOperator, size_t kPlace>
struct InPlace;

template <class Return, class... Args, size_t kOperator, size_t kPlace>
struct InPlace<Return(Args...), kOperator, kPlace> {
  static inline const Hook* hook = nullptr;  // before the function is called

  static Return call(Args... arguments) {
    return call_typed<Return, Args...>(*hook, nullptr, arguments...);
  }
};

struct Place {
  void* function;
  const Hook** hook;
};
using Places = std::array<Place, kPlaces.size()>;

template <class Signature, size_t kOperator, size_t kPlace>
Place place() {
  using In = InPlace<Signature, kOperator, kPlace>;
  return {reinterpret_cast<void*>(&In::call), &In::hook};
}

template <class Signature, size_t kOperator>
Places places() {
  return {place<Signature, kOperator, 0>(), place<Signature, kOperator, 1>(),
          place<Signature, kOperator, 2>()};
}

// By the operator's schema, as upstream writes it.
inline const std::unordered_map<std::string, Places>& all_places() {
  using namespace at;  // the signatures are as upstream's headers write them
  static const auto* all = new std::unordered_map<std::string, Places>{
#define LMS_SIGNATURE(name, overload, ...)
#define LMS_FUNCTION(schema, ...) {schema, places<__VA_ARGS__, __COUNTER__>()},
#include <torch/csrc/lms/signatures.inc>
#undef LMS_SIGNATURE
#undef LMS_FUNCTION
  };
  return *all;
}

// Nothing is known of an operator with types that schemas have no name for.
inline Hook hook_for(const std::string& schema) {
  try {
    return hook_for(torch::jit::parseSchema(schema));
  } catch (const std::exception&) {
    Hook hook;
    hook.facts.name = schema.substr(0, schema.find('('));
    hook.facts.has_results = true;
    return hook;
  }
}

inline bool hook_table(const std::string& schema, at::ATenOpTable& table, const Places& places) {
  const Hook hook = hook_for(schema);
  if (hook.facts.touches_nothing()) {
    return false;
  }
  auto& functions = table.*member(Functions{});
  bool any = false;
  for (size_t i = 0; i < places.size(); ++i) {
    void*& function = functions[static_cast<size_t>(kPlaces[i])];
    if (function == nullptr || (i + 1 == places.size() && only_calls_others(functions))) {
      continue;
    }
    auto* its = new Hook(hook);  // leaked: operators are called until the process ends
    its->unboxed = function;
    *places[i].hook = its;
    replace(function, places[i].function);
    any = true;
  }
  return any;
}

inline size_t hook_more() {
  at::ATenDispatch& dispatch = at::globalATenDispatch();
  std::lock_guard<std::mutex> lock(dispatch.*member(TablesMutex{}));
  size_t hooked = 0;
  for (auto& [schema, table] : dispatch.*member(Tables{})) {
    const auto known = all_places().find(schema);
    if (known != all_places().end() && hook_table(schema, table, known->second)) {
      ++hooked;
    }
  }
  return hooked;
}

}  // namespace torch::lms
