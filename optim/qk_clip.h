// QK-clip: a bound on attention logits, kept by scaling the weights that make them.
#pragma once

#include <memory>
#include <vector>

#include <sherd/fsdp/logit_maxima.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

struct QkClipOptions {
  /// Bound of Kimi K2 (arXiv 2507.20534).
  double tau = 100;
};

/// QK-clip. With Muon it makes MuonClip:
///    optimizer.after_update(std::make_shared<QkClip>(model, layers, QkClipOptions{}));
/// After each update it takes the largest logits of the step's microbatches on all data-parallel ranks, with
/// one all-reduce of the maximum for all layers together. They give the factor by which each head's logits
/// exceed tau. The rows of its query and key projections are scaled down by that factor together (QkClipArgs
/// has the formula); those of AttentionHeads::alone take all of it. Where heads share a key head, the query rows take the part that the other heads do not
/// need. It scales the master weights (stochastically rounded where they are bf16), each rank the elements that it holds, and copies of them follow;
/// momentum is unchanged. The maxima restart from zero.
///
/// Under tensor parallelism a rank's queries are cut over the tensor dimension. Key heads are cut with them,
/// or unsharded on every rank of the dimension (key heads that the ranks do not divide). In the latter case the maxima of
/// all ranks' query heads are gathered (one more all-gather for all such layers together), and every rank
/// scales all of these key heads alike.
///
/// A skipped step scales nothing. A projection that ShardRuntime::set_frozen() has frozen is unchanged. A head with a non-finite maximum is unchanged. The same bits under every
/// strategy, layout and number of tensor-parallel ranks.
class QkClip : public AfterUpdate {
 public:
  /// Makes the clip. Collective.
  /// @param layers the layers whose maxima forwards raise; heads of this tensor-parallel rank.
  /// @throws InvalidArgument for tau that is not positive and finite, no layers, and naming parameters that
  /// are not of this model, or excluded from training by freeze(), or whose rows make heads twice (tied projections), and for key heads
  /// that several ranks hold and that cannot be scaled alike; ShapeMismatch on every rank when ranks have
  /// different layers or tau.
  QkClip(ModuleBase& root, std::vector<std::shared_ptr<LogitMaxima>> layers,
         const QkClipOptions& options = {});

  void apply(Stream& compute, const Tensor& skip) override;
  std::vector<Parameter> changed() const override;
  void use_counters(const std::vector<StateCounter>& counters) override;

 private:
  struct Layer {
    std::shared_ptr<LogitMaxima> maxima;
    Tensor own;                        // this rank's query heads: their part of packed_
    Tensor all;                        // all query heads that use the key heads below
    Tensor query, key;                 // factors of these
    int64_t first_query = 0;           // index of this rank's first query head among them
    std::vector<ProjectedHeads> keys;  // keys that this rank holds
  };
  /// Extends a layer whose key heads are unsharded on all ranks of `mesh_dim` to the query heads of all these
  /// ranks. Collective over the dimension. Adds errors to `wrong`.
  void share_keys(Layer& layer, const std::string& mesh_dim, std::vector<std::string>& wrong);
  ShardRuntime& runtime_;
  std::shared_ptr<Communicator> data_ranks_;
  std::shared_ptr<Communicator> tensor_ranks_;  // null where no layer shares key heads
  std::vector<Layer> layers_;
  Tensor packed_;    // f32, the layers' maxima one after the other
  Tensor gathered_;  // the same of all tensor_ranks_
  double tau_;
  std::vector<StateCounter> counters_;  // of the parameters
};

}  // namespace sherd
