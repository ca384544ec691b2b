#include "train_gpt/model/moe.h"

#include <utility>

namespace train_gpt {

using sherd::Parameter;
using sherd::Shape;
using sherd::nn::Var;
namespace nn = sherd::nn;

Experts::Experts(int64_t dim, float fc_std, float out_std, const MoeShape& shape,
                 const ExpertParallel& parallel) {
  const int64_t n = parallel.share(shape.experts), hidden = 4 * dim;
  const auto piece = [&](const char* name, Shape local, sherd::Init init) {
    return param(name, std::move(local), init)
        .set_tensor_shard({"expert", 0, parallel.parts, parallel.index});
  };
  fc_ = piece("fc.weight", {n, hidden, dim}, sherd::normal(fc_std));
  fc_bias_ = piece("fc.bias", {n, hidden}, sherd::constant(0));
  out_ = piece("out.weight", {n, dim, hidden}, sherd::normal(out_std));
  out_bias_ = piece("out.bias", {n, dim}, sherd::constant(0));
}

Var Experts::forward(const Var& x, const std::vector<int64_t>& offsets) {
  const Var hidden = nn::gelu(nn::grouped_linear(x, offsets, fc_, fc_bias_));
  return nn::grouped_linear(hidden, offsets, out_, out_bias_);
}

MoeMlp::MoeMlp(int64_t dim, float fc_std, float out_std, const MoeShape& shape,
               const ExpertParallel& parallel)
    : shape_(shape), parallel_(parallel), experts_(dim, fc_std, out_std, shape, parallel) {
  router_ = param("router.weight", {shape.experts, dim}, sherd::normal(fc_std));
  child("experts", experts_);
}

Var MoeMlp::forward(const Var& x, const nn::LayerBalance& balance) {
  const auto [logits, in] = nn::router_logits(x, router_);
  const nn::Routes routes = nn::route_top_k(logits, shape_.top_k,
                                            {.weight = shape_.balance,
                                             .scale = balance.scale,
                                             .ranks = parallel_.all,
                                             .loads = balance.loads,
                                             .layer = balance.layer,
                                             .rows = {0, in.size(0) / balance.sequences, balance.lengths}});
  Var rows = nn::dispatch(in, routes);
  const nn::ExpertExchange exchange(parallel_.comm, routes.counts);
  rows = exchange.to_experts(rows);
  rows = experts_(rows, exchange.offsets());
  return nn::combine(exchange.from_experts(rows), routes);
}

}  // namespace train_gpt
