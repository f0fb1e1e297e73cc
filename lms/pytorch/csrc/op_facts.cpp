// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/lms/op_facts.h>

#include <algorithm>
#include <string>
#include <unordered_set>

namespace torch::lms {
namespace {

using c10::cuda::lms::Access;

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Views tell by their alias annotation; these do not, and touch no element either.
const std::unordered_set<std::string>& no_access() {
  static const std::unordered_set<std::string> names{"_efficientzerotensor",
                                                     "_fused_sdp_choice",
                                                     "_has_same_storage_numel",
                                                     "_reshape_alias",
                                                     "_unsafe_view",
                                                     "as_strided_",
                                                     "detach_",
                                                     "empty_like",
                                                     "is_same_size",

                                                     "lift",
                                                     "lift_fresh",
                                                     "new_empty",
                                                     "new_empty_strided",
                                                     "squeeze_",
                                                     "swapaxes_",
                                                     "swapdims_",
                                                     "t_",
                                                     "transpose_",
                                                     "unsqueeze_"};
  return names;
}

// Their kernels write arguments that the schema does not mark.
bool writes_silently(const std::string& op, const c10::Argument& argument) {
  if (contains(op, "batch_norm") && !contains(op, "backward")) {  // which reads them at most
    return starts_with(argument.name(), "running_");
  }
  return contains(op, "_rnn") || contains(op, "moving_avg");
}

// Gives `self` another storage, and looks at the bytes of neither, unless the overload has sizes,
// for which the new one may have to grow.
bool is_set(const c10::FunctionSchema& schema, const std::string& op) {
  if (op != "set_") {
    return false;
  }
  const auto& arguments = schema.arguments();
  return std::none_of(arguments.begin() + 1, arguments.end(),
                      [](const c10::Argument& argument) { return argument.name() == "size"; });
}

bool may_hold_tensor(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  return contains(type, "Tensor") || contains(type, "Storage") || type == "Any" ||
         argument.type()->kind() == c10::TypeKind::VarType;
}

// Of an argument that is given for a result (out=).
bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

// They write arguments, but not before they have all memory they need.
bool writes_last(const std::string& op) {
  static const std::unordered_set<std::string> names{"copy_", "cudnn_batch_norm",
                                                     "native_batch_norm"};
  return names.count(op) > 0;
}

bool is_foreach(const std::string& op) {
  static const std::unordered_set<std::string> fused{"_amp_foreach_non_finite_check_and_unscale_",
                                                     "_fused_adagrad_", "_fused_adam_",
                                                     "_fused_adamw_", "_fused_sgd_"};
  return starts_with(op, "_foreach_") || fused.count(op) > 0;
}

}  // namespace

OpFacts facts_of(const c10::FunctionSchema& schema) {
  OpFacts facts;
  const std::string& name = facts.name = schema.name();
  const auto colons = name.find("::");
  const std::string space = name.substr(0, colons);
  const std::string op = colons == std::string::npos ? name : name.substr(colons + 2);
  const bool trusted = space == "aten" || space == "prims";

  uint32_t index = 0;
  bool writes_operands = false, writes_out = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (may_hold_tensor(argument)) {
      const auto& alias = argument.alias_info();
      const bool written = !trusted || (alias && alias->isWrite()) || writes_silently(op, argument);
      const bool overwritten = trusted && index == 0 && (op == "zero_" || op == "copy_");
      const bool held =
          trusted && ((index == 0 && op == "set_") || is_set(schema, op) || op == "record_stream");
      const Access write = overwritten ? Access::kOverwrite : Access::kWrite;
      const Access access = written ? write : Access::kRead;
      writes_operands = writes_operands || (written && !is_out(argument));
      writes_out = writes_out || (written && is_out(argument));
      facts.tensors.push_back({index, held ? Access::kHold : access});
    }
    ++index;
  }
  bool view = false;
  for (const c10::Argument& result : schema.returns()) {
    const auto& alias = result.alias_info();
    view = view || (alias && !alias->isWrite());
    facts.has_results = facts.has_results || (may_hold_tensor(result) && !alias);
  }
  if (space == "c10d" || space == "symm_mem") {  // _c10d_functional calls c10d
    facts.kind = OpFacts::Kind::kCollective;
  } else if (trusted && (view || no_access().count(op) > 0)) {
    facts.kind = OpFacts::Kind::kNoAccess;
  } else if (trusted && is_foreach(op)) {
    facts.kind = OpFacts::Kind::kForeach;
  }
  const bool writes = std::any_of(facts.tensors.begin(), facts.tensors.end(),
                                  [](const auto& t) { return t.access != Access::kRead; });
  facts.independent = trusted && op != "_backward";
  // Kernels of prims are Python's, where the error of one that finds no room may have any effect.
  facts.repeatable =
      facts.independent && space == "aten" && (writes ? writes_last(op) : facts.has_results);
  facts.resizes = trusted && (writes_out || starts_with(op, "resize_"));
  facts.fills = facts.independent && space == "aten" && writes && !writes_operands;
  return facts;
}

}  // namespace torch::lms
