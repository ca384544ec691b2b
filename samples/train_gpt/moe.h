// A mixture of experts in the place of a block's MLP, with expert parallelism.
#pragma once

#include <memory>
#include <vector>

#include <sherd/dtensor/mesh.h>
#include <sherd/nn/nn.h>

namespace train_gpt {

struct MoeShape {
  int64_t experts = 0;  // 0: dense blocks
  int64_t top_k = 2;    // experts of each token: 1 or 2
  /// Weight of the load-balancing loss of each block (nn::LoadBalancing), from the rows of one call on all ranks
  /// (ExpertParallel::all), each of which has as many.
  float balance = 0;
};

/// The ranks that share one copy of the experts out: rank `index` of `parts` holds the experts
/// [index * experts / parts, (index + 1) * experts / parts). By default one part, which sends nothing.
struct ExpertParallel {
  int parts = 1;
  int index = 0;
  std::shared_ptr<sherd::Communicator> comm;  // by index; may be null in one part
  /// Every rank whose rows the balancing loss counts; used for nothing else. Null: this one alone.
  std::shared_ptr<sherd::Communicator> all = nullptr;

  /// The ranks of mesh dimension "expert", counting the rows of the whole mesh. Collective.
  static ExpertParallel of(const sherd::DeviceMesh& mesh);
  int64_t share(int64_t experts) const { return experts / parts; }
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
/// makes the host wait for the compute stream once, for the numbers of rows that the experts get: they are
/// the sizes of what follows. Under a balancing loss every forward in training sums them over all ranks.
class MoeMlp : public sherd::nn::Module<MoeMlp> {
 public:
  MoeMlp(int64_t dim, float fc_std, float out_std, const MoeShape& shape, const ExpertParallel& parallel);
  /// To be wrapped before the block, on the expert mesh.
  Experts& experts() { return experts_; }
  /// x [rows, dim]. `loss_scale` is d(objective)/d(loss of one row), applied to the balancing loss.
  sherd::nn::Var forward(const sherd::nn::Var& x, float loss_scale);

 private:
  MoeShape shape_;
  ExpertParallel parallel_;
  sherd::Parameter router_;
  Experts experts_;
};

}  // namespace train_gpt
