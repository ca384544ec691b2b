// Mixture of experts that replaces a block's MLP, with expert parallelism.
#pragma once

#include <memory>
#include <vector>

#include <sherd/nn/expert_parallel.h>
#include <sherd/nn/nn.h>

namespace train_gpt {

using sherd::nn::ExpertParallel;

struct MoeShape {
  int64_t experts = 0;  // 0: dense blocks
  int64_t top_k = 2;    // experts of each token
  /// Weight of the load-balancing loss over all blocks (nn::LoadBalancing), from the rows of one call on all ranks
  /// (nn::ExpertParallel::all), each of which has as many.
  float balance = 0;
};

/// The experts of one rank, a unit of its own on the expert mesh: out_e(gelu(fc_e(x))) with biases, each
/// expert on its rows. Experts without rows, and calls without any, take part in the unit's collectives like the
/// others.
class Experts : public sherd::nn::Module<Experts> {
 public:
  Experts(int64_t dim, float fc_std, float out_std, const MoeShape& shape, const ExpertParallel& parallel);
  /// Local expert e takes rows [offsets[e], offsets[e + 1]) of x.
  sherd::nn::Var forward(const sherd::nn::Var& x, const std::vector<int64_t>& offsets);

 private:
  sherd::Parameter fc_, fc_bias_, out_, out_bias_;
};

/// Every row's top_k experts by a learned router, weighted by its gates. No row is dropped. Each forward
/// makes the host wait for the compute stream once, for the numbers of rows of the experts, which are the
/// sizes of later operations. Under a balancing loss every forward in training sums them over all ranks.
class MoeMlp : public sherd::nn::Module<MoeMlp> {
 public:
  MoeMlp(int64_t dim, float fc_std, float out_std, const MoeShape& shape, const ExpertParallel& parallel);
  /// Returns the experts, to be wrapped before the block, on the expert mesh.
  Experts& experts() { return experts_; }
  /// x [rows, dim]. `balance.scale` is d(objective)/d(loss of one row), applied to the balancing loss.
  sherd::nn::Var forward(const sherd::nn::Var& x, const sherd::nn::LayerBalance& balance);

 private:
  MoeShape shape_;
  ExpertParallel parallel_;
  sherd::Parameter router_;
  Experts experts_;
};

}  // namespace train_gpt
