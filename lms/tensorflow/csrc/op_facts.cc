// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/op_facts.h"

#include <cstring>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/platform/mutex.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tensorflow {
namespace lms {
namespace {

using Names = std::unordered_set<std::string>;

const Names& ByReference() {
  static const auto* names = new Names{"Identity",
                                       "IdentityN",
                                       "RefIdentity",
                                       "Reshape",
                                       "ExpandDims",
                                       "Squeeze",
                                       "StopGradient",
                                       "PreventGradient",
                                       "Shape",
                                       "ShapeN",
                                       "Size",
                                       "Rank",
                                       "Bitcast",
                                       "NoOp",
                                       "Switch",
                                       "_SwitchN",
                                       "Merge",
                                       "Enter",
                                       "Exit",
                                       "NextIteration",
                                       "LoopCond",
                                       "ControlTrigger",
                                       "EnsureShape",
                                       "BroadcastGradientArgs",
                                       "PartitionedCall",
                                       "StatefulPartitionedCall",
                                       "If",
                                       "StatelessIf",
                                       "Case",
                                       "StatelessCase",
                                       "While",
                                       "StatelessWhile",
                                       "_If",
                                       "_While",
                                       "For",
                                       "SymbolicGradient",
                                       "_Arg",
                                       "_DeviceArg",
                                       "VarIsInitializedOp",
                                       "VariableShape",
                                       "VarHandleOp",
                                       "_VarHandlesOp",
                                       "EmptyTensorList",
                                       "TensorListReserve",
                                       "TensorListResize",
                                       "TensorListLength",
                                       "TensorListElementShape",
                                       "TensorListPushBack",
                                       "TensorListSetItem",
                                       "OptionalFromValue",
                                       "OptionalHasValue",
                                       "OptionalNone"};
  return *names;
}

const Names& ReadsVariables() {
  static const auto* names = new Names{"ReadVariableOp", "_ReadVariablesOp", "ResourceGather",
                                       "ResourceGatherNd", "_FusedResourceGather"};
  return *names;
}

// They copy what is in a list.
const Names& ReadsLists() {
  static const auto* names = new Names{"TensorListStack", "TensorListGather", "TensorListConcat",
                                       "TensorListConcatV2", "AddN"};
  return *names;
}

// One tensor of all that they read.
const Names& Gathers() {
  static const auto* names = new Names{
      "TensorListStack", "TensorListGather", "TensorListConcat", "TensorListConcatV2", "Pack",
      "Concat",          "ConcatV2"};
  return *names;
}

// What they put into a list is a copy of a part of their input, a sum, or zeros.
const Names& MakesLists() {
  static const auto* names = new Names{"TensorListFromTensor",
                                       "TensorListScatter",
                                       "TensorListScatterV2",
                                       "TensorListScatterIntoExistingList",
                                       "TensorListSplit",
                                       "TensorListPushBackBatch",
                                       "AddN",
                                       "ZerosLike"};
  return *names;
}

const Names& TakesFromLists() {
  static const auto* names =
      new Names{"TensorListGetItem", "TensorListPopBack", "OptionalGetValue"};
  return *names;
}

// They have no kernel for GPUs.
const Names& OnHost() {
  static const auto* names =
      new Names{"Save", "SaveSlices", "SaveV2", "Restore", "RestoreSlice", "RestoreV2"};
  return *names;
}

// Stateful, but what they keep is not one of their inputs.
const Names& KeepsNothing() {
  static const auto* names = new Names{"RandomUniform",
                                       "RandomUniformInt",
                                       "RandomStandardNormal",
                                       "TruncatedNormal",
                                       "ParameterizedTruncatedNormal",
                                       "RandomShuffle",
                                       "RandomGamma",
                                       "RandomPoisson",
                                       "RandomPoissonV2",
                                       "Multinomial",
                                       "Dropout",
                                       "FusedDropout",
                                       "Print",
                                       "PrintV2",
                                       "Assert",
                                       "Timestamp",
                                       "Save",
                                       "SaveSlices",
                                       "SaveV2",
                                       "Restore",
                                       "RestoreV2",
                                       "WriteFile",
                                       "FusedBatchNorm",
                                       "FusedBatchNormV2",
                                       "FusedBatchNormV3",
                                       "_HostRecv",
                                       "_Recv",
                                       "XlaLaunch"};
  return *names;
}

bool IsStateful(const std::string& type) {
  const OpDef* op = nullptr;
  return !OpRegistry::Global()->LookUpOpDef(type, &op).ok() || op->is_stateful();
}

// They write their inputs, which no type of theirs tells.
bool WritesInputs(const std::string& type) {
  return type.find("Inplace") != std::string::npos || type == "_ParallelConcatUpdate";
}

OpFacts Find(const std::string& type) {
  OpFacts facts;
  facts.by_reference = ByReference().count(type) > 0;
  facts.returns = type == "_Retval" || type == "_DeviceRetval";
  facts.sends = type == "_Send" || type == "_HostSend";
  facts.reads_variables = ReadsVariables().count(type) > 0;
  facts.reads_variable = type == "ReadVariableOp" || type == "_ReadVariablesOp";
  facts.reads_lists = ReadsLists().count(type) > 0;
  facts.repeatable = !IsStateful(type) && !WritesInputs(type);
  facts.gathers = Gathers().count(type) > 0;
  facts.on_host = OnHost().count(type) > 0;
  facts.adds_lists = type == "AddN";
  facts.makes_list = MakesLists().count(type) > 0;
  facts.takes_from_list = TakesFromLists().count(type) > 0;
  facts.handles_lists = facts.reads_lists || facts.makes_list || facts.takes_from_list;
  facts.keeps_inputs = type.find("PyFunc") != std::string::npos ||
                       (IsStateful(type) && KeepsNothing().count(type) == 0);
  return facts;
}

// XLA's kernel of a call has the type of the call, or the name of the function. The class is
// compiled into another library, so it is known by name.
std::string TypeOf(const OpKernel& kernel) {
  if (std::strcmp(typeid(kernel).name(), "N10tensorflow18XlaLocalLaunchBaseE") == 0) {
    return "XlaLaunch";
  }
  return std::string(kernel.type_string());
}

}  // namespace

const OpFacts& FactsOf(const OpKernel& kernel) {
  // Each thread has its own way to them, so that to look them up needs no lock. They are never
  // freed: an asynchronous op may outlive the thread that began it.
  thread_local std::unordered_map<std::string, const OpFacts*> known;
  const std::string type = TypeOf(kernel);
  const auto found = known.find(type);
  if (found != known.end()) return *found->second;
  static auto* all = new std::unordered_map<std::string, OpFacts>;
  static auto* all_mu = new mutex;
  mutex_lock lock(*all_mu);
  const auto made = all->find(type);
  const OpFacts& facts =
      made != all->end() ? made->second : all->emplace(type, Find(type)).first->second;
  known.emplace(type, &facts);
  return facts;
}

bool SendsWithinProcess(const OpKernel& kernel) {
  std::string from, to;
  bool to_client = false;
  if (GetNodeAttr(kernel.def(), "client_terminated", &to_client).ok() && to_client) return false;
  if (!GetNodeAttr(kernel.def(), "send_device", &from).ok() ||
      !GetNodeAttr(kernel.def(), "recv_device", &to).ok()) {
    return false;
  }
  return DeviceNameUtils::IsSameAddressSpace(from, to);
}

}  // namespace lms
}  // namespace tensorflow
