// QK-clip: a bound on attention logits, kept by scaling the weights that make them.
#pragma once

#include <memory>
#include <vector>

#include <sherd/fsdp/logit_maxima.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

struct QkClipOptions {
  /// The bound of Kimi K2 (arXiv 2507.20534).
  double tau = 100;
};

/// With Muon it makes MuonClip:
///     optimizer.after_update(std::make_shared<QkClip>(model, layers, QkClipOptions{}));
/// After each update, the largest logits of the step's microbatches on all data-parallel ranks (one
/// all-reduce, of the maximum, for all layers together) tell by which factor each head's logits exceed tau,
/// and the rows of its query and key projections are scaled down by that factor together (QkClipArgs has the
/// formula; heads that share a key head leave it to the query rows what the others do not need). It scales
/// the fp32 master weights, each rank the elements that it holds, and copies of them follow; momentum stays.
/// The maxima start anew.
///
/// Under tensor parallelism a rank's queries are cut over the tensor dimension. Key heads are cut with them, or whole on
/// every rank of the dimension (fewer key heads than ranks): then the maxima of all ranks' query heads are gathered
/// (one all-gather more, for all such layers together), and every rank scales all of these key heads alike.
///
/// A skipped step scales nothing. A head whose maximum is not finite is left alone. The same bits under every
/// strategy, layout and number of tensor-parallel ranks.
class QkClip : public AfterUpdate {
 public:
  /// @param layers whose maxima forwards raise; heads of this tensor-parallel rank.
  /// @throws InvalidArgument for tau that is not positive and finite, no layers, and naming parameters that
  /// are not of this model, or frozen, or of which the same rows make heads twice (tied projections), and for key heads
  /// that several ranks hold and that cannot be scaled alike; ShapeMismatch on every rank when ranks have different
  /// layers or tau. Collective.
  QkClip(ModuleBase& root, std::vector<std::shared_ptr<LogitMaxima>> layers,
         const QkClipOptions& options = {});

  void apply(Stream& compute, const Tensor& skip) override;
  std::vector<Parameter> changed() const override;

 private:
  struct Layer {
    std::shared_ptr<LogitMaxima> maxima;
    Tensor own;                        // this rank's query heads: their part of packed_
    Tensor all;                        // all query heads that use the key heads below
    Tensor query, key;                 // factors of these
    int64_t first_query = 0;           // this rank's first one among them
    std::vector<ProjectedHeads> keys;  // that this rank holds
  };
  /// Whose key heads are whole on all ranks of `mesh_dim`: the layer with the query heads of all these ranks.
  /// Collective over the dimension. Adds to `wrong` what cannot be.
  void share_keys(Layer& layer, const std::string& mesh_dim, std::vector<std::string>& wrong);
  ShardRuntime& runtime_;
  std::shared_ptr<Communicator> data_ranks_;
  std::shared_ptr<Communicator> tensor_ranks_;  // null where no layer shares key heads
  std::vector<Layer> layers_;
  Tensor packed_;    // f32, the layers' maxima one behind the other
  Tensor gathered_;  // the same of all tensor_ranks_
  double tau_;
};

}  // namespace sherd
