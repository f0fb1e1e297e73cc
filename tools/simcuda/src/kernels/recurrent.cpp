// SPDX-License-Identifier: Apache-2.0
// Recurrent layers, composed of the operators and in the order that torch uses on the CPU, so that
// they give its numbers; on CUDA torch would use fused kernels. Autograd goes through the parts.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels.h"

namespace simcuda {
namespace {

using at::Tensor;
using at::TensorList;

enum class Cell { kLstm, kGru, kTanh, kRelu };

// One direction of one layer. A missing bias or projection is undefined.
struct Weights {
  Tensor input, hidden, input_bias, hidden_bias, projection;
};

struct State {
  Tensor h, c;  // c: LSTM only
};

std::vector<Weights> group(TensorList parameters, bool has_biases, bool has_projections) {
  size_t step = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(parameters.size() % step == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> groups;
  for (size_t i = 0; i < parameters.size(); i += step) {
    Weights w{parameters[i], parameters[i + 1], {}, {}, {}};
    if (has_biases) w.input_bias = parameters[i + 2], w.hidden_bias = parameters[i + 3];
    if (has_projections) w.projection = parameters[i + step - 1];
    groups.push_back(w);
  }
  return groups;
}

// In place on the chunks, as on the CPU: a kernel rounds differently on contiguous memory.
std::pair<Tensor, Tensor> lstm(const Tensor& gates, const Tensor& cx) {
  auto g = gates.unsafe_chunk(4, 1);
  Tensor in = g[0].sigmoid_(), forget = g[1].sigmoid_(), fresh = g[2].tanh_();
  Tensor out = g[3].sigmoid_();
  Tensor c = (forget * cx).add_(in * fresh);
  return {out * c.tanh(), c};
}

Tensor gru(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx) {
  auto x = input_gates.unsafe_chunk(3, 1), h = hidden_gates.unsafe_chunk(3, 1);
  Tensor reset = h[0].add_(x[0]).sigmoid_(), update = h[1].add_(x[1]).sigmoid_();
  Tensor fresh = x[2].add(h[2].mul_(reset)).tanh_();
  return (hx - fresh).mul_(update).add_(fresh);
}

// `gates`: the input's share, x W_ih + b_ih.
State step(Cell cell, const Tensor& gates, const State& state, const Weights& w) {
  Tensor hidden = at::linear(state.h, w.hidden, w.hidden_bias);
  switch (cell) {
    case Cell::kTanh:
      return {(hidden + gates).tanh(), {}};
    case Cell::kRelu:
      return {(hidden + gates).relu(), {}};
    case Cell::kGru:
      return {gru(gates, hidden, state.h), {}};
    case Cell::kLstm:
      break;
  }
  auto [h, c] = lstm(hidden + gates, state.c);
  if (w.projection.defined()) h = h.matmul(w.projection.t());
  return {h, c};
}

// (time, batch, features) -> the outputs of all times and the last state.
std::pair<Tensor, State> run(Cell cell, const Tensor& input, State state, const Weights& w,
                             bool reverse) {
  auto gates = at::linear(input, w.input, w.input_bias).unbind(0);
  TORCH_CHECK(!gates.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reverse) std::reverse(gates.begin(), gates.end());
  std::vector<Tensor> outputs;
  for (const auto& g : gates) {
    state = step(cell, g, state, w);
    outputs.push_back(state.h);
  }
  if (reverse) std::reverse(outputs.begin(), outputs.end());
  return {at::stack(outputs, 0), state};
}

struct Result {
  Tensor output, h, c;
};

Result stack(Cell cell, const Tensor& batch, const Tensor& h0, const Tensor& c0,
             TensorList parameters, bool has_biases, int64_t layers, double dropout, bool train,
             bool bidirectional, bool batch_first) {
  bool lstm = cell == Cell::kLstm;
  bool projected = lstm && h0.size(2) != c0.size(2);
  auto weights = group(parameters, has_biases, projected);
  int64_t directions = bidirectional ? 2 : 1;
  TORCH_CHECK(static_cast<int64_t>(weights.size()) == layers * directions,
              "Expected more weights in stacked_rnn");
  auto hs = h0.unbind(0), cs = lstm ? c0.unbind(0) : std::vector<Tensor>(h0.size(0));
  TORCH_CHECK(static_cast<int64_t>(hs.size()) == layers * directions,
              "Expected more hidden states in stacked_rnn");
  Tensor x = batch_first ? batch.transpose(0, 1) : batch;
  std::vector<Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; layer++) {
    std::vector<Tensor> outputs;
    for (int64_t d = 0; d < directions; d++) {
      int64_t i = layer * directions + d;
      auto [output, state] = run(cell, x, {hs[i], cs[i]}, weights[i], d == 1);
      outputs.push_back(output);
      last_h.push_back(state.h);
      last_c.push_back(state.c);
    }
    x = bidirectional ? at::cat(outputs, outputs[0].dim() - 1) : outputs[0];
    if (dropout != 0 && train && layer < layers - 1) x = at::dropout(x, dropout, true);
  }
  if (batch_first) x = x.transpose(0, 1);
  return {x, at::stack(last_h, 0), lstm ? at::stack(last_c, 0) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> lstm_layers(const Tensor& input, TensorList hx,
                                               TensorList parameters, bool has_biases,
                                               int64_t layers, double dropout, bool train,
                                               bool bidirectional, bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  auto r = stack(Cell::kLstm, input, hx[0], hx[1], parameters, has_biases, layers, dropout, train,
                 bidirectional, batch_first);
  return {r.output, r.h, r.c};
}

template <Cell kCell>
std::tuple<Tensor, Tensor> simple(const Tensor& input, const Tensor& hx, TensorList parameters,
                                  bool has_biases, int64_t layers, double dropout, bool train,
                                  bool bidirectional, bool batch_first) {
  auto r = stack(kCell, input, hx, {}, parameters, has_biases, layers, dropout, train,
                 bidirectional, batch_first);
  return {r.output, r.h};
}

// ---- the fused cells, which packed sequences and the cell modules use

Tensor with_bias(const Tensor& gates, const Optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const Optional<Tensor>& b_ih,
                                             const Optional<Tensor>& b_hh) {
  Tensor gates = with_bias(hidden_gates, b_hh) + with_bias(input_gates, b_ih);
  auto [hy, cy] = lstm(gates, cx);
  return {hy, cy, gates};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const Optional<Tensor>& b_ih,
                                    const Optional<Tensor>& b_hh) {
  Tensor hidden = b_hh ? with_bias(hidden_gates, b_hh) : hidden_gates.clone();
  return {gru(with_bias(input_gates, b_ih), hidden, hx), input_gates};
}

}  // namespace

void register_recurrent_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
}

void register_recurrent_layers(torch::Library& library) {
  library.impl("lstm.input", TORCH_FN(lstm_layers));
  library.impl("gru.input", TORCH_FN(simple<Cell::kGru>));
  library.impl("rnn_tanh.input", TORCH_FN(simple<Cell::kTanh>));
  library.impl("rnn_relu.input", TORCH_FN(simple<Cell::kRelu>));
}

}  // namespace simcuda
