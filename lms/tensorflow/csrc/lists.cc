// SPDX-License-Identifier: Apache-2.0
#include "tensorflow/core/common_runtime/lms/lists.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/lib/core/coding.h"
#include "tensorflow/core/lib/core/stringpiece.h"

namespace tensorflow {
namespace lms {

namespace {

// The classes are compiled into another library, so they are known by name. Their encodings refer
// to the tensors, and do not copy them. An optional is a list that is empty or full: conditionals
// keep in it for their gradients what one branch has and another lacks.
bool EncodeList(const Variant& variant, VariantTensorData* list) {
  if (variant.is_empty()) return false;
  const std::string name = variant.TypeName();
  if (name != "tensorflow::TensorList" && name != "tensorflow::data::Optional") return false;
  variant.Encode(list);
  return true;
}

// The positions of the tensors that a list's encoding holds: all but those that it begins with,
// behind their number. Of an optional's, which begins with whether it has a value: all.
std::vector<uint64_t> Positions(const VariantTensorData& list) {
  std::string metadata;
  list.get_metadata(&metadata);
  StringPiece rest(metadata);
  uint64 count = 0, position = 0;
  core::GetVarint64(&rest, &count);
  std::set<uint64_t> empty;
  for (uint64 i = 0; i < count && core::GetVarint64(&rest, &position); ++i) empty.insert(position);
  std::vector<uint64_t> positions;
  for (uint64_t at = 0; positions.size() < static_cast<size_t>(list.tensors_size()); ++at) {
    if (empty.count(at) == 0) positions.push_back(at);
  }
  return positions;
}

void Visit(const Tensor& listed, const std::function<void(const Tensor&)>& visit, bool nested) {
  if (listed.dtype() != DT_VARIANT) {
    visit(listed);
  } else if (nested) {
    ForEachListed(listed, visit);
  }
}

}  // namespace

void ForEachListed(const Tensor& tensor, const std::function<void(const Tensor&)>& visit,
                   bool nested) {
  if (tensor.dtype() != DT_VARIANT) return;
  const auto flat = tensor.flat<Variant>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    VariantTensorData list;
    if (!EncodeList(flat(i), &list)) continue;
    for (const Tensor& listed : list.tensors()) Visit(listed, visit, nested);
  }
}

void ForEachAdded(const std::vector<Tensor>& terms,
                  const std::function<void(const Tensor&)>& visit) {
  int64_t variants = 0;
  for (const Tensor& term : terms) {
    if (term.dtype() == DT_VARIANT) variants = std::max<int64_t>(variants, term.NumElements());
  }
  for (int64_t i = 0; i < variants; ++i) {
    std::map<uint64_t, std::vector<Tensor>> at;
    for (const Tensor& term : terms) {
      VariantTensorData list;
      if (i >= term.NumElements() || !EncodeList(term.flat<Variant>()(i), &list)) continue;
      const std::vector<uint64_t> positions = Positions(list);
      for (size_t j = 0; j < positions.size(); ++j) {
        at[positions[j]].push_back(list.tensors(static_cast<int>(j)));
      }
    }
    for (const auto& position : at) {
      if (position.second.size() < 2) continue;
      for (const Tensor& listed : position.second) Visit(listed, visit, /*nested=*/true);
    }
  }
}

}  // namespace lms
}  // namespace tensorflow
