#include <sherd/nn/models/detail/mixture.h>

#include <sherd/nn/activation.h>
#include <sherd/nn/expert_exchange.h>
#include <sherd/nn/grouped_linear.h>
#include <sherd/nn/routing.h>

namespace sherd::nn::detail {

Experts::Experts(const Context& context, const ExpertParallel& parallel) {
  const int64_t n = parallel.share(context.model.mixture.experts), dim = context.model.dim,
                hidden = context.model.mixture.hidden;
  const auto piece = [&](const char* name, Shape local) {
    return param(name, std::move(local), context.values())
        .set_tensor_shard({"expert", 0, parallel.parts, parallel.index});
  };
  gate_ = piece("gate_proj.weight", {n, hidden, dim});
  up_ = piece("up_proj.weight", {n, hidden, dim});
  down_ = piece("down_proj.weight", {n, dim, hidden});
}

Var Experts::forward(const Var& x, const std::vector<int64_t>& offsets) {
  const Var hidden = swiglu(grouped_linear(x, offsets, gate_), grouped_linear(x, offsets, up_));
  return grouped_linear(hidden, offsets, down_);
}

Mixture::Mixture(const Context& context, const ExpertParallel& parallel)
    : context_(context), parallel_(parallel), experts_(context, parallel) {
  router_ = param("gate.weight", {context.model.mixture.experts, context.model.dim}, context.values());
  child("experts", experts_);
}

Var Mixture::forward(const SequenceRows& between, const Var& residual, const Var& x,
                     const LayerBalance& balance) {
  const MixtureDescription& m = context_.model.mixture;
  const TensorParallel& tp = context_.tp;
  // The ranks whose rows are counted; every tensor-parallel group has as many of them.
  const std::shared_ptr<Communicator>& counted = parallel_.all ? parallel_.all : tp.comm;
  const int64_t groups = (counted ? counted->size() : 1) / tp.size();
  const LoadBalancing balancing{.weight = static_cast<float>(m.balance),
                                .scale = balance.scale,
                                .ranks = counted,
                                .rows = groups * between.count,
                                .loads = balance.loads,
                                .layer = balance.layer};
  const auto [logits, in] = router_logits(between.splits() ? x : tp.split_rows(x), router_, tp);
  const Routes routes = route_top_k(logits, m.top_k, balancing, m.normalise);
  const ExpertExchange exchange(parallel_.comm, routes.counts);
  const Var rows = experts_(exchange.to_experts(dispatch(in, routes)), exchange.offsets());
  const Var mixed = combine(exchange.from_experts(rows), routes);
  return residual + (between.splits() ? mixed : tp.gather_rows(mixed, between.count));
}

}  // namespace sherd::nn::detail
