// SPDX-License-Identifier: Apache-2.0
// cuDNN 8 and 9 by graphs of operations: descriptors with attributes, which refer to each other. A
// plan knows its operations, and a run of it says where their tensors lie.
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "library.h"

using namespace simcuda;
using library::Handle;
using library::Operand;

namespace {

// cudnnBackendAttributeName_t, as far as something is done about it.
enum Name {
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kConfigEngine = 300,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kForwardFilter = 703,
  kForwardInput = 704,
  kForwardOutput = 705,
  kBackwardDataFilter = 709,
  kBackwardDataInput = 710,  // written
  kBackwardDataOutput = 711,
  kBackwardFilterFilter = 715,  // written
  kBackwardFilterInput = 716,
  kBackwardFilterOutput = 717,
  kGraphOperations = 801,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorNumber = 906,
  kTensorVirtual = 907,
  kPackNumbers = 1000,
  kPackPointers = 1001,
  kEngineGraph = 1300,
};
constexpr int kDescriptor = 15;  // cudnnBackendAttributeType_t

size_t size_of(int type) {
  switch (type) {
    case 2:   // boolean
    case 24:  // character
      return 1;
    case 0:  // handle
    case 3:  // 64 bits
    case 5:  // double
    case 6:  // pointer
    case kDescriptor:
      return 8;
    case 26:  // fraction
      return 16;
    default:
      return 4;
  }
}

struct Descriptor;
using DescriptorPtr = std::shared_ptr<const Descriptor>;

// What an attribute refers to is copied: the program may end it before what refers to it.
struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<DescriptorPtr> descriptors;

  template <class T>
  T at(size_t index, T otherwise) const {
    if ((index + 1) * sizeof(T) > bytes.size()) return otherwise;
    memcpy(&otherwise, bytes.data() + index * sizeof(T), sizeof(T));
    return otherwise;
  }
};
struct Descriptor {
  int type;
  std::map<int, Attribute> attributes;

  const Attribute* find(int name) const {
    auto found = attributes.find(name);
    return found == attributes.end() ? nullptr : &found->second;
  }
  const Descriptor* refers(int name) const {
    const Attribute* of = find(name);
    return of && !of->descriptors.empty() ? of->descriptors.front().get() : nullptr;
  }
  void refer(int name, const Descriptor& to) {
    attributes[name] = {1, {}, {std::make_shared<const Descriptor>(to)}};
  }
};

struct Tensor {
  int64_t number;
  bool is_virtual;
  double elements, bytes, first;
};

Tensor tensor_of(const Descriptor& of) {
  constexpr size_t kSizes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8};  // of cudnnDataType_t
  auto value = [&](int name, auto otherwise) {
    const Attribute* attribute = of.find(name);
    return attribute ? attribute->at(0, otherwise) : otherwise;
  };
  int type = value(kTensorType, 0);
  Tensor made{value(kTensorNumber, int64_t{-1}), value(kTensorVirtual, false), 1, 0, 1};
  if (const Attribute* sizes = of.find(kTensorSizes)) {
    for (int64_t i = 0; i < sizes->count; i++) {
      const auto size = static_cast<double>(sizes->at(static_cast<size_t>(i), int64_t{1}));
      made.elements *= size;
      if (i == 0) made.first = size;
    }
  }
  made.bytes = made.elements * static_cast<double>(type >= 0 && type < 11 ? kSizes[type] : 4);
  return made;
}

// A kind of convolution: where its filter, its result and what it writes are.
struct Convolution {
  int filter, result, written;
};
constexpr Convolution kConvolutions[] = {
    {kForwardFilter, kForwardOutput, kForwardOutput},
    {kBackwardDataFilter, kBackwardDataOutput, kBackwardDataInput},
    {kBackwardFilterFilter, kBackwardFilterOutput, kBackwardFilterFilter},
};
// What other operations (pointwise, 750 to 799) write.
constexpr int kPointwiseOutputs[] = {753, 758};

bool writes(int name) {
  for (int output : kPointwiseOutputs) {
    if (name == output) return true;
  }
  for (const auto& kind : kConvolutions) {
    if (name == kind.written) return true;
  }
  return false;
}

}  // namespace

SIMCUDA_LIBRARY int cudnnBackendCreateDescriptor(int type, Descriptor** out) {
  *out = new Descriptor{type, {}};
  return 0;
}
SIMCUDA_LIBRARY int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  delete descriptor;
  return 0;
}
SIMCUDA_LIBRARY int cudnnBackendFinalize(Descriptor*) { return 0; }

