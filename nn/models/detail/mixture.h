// Mixture of experts in place of a layer's MLP.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/nn/expert_parallel.h>
#include <sherd/nn/models/detail/mlp.h>
#include <sherd/nn/models/detail/parts.h>
#include <sherd/nn/module.h>
#include <sherd/nn/routing.h>

namespace sherd::nn::detail {

/// Returns the ranks whose rows are counted: `all`, or without it those of the mesh of the unit that holds `p`.
const std::shared_ptr<Communicator>& counted_ranks(const std::shared_ptr<Communicator>& all,
                                                   const Parameter& p);

/// The experts of one rank, a unit of its own on the expert mesh: down_e(silu(gate_e(x)) * up_e(x)), each
/// expert on its rows. Those of gpt_oss have biases and clamped_swiglu(), and matrices [in, out] as in its files; those of
/// byte_gpt biases, and gelu without a gate. Experts without rows, and calls without any, take part in the unit's collectives like
/// the others.
class Experts : public Module<Experts> {
 public:
  Experts(const Context& context, const ExpertParallel& parallel);
  /// Local expert e takes rows [offsets[e], offsets[e + 1]) of x.
  Var forward(const Var& x, const std::vector<int64_t>& offsets);

 private:
  Parameter gate_, up_, down_;
  Parameter gate_bias_, up_bias_, down_bias_;  // gpt_oss, byte_gpt
};

/// Every row's top_k experts by a learned router, weighted by its gates. No row is dropped. Each forward
/// makes the host wait for the compute stream once, for the numbers of rows that the experts get. The ranks
/// of a tensor-parallel group, which hold the same rows, route and send a part of them each, and gather the
/// results; where each has its part of the rows anyhow (SequenceRows), nothing is cut or gathered.
///
/// In families with routes_in_groups() the choice is route_in_groups(), with a bias that is a buffer, equal on all ranks; the
/// shared experts are one dense MLP beside the others, cut over tensor-parallel ranks as other MLPs.
class Mixture : public Module<Mixture> {
 public:
  Mixture(const Context& context, const ExpertParallel& parallel);
  Experts& experts() { return experts_; }
  /// f32 [experts]; undefined in families without.
  const Buffer& selection_bias() const { return bias_; }
  /// `balance.scale` is d(objective)/d(loss of one row), applied to the balancing loss.
  Var forward(const SequenceRows& between, const Var& residual, const Var& x, const LayerBalance& balance);

 private:
  Routes routes(const Var& logits, const SequenceRows& between, const LayerBalance& balance) const;

  Context context_;
  ExpertParallel parallel_;
  Parameter router_, router_bias_;
  Buffer bias_;
  Experts experts_;
  std::unique_ptr<Mlp> shared_;
};

}  // namespace sherd::nn::detail
