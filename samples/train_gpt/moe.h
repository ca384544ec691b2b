// A mixture of experts in the place of a block's MLP, with expert parallelism.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/module.h>

namespace train_gpt {

using sherd::Communicator;
using sherd::Module;
using sherd::Parameter;
using sherd::Shape;
using sherd::Tensor;

struct MoeShape {
  int64_t experts = 0;  // 0: dense blocks
  int64_t top_k = 2;    // experts of each token: 1 or 2
  /// Weight of the Switch load-balancing loss of each block, from the rows of one call on all ranks
  /// (ExpertParallel::all), each of which has as many:
  /// experts * sum over e of (share of the choices that fell on e) * (mean probability of e).
  float balance = 0;
};

/// The ranks that share one copy of the experts out: rank `index` of `parts` holds the experts
/// [index * experts / parts, (index + 1) * experts / parts). By default one part, which sends nothing.
struct ExpertParallel {
  int parts = 1;
  int index = 0;
  std::shared_ptr<Communicator> comm;  // by index; may be null in one part
  /// Every rank whose rows the balancing loss counts; used for nothing else. Null: this one alone.
  std::shared_ptr<Communicator> all = nullptr;

  /// The ranks of mesh dimension "expert", counting the rows of the whole mesh. Collective.
  static ExpertParallel of(const sherd::DeviceMesh& mesh);
  int64_t share(int64_t experts) const { return experts / parts; }
};

/// The experts of one rank, a unit of its own on the expert mesh: out_e(gelu(fc_e(x))) with biases, each
/// expert on its rows. Rows come sorted by local expert. Experts without rows, and calls without any, take
/// part in the unit's collectives like the others.
class Experts : public Module {
 public:
  Experts(int64_t dim, float fc_std, float out_std, const MoeShape& shape, const ExpertParallel& parallel);
  /// Of the coming call: local expert e takes rows [offsets[e], offsets[e + 1]).
  void set_offsets(std::vector<int64_t> offsets) { offsets_ = std::move(offsets); }

 protected:
  Tensor forward(const Tensor& x) override;
  Tensor backward(const Tensor& dy) override;
  void drop_activations() override { saved_.clear(); }

 private:
  struct Saved {
    Tensor x, h, a;
    std::vector<int64_t> offsets;
  };
  Parameter fc_, fc_bias_, out_, out_bias_;
  std::vector<int64_t> offsets_;
  std::vector<Saved> saved_;
};

/// Every row's top_k experts by a learned router, weighted by its gates. No row is dropped. Each forward
/// makes the host wait for the compute stream once, for the numbers of rows that the experts get: they are
/// the sizes of what follows. Under a balancing loss every forward in training sums them over all ranks.
///
/// Collectives get unowned views of their memory: all of it is used on the compute stream alone.
class MoeMlp : public Module {
 public:
  MoeMlp(int64_t dim, float fc_std, float out_std, const MoeShape& shape, const ExpertParallel& parallel);
  /// To be wrapped before the block, on the expert mesh.
  Experts& experts() { return experts_; }
  /// d(objective)/d(loss of one row), applied to the balancing loss by the coming backward.
  void set_loss_scale(float scale) { loss_scale_ = scale; }

 protected:
  Tensor forward(const Tensor& x) override;
  Tensor backward(const Tensor& dy) override;
  void drop_activations() override { saved_.clear(); }

 private:
  // Which rows travel; the same in the backward of the call.
  struct Exchange {
    std::vector<int64_t> sent, received;  // elements to and from each part
    std::vector<int64_t> offsets;         // of the local experts, in rows
    Tensor arrange, restore;              // from arrival order to expert order and back; undefined: the same
  };
  struct Saved {
    Tensor x, logits, indices, gates, order, position, outputs;
    Tensor counts;  // of all ranks' choices where the balancing loss needs them, else of this rank's
    Exchange exchange;
  };
  bool counts_everywhere() const;
  Exchange plan(const Tensor& counts);
  Tensor to_experts(const Tensor& rows, const Exchange& e);
  Tensor from_experts(const Tensor& rows, const Exchange& e);

  MoeShape shape_;
  ExpertParallel parallel_;
  int64_t dim_;
  Parameter router_;
  Experts experts_;
  float loss_scale_ = 1;
  std::vector<Saved> saved_;
};

}  // namespace train_gpt
