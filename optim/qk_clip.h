// QK-clip: attention logits are kept below a bound by scaling the weights that make them.
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
/// A skipped step scales nothing. A head whose maximum is not finite is left alone. The same bits under every
/// strategy and layout.
class QkClip : public AfterUpdate {
 public:
  /// @param layers whose maxima forwards raise; heads of this tensor-parallel rank.
  /// @throws InvalidArgument for tau that is not positive and finite, no layers, and naming parameters that
  /// are not of this model, or frozen, or of which the same rows make heads twice (tied projections); ShapeMismatch on every rank when ranks have different layers or tau.
  /// Collective.
  QkClip(ModuleBase& root, std::vector<std::shared_ptr<LogitMaxima>> layers,
         const QkClipOptions& options = {});

  void apply(Stream& compute, const Tensor& skip) override;
  std::vector<Parameter> changed() const override;

 private:
  struct Layer {
    std::shared_ptr<LogitMaxima> maxima;
    Tensor all, query, key;  // of all ranks; factors
  };
  ShardRuntime& runtime_;
  std::shared_ptr<Communicator> data_ranks_;
  std::vector<Layer> layers_;
  Tensor packed_;  // f32, the layers' maxima one behind the other
  double tau_;
};

}  // namespace sherd
