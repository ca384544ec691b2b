#include <sherd/nn/models/detail/mixture.h>

#include <algorithm>
#include <string>

#include <sherd/nn/activation.h>
#include <sherd/nn/composites.h>
#include <sherd/nn/expert_exchange.h>
#include <sherd/nn/grouped_linear.h>
#include <sherd/nn/routing.h>

namespace sherd::nn::detail {

// A model is built before its mesh is known. Every unit's mesh has all ranks.
const std::shared_ptr<Communicator>& counted_ranks(const std::shared_ptr<Communicator>& all,
                                                   const Parameter& p) {
  return all ? all : p.group().mesh().world();
}

Experts::Experts(const Context& context, const ExpertParallel& parallel) {
  const int64_t n = parallel.share(context.model.mixture.experts), dim = context.model.dim,
                hidden = context.model.mixture.hidden;
  const auto cut = [&](Parameter p) {
    return p.set_tensor_shard({"expert", 0, parallel.parts, parallel.index});
  };
  const auto piece = [&](const char* name, Shape local) {
    return cut(param(name, std::move(local), context.values()));
  };
  const auto bias = [&](const char* name, int64_t columns) {
    return cut(param(name, {n, columns}, constant(0)));
  };
  if (is_byte_gpt(context.model)) {
    up_ = piece("fc.weight", {n, hidden, dim});
    up_bias_ = bias("fc.bias", hidden);
    down_ = cut(param("out.weight", {n, dim, hidden}, context.residual_values()));
    down_bias_ = bias("out.bias", dim);
    return;
  }
  if (!is_gpt_oss(context.model)) {
    gate_ = piece("gate_proj.weight", {n, hidden, dim});
    up_ = piece("up_proj.weight", {n, hidden, dim});
    down_ = piece("down_proj.weight", {n, dim, hidden});
    return;
  }
  gate_ = piece("gate_proj.weight", {n, dim, hidden});
  gate_bias_ = bias("gate_proj.bias", hidden);
  up_ = piece("up_proj.weight", {n, dim, hidden});
  up_bias_ = bias("up_proj.bias", hidden);
  down_ = piece("down_proj.weight", {n, hidden, dim});
  down_bias_ = bias("down_proj.bias", dim);
}

Var Experts::forward(const Var& x, const std::vector<int64_t>& offsets) {
  if (!gate_.defined())
    return grouped_linear(gelu(grouped_linear(x, offsets, up_, up_bias_)), offsets, down_, down_bias_);
  if (gate_bias_.defined()) {
    const Var gated = clamped_swiglu(grouped_linear(x, offsets, gate_, gate_bias_, /*in_out=*/true),
                                     grouped_linear(x, offsets, up_, up_bias_, /*in_out=*/true));
    return grouped_linear(gated, offsets, down_, down_bias_, /*in_out=*/true);
  }
  const Var hidden = swiglu(grouped_linear(x, offsets, gate_), grouped_linear(x, offsets, up_));
  return grouped_linear(hidden, offsets, down_);
}

Mixture::Mixture(const Context& context, const ExpertParallel& parallel)
    : context_(context), parallel_(parallel), experts_(context, parallel) {
  const MixtureDescription& m = context.model.mixture;
  const std::string router = is_gpt_oss(context.model) || is_byte_gpt(context.model) ? "router" : "gate";
  router_ = param(router + ".weight", {m.experts, context.model.dim}, context.values());
  if (is_gpt_oss(context.model)) router_bias_ = param(router + ".bias", {m.experts}, context.values());
  if (routes_in_groups(context.model))
    bias_ = buffer("gate.e_score_correction_bias", {m.experts}, DType::f32, constant(0));
  child("experts", experts_);
  if (m.shared == 0) return;
  shared_ = std::make_unique<Mlp>(context.below("shared_experts"), m.shared * m.hidden);
  child("shared_experts", *shared_);
}

Routes Mixture::routes(const Var& logits, const SequenceRows& between, const LayerBalance& balance) const {
  const MixtureDescription& m = context_.model.mixture;
  const TensorParallel& tp = context_.tp;
  const int64_t first_row = tp.begin_of(between.count, tp.rank());
  if (bias_.defined()) {
    const bool counts = balance.step_load.defined() && balance.loads->first_run(balance.layer);
    return route_in_groups(logits, {.k = m.top_k,
                                    .choice = {.groups = m.groups,
                                               .top_groups = m.top_groups,
                                               .normalised = m.normalise,
                                               .scaling = static_cast<float>(m.scaling)},
                                    .bias = bias_.data(),
                                    .step_load = counts ? balance.step_load : Tensor(),
                                    .weight = static_cast<float>(m.balance),
                                    .scale = balance.scale,
                                    .sequences = balance.sequences,
                                    .all_rows = between.count,
                                    .first_row = first_row,
                                    .lengths = balance.lengths,
                                    .ranks = tp.comm,
                                    .slice = between.slice});
  }
  const LoadBalancing balancing{.weight = static_cast<float>(m.balance),
                                .scale = balance.scale,
                                .ranks = counted_ranks(parallel_.all, router_),
                                .loads = balance.loads,
                                .layer = balance.layer,
                                .rows = {first_row, std::max<int64_t>(1, between.count / balance.sequences),
                                         balance.lengths, between.slice.first()}};
  return route_top_k(logits, m.top_k, balancing, m.normalise);
}

Var Mixture::forward(const SequenceRows& between, const Var& residual, const Var& x,
                     const LayerBalance& balance) {
  const TensorParallel& tp = context_.tp;
  const auto [logits, in] = router_logits(between.splits() ? x : tp.split_rows(x), router_, tp, router_bias_);
  const Routes chosen = routes(logits, between, balance);
  const ExpertExchange exchange(parallel_.comm, chosen.counts);
  const Var rows = experts_(exchange.to_experts(dispatch(in, chosen)), exchange.offsets());
  const Var mixed = combine(exchange.from_experts(rows), chosen);
  const Var base = shared_ ? (*shared_)(between, residual, x) : residual;
  // Every rank computes the same from the rows of all.
  return base + (between.splits() ? mixed : SequenceRows{tp, between.count, true}.enter_both(mixed).whole);
}

}  // namespace sherd::nn::detail
