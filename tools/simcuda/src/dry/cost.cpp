// SPDX-License-Identifier: Apache-2.0
#include "cost.h"

#include <ATen/Context.h>
#include <simcuda.h>

#include <algorithm>
#include <map>
#include <set>

#include "../clock/clock.h"
#include "../kernels/operands.h"

namespace simcuda::dry {
namespace {

using at::Tensor;
using c10::IValue;

// `aten::addmm_` and its forms are addmm.
std::string base_of(const c10::FunctionSchema& schema) {
  std::string name = schema.name().substr(schema.name().find("::") + 2);
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  return name;
}

double elements(const Tensor& t) { return static_cast<double>(t.numel()); }

double rate_of(const SimcudaProfile& p, c10::ScalarType type, bool tf32) {
  switch (type) {
    case c10::kHalf:
    case c10::kBFloat16:
      return p.half;
    case c10::kDouble:
    case c10::kComplexDouble:
      return p.fp64;
    default:
      return tf32 ? p.tf32 : p.fp32;
  }
}

}  // namespace

double bytes_of(const Tensor& t) {
  if (!t.defined() || t.layout() != c10::kStrided || t.numel() == 0) return 0;
  if (t.is_cpu()) return 0;
  double count = static_cast<double>(t.element_size());
  for (int64_t d = 0; d < t.dim(); d++) {
    if (t.stride(d) != 0) count *= static_cast<double>(t.size(d));
  }
  return count;
}

size_t Cost::index_of(const c10::FunctionSchema& schema, const char* argument) const {
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    if (schema.arguments()[i].name() == argument) return i;
  }
  return 0;
}

Cost::Cost(const c10::FunctionSchema& schema) {
  static const std::map<std::string, size_t> products = {
      {"mm", 0},    {"bmm", 0},     {"mv", 0},    {"dot", 0},    {"vdot", 0},
      {"addmm", 1}, {"baddbmm", 1}, {"addmv", 1}, {"addbmm", 1}, {"_addmm_activation", 1},
  };
  static const std::set<std::string> picks = {
      "embedding",    "index", "_unsafe_index",    "gather",
      "index_select", "take",  "nll_loss_forward", "nll_loss2d_forward"};
  std::string base = base_of(schema);
  auto begins = [&](const char* text) { return base.rfind(text, 0) == 0; };
  bool backward = base.find("backward") != std::string::npos;
  in_place_ = schema.overload_name().find("out") == std::string::npos;
  if (products.count(base)) {
    kind_ = Kind::kProduct;
    at_ = products.at(base);
  } else if (begins("convolution") || base == "_convolution" || begins("cudnn_convolution")) {
    kind_ = backward ? Kind::kConvolutionBackward : Kind::kConvolution;
    flag_ = index_of(schema, "transposed");
  } else if (begins("_scaled_dot_product_")) {
    kind_ = backward ? Kind::kAttentionBackward : Kind::kAttention;
    at_ = index_of(schema, "query");
    flag_ = index_of(schema, "is_causal");
  } else if (picks.count(base)) {
    kind_ = Kind::kPicks;
  }
}

double Cost::operations(const std::vector<IValue>& in, const torch::jit::Stack& out) const {
  auto tensor = [&](size_t i) { return in[i].toTensor(); };
  bool flag = flag_ > 0 && in[flag_].isBool() && in[flag_].toBool();
  switch (kind_) {
    case Kind::kConvolution: {  // input, weight
      double taps = elements(tensor(1)) / static_cast<double>(tensor(1).size(0));
      return 2 * taps * elements(flag ? tensor(0) : out.front().toTensor());
    }
    case Kind::kConvolutionBackward: {  // grad, input, weight; a mask of what is wanted
      double taps = elements(tensor(2)) / static_cast<double>(tensor(2).size(0));
      double wanted = 2;
      for (const IValue& value : in) {
        if (value.isBoolList() && value.toBoolList().size() == 3) {
          wanted = static_cast<double>(value.toBoolList()[0] + value.toBoolList()[1]);
        }
      }
      return wanted * 2 * taps * elements(tensor(flag ? 1 : 0));
    }
    case Kind::kProduct: {
      const Tensor &a = tensor(at_), &b = tensor(at_ + 1);
      return 2 * elements(a) * static_cast<double>(b.dim() > 1 ? b.size(-1) : 1);
    }
    case Kind::kAttention:
    case Kind::kAttentionBackward: {  // two products forward, five backward; half of it if causal
      double pairs = elements(tensor(at_)) * static_cast<double>(tensor(at_ + 1).size(-2));
      return (kind_ == Kind::kAttention ? 4 : 10) * pairs / (flag ? 2 : 1);
    }
    case Kind::kTraffic:
    case Kind::kPicks:
      return 0;
  }
  return 0;
}

bool Cost::is_convolution() const {
  return kind_ == Kind::kConvolution || kind_ == Kind::kConvolutionBackward;
}

bool Cost::tf32() const {
  if (is_convolution()) return at::globalContext().allowTF32CuDNN();
  return kind_ == Kind::kProduct && at::globalContext().allowTF32CuBLAS();
}

int64_t Cost::of(const std::vector<IValue>& inputs, const std::vector<bool>& written,
                 const torch::jit::Stack& results) const {
  const SimcudaProfile& p = *simcuda_dry();
  double bytes = 0, made = 0;
  std::vector<const void*> known;
  for (size_t i = 0; i < inputs.size(); i++) {
    for_each_tensor(inputs[i], [&](const Tensor& t) {
      if (!t.defined()) return;
      if (std::find(known.begin(), known.end(), t.unsafeGetTensorImpl()) != known.end()) return;
      bool picked = kind_ == Kind::kPicks && known.empty();
      known.push_back(t.unsafeGetTensorImpl());
      if (!picked) bytes += bytes_of(t) * (written[i] && in_place_ ? 2 : 1);
    });
  }
  for (const IValue& value : results) {
    for_each_tensor(value, [&](const Tensor& t) {
      if (!t.defined()) return;
      if (std::find(known.begin(), known.end(), t.unsafeGetTensorImpl()) == known.end()) {
        made += bytes_of(t);
      }
    });
  }
  bytes += kind_ == Kind::kPicks ? 2 * made : made;
  const double count = operations(inputs, results);
  double rate = 0;
  if (count > 0) {
    double reached = is_convolution() ? p.convolution : is_product() ? p.matmul : p.attention;
    rate = reached * rate_of(p, inputs[at_].toTensor().scalar_type(), tf32());
  }
  return p.kernel + clock::time_of_both(bytes, p.bandwidth, count, rate);
}

}  // namespace simcuda::dry