SIMCUDA_LIBRARY int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type,
                                             int64_t count, const void* values) {
  Attribute attribute{count, {}, {}};
  if (type == kDescriptor) {
    auto* all = static_cast<Descriptor* const*>(values);
    for (int64_t i = 0; i < count; i++) {
      attribute.descriptors.push_back(std::make_shared<const Descriptor>(*all[i]));
    }
  } else {
    auto* begin = static_cast<const char*>(values);
    attribute.bytes.assign(begin, begin + static_cast<size_t>(count) * size_of(type));
  }
  descriptor->attributes[name] = std::move(attribute);
  return 0;
}

SIMCUDA_LIBRARY int cudnnBackendGetAttribute(Descriptor* descriptor, int name, int type,
                                             int64_t wanted, int64_t* found, void* out) {
  int64_t count = 0;
  if (type == kDescriptor) {
    auto** all = static_cast<Descriptor**>(out);
    if (name == kHeuristicResults) {  // one configuration, of an engine for this graph
      count = 1;
      if (const Descriptor* graph = descriptor->refers(kHeuristicGraph); graph && wanted > 0) {
        Descriptor engine{0, {}};
        engine.refer(kEngineGraph, *graph);
        all[0]->refer(kConfigEngine, engine);
      }
    } else if (const Attribute* attribute = descriptor->find(name)) {
      count = attribute->count;
      for (int64_t i = 0; i < count && i < wanted; i++) {
        all[i]->attributes = attribute->descriptors[static_cast<size_t>(i)]->attributes;
      }
    }
  } else if (name == kPlanWorkspace) {
    count = 1;
    if (wanted > 0)
      *static_cast<int64_t*>(out) = static_cast<int64_t>(library::convolution_workspace());
  } else if (const Attribute* attribute = descriptor->find(name)) {
    count = attribute->count;
    const auto given = static_cast<size_t>(wanted < count ? wanted : count) * size_of(type);
    if (given > 0) memcpy(out, attribute->bytes.data(), given);
  } else if (wanted == 1) {  // a number that nobody set, such as the engine's
    count = 1;
    memset(out, 0, size_of(type));
  }
  if (found) *found = count;
  return 0;
}

SIMCUDA_LIBRARY int cudnnBackendExecute(Handle* handle, const Descriptor* plan,
                                        const Descriptor* pack) {
  std::map<int64_t, const void*> places;
  const Attribute *numbers = pack->find(kPackNumbers), *pointers = pack->find(kPackPointers);
  for (int64_t i = 0; numbers && pointers && i < numbers->count; i++) {
    const auto index = static_cast<size_t>(i);
    places[numbers->at(index, int64_t{-1})] = pointers->at<const void*>(index, nullptr);
  }
  const Descriptor* config = plan->refers(kPlanConfig);
  const Descriptor* engine = config ? config->refers(kConfigEngine) : nullptr;
  const Descriptor* graph = engine ? engine->refers(kEngineGraph) : nullptr;
  const Attribute* operations = graph ? graph->find(kGraphOperations) : nullptr;
  std::vector<Operand> operands;
  double amount = 0;
  auto precision = library::Precision::kSingle;
  for (size_t i = 0; operations && i < operations->descriptors.size(); i++) {
    const Descriptor& operation = *operations->descriptors[i];
    for (const auto& [name, attribute] : operation.attributes) {
      if (attribute.descriptors.empty() || !attribute.descriptors[0]->find(kTensorSizes)) continue;
      const Tensor tensor = tensor_of(*attribute.descriptors[0]);
      auto place = places.find(tensor.number);
      if (tensor.is_virtual || place == places.end()) continue;  // never in memory, or a scalar
      operands.push_back({place->second, tensor.bytes, writes(name)});
    }
    for (const auto& kind : kConvolutions) {
      const Descriptor *filter = operation.refers(kind.filter),
                       *result = operation.refers(kind.result);
      if (filter == nullptr || result == nullptr) continue;
      const Tensor w = tensor_of(*filter), y = tensor_of(*result);
      amount += 2 * w.elements / w.first * y.elements;
      precision = library::precision_of(static_cast<size_t>(w.bytes / w.elements));
    }
  }
  return library::compute("cudnnBackendExecute", handle->stream, operands,
                          library::Work::kConvolution, amount, precision);
}
