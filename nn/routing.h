// Routing of a mixture of experts: the choice of experts for rows, and the combination of their results.
//
//     const auto [logits, in] = nn::router_logits(x, router);
//     const nn::Routes routes = nn::route_top_k(logits, 2);
//     const nn::ExpertExchange exchange(ranks, routes.counts);
//     Var rows = exchange.to_experts(nn::dispatch(in, routes));
//     rows = ... grouped_linear(rows, exchange.offsets(), ...) ...
//     Var y = nn::combine(exchange.from_experts(rows), routes);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/nn/context_parallel.h>
#include <sherd/nn/function.h>
#include <sherd/nn/kernels/experts/experts.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn {

/// Result of router_logits().
struct RouterLogits {
  Var logits;  // f32 [n, experts], whatever the dtype of x
  /// x itself, for what else is computed from it: backward adds the product's part to the gradient that comes here,
  /// in the product, and rounds once.
  Var x;
};

/// logits = x w^T + bias: x [n, d], w [experts, d] and bias [experts] (or not defined()) of one dtype. The gradient of the logits is rounded to x's dtype before
/// the two products that it goes into.
/// @param tp ranks each of which has other rows of the same batch, while w and bias are whole on all of them: their gradients
/// are summed over them.
RouterLogits router_logits(const Var& x, const Parameter& w, const TensorParallel& tp = {},
                           const Parameter& bias = {});

struct LoadBalancing;

/// Every row's k experts.
struct Routes {
  Var gates;       // f32 [n, k]: how much each counts
  Tensor indices;  // i32 [n, k], best first
  /// i32 [n * k]: the stable order of the choices (row * k + slot) by their expert, and its inverse.
  Tensor order, position;
  Tensor
      counts;  // i32 [experts]: choices of this rank's rows that fell on each; on a dry device equal shares
};

/// The choices of all mixtures of one forward of a model, which its balancing loss counts together. A model makes one in
/// each forward and gives every mixture its layer. One rank's thread uses it.
class LayerLoads {
 public:
  /// @param layers mixtures of the model
  explicit LayerLoads(int layers) : known_(static_cast<size_t>(layers)) {}
  int layers() const { return static_cast<int>(known_.size()); }
  /// Returns true in the first run of a layer's forward, false when it is computed again for backward. Of layers that
  /// route_top_k() does not count.
  bool first_run(int layer);

 private:
  friend Routes route_top_k(const Var&, int64_t, const LoadBalancing&, std::optional<bool>);
  Tensor counts_;            // i32 [layers, experts], of all ranks; made by the first layer
  std::vector<bool> known_;  // by layer: a forward that is computed again finds its counts here
};

/// Balancing loss of one mixture, as a model's forward gives it.
struct LayerBalance {
  /// NOLINTNEXTLINE: a mixture alone is the only layer of its model.
  LayerBalance(float loss_scale = 0) : scale(loss_scale) {}
  LayerBalance(float loss_scale, std::shared_ptr<LayerLoads> all, int number)
      : scale(loss_scale), loads(std::move(all)), layer(number) {}
  float scale;  // LoadBalancing::scale
  std::shared_ptr<LayerLoads> loads = nullptr;
  int layer = 0;
  int64_t sequences = 1;  // of equal length, in the forward's rows
  Tensor lengths{};       // as Documents::lengths
  Tensor step_load{};     // GroupRouting::step_load, or undefined: not counted
};

/// The load-balancing loss of `transformers` (router_aux_loss_coef; Fedus et al., 2021, equations 4 to 6, over all layers
/// together), for its gradient alone: that of an objective with the further summand
///     scale * n * weight * experts * sum over e of load[e] * mean[e],
/// load[e] the mean number of a row's k choices that fell on expert e, a constant: over all layers, and over the rows of
/// all `ranks`; mean[e] the mean of softmax(logits)[e] over all layers and the n rows of this rank. Padding is not among
/// these rows, as under an attention mask of `transformers`.
struct LoadBalancing {
  float weight = 0;  // 0: none. The same on all ranks: every forward in training sums the choices over them.
  float scale = 1;   // d(objective)/d(loss of one row), of this rank
  std::shared_ptr<Communicator> ranks = nullptr;  // null: this one alone
  std::shared_ptr<LayerLoads> loads = nullptr;    // of the forward; null: this is the model's only mixture
  int layer = 0;                                  // of `loads`
  ops::RowsOfSequences rows{};                    // of this rank; without lengths none is padding
};

/// Selects the k largest of each row's logits (f32 or bf16, [n, experts]), ties and NaN to the lower index.
/// Gates are the softmax probabilities of the chosen ones, divided by their sum if `normalised` (default: for
/// k > 1; with k = 1 all gates would be 1). The gradient of the balancing loss is added to that of the gates.
/// @throws InvalidArgument for a k that is not in [1, min(experts, ops::kMostExpertsOfARow)].
Routes route_top_k(const Var& logits, int64_t k, const LoadBalancing& balancing = {},
                   std::optional<bool> normalised = {});

/// Routing of DeepSeek-V3 (DeepSeek-AI, 2024, arXiv 2412.19437, section 2.1.2).
struct GroupRouting {
  int64_t k = 1;
  ops::GroupChoice choice{};
  /// f32 [experts], added to the scores that choose; no gradient. Undefined: zeros.
  Tensor bias{};
  /// i32 [experts] or undefined: raised by the choices of this rank's rows that are not padding. Set it in the first run of
  /// a forward in training alone (LayerLoads::first_run()).
  Tensor step_load{};

  /// Weight of the sequence-wise balancing loss; 0: none. The objective gets, for its gradient alone, the further summand
  ///     scale * weight * sum over sequences and their rows t, and experts e, of f[e] * s[t, e] / (sum over i of s[t, i]),
  /// f[e] = experts / (k * n) * the number of choices of e in the sequence, n its rows (equations 17 to 20, per row).
  /// Padding is not among these rows.
  float weight = 0;
  float scale = 1;  // d(objective)/d(loss of one row)
  int64_t sequences = 1;
  /// Rows of all `ranks` together, which are those sequences, and the first of this rank's.
  int64_t all_rows = 0, first_row = 0;
  Tensor lengths{};                               // as Documents::lengths
  std::shared_ptr<Communicator> ranks = nullptr;  // null: this one has all rows
  /// all_rows are this rank's slices of the sequences; choices are summed over all slices.
  SequenceSlice slice{};
};

/// Selects k experts of each row by sigmoid(logits) + bias, in its best groups, with gates from the sigmoids alone; see
/// ops::route_in_groups(). logits f32 or bf16 [n, experts]. With a weight, and several ranks, every forward on a tape is
/// a collective.
/// @throws InvalidArgument as ops::route_in_groups(), and for sequences that do not divide all_rows.
Routes route_in_groups(const Var& logits, const GroupRouting& routing);

/// x's rows [n, d] in the order of their experts, one for each choice: [n * k, d].
Var dispatch(const Var& x, const Routes& routes);
/// The way back: y[r] = sum over slots s, in their order, of gates[r, s] * the row of choice (r, s). rows [n * k, d],
/// the result [n, d] of their dtype. Keeps `rows`.
Var combine(const Var& rows, const Routes& routes);

}  // namespace sherd::nn
