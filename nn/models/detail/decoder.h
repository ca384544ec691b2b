// Decoder behind causal_model(): families differ in the parts that it is made of.
#pragma once

#include <memory>
#include <string>

#include <sherd/fsdp/module_list.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/models/detail/latent_self_attention.h>
#include <sherd/nn/models/detail/mixture.h>
#include <sherd/nn/models/detail/mlp.h>
#include <sherd/nn/models/detail/self_attention.h>
#include <sherd/nn/vocab_parallel.h>

namespace sherd::nn::detail {

/// mid = x + attention(norm1(x)), then mid + mlp(norm2(mid)), or a mixture of experts. Families have norms before attention
/// and MLP, behind them (olmo2, olmo3: x + norm(attention(x))), or both (gemma3). Input and output [batch * seq, dim], or this rank's part of these rows.
class DecoderLayer : public Module<DecoderLayer> {
 public:
  DecoderLayer(const Context& context, const ExpertParallel& ep, const std::shared_ptr<RopeTable>& rope,
               int64_t number);
  /// @param caches of this layer, one for each sequence, for generation; empty: sequences from their beginning.
  Var forward(const Var& x, const SequenceRows& rows, int64_t batch, const LayerBalance& balance,
              const Documents& documents = {}, const LayerCaches& caches = {});
  /// Forward of the layer for multi-token prediction: its part of NextTokens' formula, shared_head.norm
  /// included. @param next embeddings of the next tokens; as x in everything else
  Var forward(const Var& next, const Var& x, const SequenceRows& rows, int64_t batch,
              const LayerBalance& balance, const Documents& documents);
  /// Returns the number, resp. the width, of the heads that attention caches on this rank.
  int64_t cached_heads() const { return latent_ ? latent_->cached_heads() : attention_->cached_heads(); }
  int64_t cached_width() const { return latent_ ? latent_->cached_width() : attention_->cached_width(); }
  /// Null without CausalModelOptions::logit_maxima.
  std::shared_ptr<LogitMaxima> logit_maxima() const {
    return latent_ ? latent_->logit_maxima() : attention_->logit_maxima();
  }
  /// Null in a dense layer.
  Experts* experts() { return mixture_ ? &mixture_->experts() : nullptr; }
  const Mixture* mixture() const { return mixture_.get(); }

 private:
  /// Undefined without a name.
  Norm norm(const char* name);

  Context context_;
  Norm norm1_, norm1_behind_, norm2_, norm2_behind_;
  Norm enorm_, hnorm_, shared_head_norm_;     // of the layer for multi-token prediction alone, as eh_proj_
  Parameter eh_proj_;                         // [dim, 2 dim], cut along its inputs
  std::unique_ptr<SelfAttention> attention_;  // or
  std::unique_ptr<LatentSelfAttention> latent_;
  std::unique_ptr<Mlp> mlp_;
  std::unique_ptr<Mixture> mixture_;
};

class Decoder : public CausalModel {
 public:
  Decoder(const ModelDescription& description, const CausalModelOptions& options);
  CrossEntropy forward(const Var& tokens, const Tensor& targets, ObjectiveScale scale,
                       const Documents& documents, const NextTokens& next) override;
  Var forward(const Var& tokens, const OfLogits& of, const HiddenRows& options) override;
  Var forward(const Var& tokens, const HiddenRows& options) override;
  Tensor forward(const HeadOf& hidden) override;
  Tensor forward(const Tensor& tokens) override;
  Tensor forward(const Tensor& tokens, const std::vector<KvCache*>& caches) override;
  using CausalModel::forward;
  KvCache make_cache(Device& device, int64_t capacity, DType dtype) const override;
  const ModelDescription& description() const override { return context_.model; }
  size_t blocks() const override { return layers_.size(); }
  ModuleBase& block(size_t i) override { return layers_[i]; }
  ModuleBase* experts(size_t i) override { return layers_[i].experts(); }
  void set_recompute(bool on, Place arguments) override;
  void update_selection_bias(const Tensor& skip) override;
  void fold_adapters() override;
  void use_adapters(bool on) override;
  std::vector<std::shared_ptr<LogitMaxima>> logit_maxima() override;

 private:
  /// Returns the distribution of rows in a forward of these tokens, whole sequences; with caches every rank has all rows.
  SequenceRows rows_of(const Tensor& tokens, bool cached = false) const;
  /// Returns this rank's slices of [batch, seq] token ids.
  Var sliced(const Var& tokens) const;
  Var hidden(const Var& tokens, float balance_scale, const Documents& documents = {},
             const std::vector<KvCache*>& caches = {});
  /// Checks that the caches are of this model and have room. Returns the first position of each sequence.
  std::vector<int64_t> first_positions(const Tensor& tokens, const std::vector<KvCache*>& caches) const;
  /// The summand of multi-token prediction in the objective. @param x what hidden() returned for `tokens`, whole sequences
  Var next_objective(const Var& x, const Var& tokens, const NextTokens& next, float balance_scale,
                     const Documents& documents);
  /// @param x rows behind the last norm
  CrossEntropy loss_of(const Var& x, const Tensor& targets, float scale) const;
  /// Returns the balancing loss of a mixture in a forward of these sequences.
  LayerBalance balance_of(int layer, float loss_scale, const std::shared_ptr<LayerLoads>& loads,
                          const Var& tokens, const Documents& documents);
  /// @param tokens this rank's; first position of each sequence; empty: that of `rows`
  Var embedded(const Var& tokens, const std::vector<int64_t>& first, const SequenceRows& rows) const;

  Context context_;
  std::shared_ptr<Communicator> all_ranks_;  // of the experts' mesh; null: of the model's
  Tensor step_load_;                         // i32 [layers, experts], of this step and rank
  int64_t logits_chunk_;
  bool sequence_parallel_;
  ContextParallel slices_;
  VocabularyCut vocabulary_, table_cut_;  // of the head; of the table
  Parameter table_, positions_;
  ModuleList<DecoderLayer> layers_;  // model.layers, then the one for multi-token prediction
  Norm norm_;
  Parameter head_;
};

}  // namespace sherd::nn::detail
