// Decoder-only language model of a published family, as a module.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/fsdp/logit_maxima.h>
#include <sherd/nn/attention.h>
#include <sherd/nn/context_parallel.h>
#include <sherd/nn/expert_parallel.h>
#include <sherd/nn/kv_cache.h>
#include <sherd/nn/loss.h>
#include <sherd/nn/models/description.h>
#include <sherd/nn/models/lora.h>
#include <sherd/nn/module.h>
#include <sherd/nn/objectives.h>
#include <sherd/nn/tensor_parallel.h>

namespace sherd::nn {

/// Factors of a forward's objective.
struct ObjectiveScale {
  /// NOLINTNEXTLINE: where every row is learned, both are one number.
  ObjectiveScale(float both) : loss(both), balance(both) {}
  ObjectiveScale(float of_losses, float of_balance) : loss(of_losses), balance(of_balance) {}
  float loss;  ///< of the sum of the rows' losses
  float
      balance;  ///< of balancing losses, which are sums over all rows but padding, learned or not; see LayerBalance
};

/// Multi-token prediction (DeepSeek-AI, DeepSeek-V3, 2024, arXiv 2412.19437, section 2.2, one depth): the head learns the
/// token behind the next one. Of row i with token t[i] and h[i], the model's rows behind its last norm, it computes
///     layer(eh_proj [enorm(embedding(t[i + 1])); hnorm(h[i])])
/// by a decoder layer of its own, then shared_head.norm and the model's head. Embedding and head are the model's.
struct NextTokens {
  Tensor tokens{};    ///< i32 [batch, seq], t[i + 1]; undefined: the head is not computed
  Tensor targets{};   ///< i32 [batch, seq], t[i + 2]; kIgnoredTarget: loss 0 and no gradient
  float scale = 0;    ///< of the sum of the head's losses, which is added to the objective
  Tensor loss_sum{};  ///< f64 [1], to which the sum of the head's losses is added, or undefined
};

/// Selects the forward of a causal model that returns its rows before the head.
struct HiddenRows {
  Documents documents{};
  float balance = 0;  ///< as ObjectiveScale::balance
};

/// Selects the forward of a causal model that computes its head alone.
struct HeadOf {
  Tensor hidden;
};

/// Interface of a language model for training programs; derived classes are the families'. Parameters have
/// the names of the family's files on Hugging Face ("model.layers.0.self_attn.q_proj.weight"), but for what
/// stored_names() lists: stacks of experts, which are one parameter each, parts of matrices that files keep
/// fused, and names that only one of two families has.
///
/// Wrapped from the inside out: experts on their own mesh, then each block, then the model.
class CausalModel : public Module<CausalModel> {
 public:
  /// tokens and targets i32 [batch, seq]: the losses f32 [batch * seq] in nats (under CausalModelOptions::context, of this
  /// rank's slices), and `scale` times their sum. Rows whose
  /// target is kIgnoredTarget have loss 0 and no gradient. At most CausalModelOptions::logits_chunk rows' logits exist at
  /// once.
  /// @param documents in the sequences; by default each sequence is one, without padding. @throws NotSupported for
  ///   Documents::starts by models of learned positions, which do not restart.
  /// @param next for models with ModelDescription::mtp_layers. Its losses are not among those returned. @throws
  ///   InvalidArgument where it is defined and the model has no such head.
  virtual CrossEntropy forward(const Var& tokens, const Tensor& targets, ObjectiveScale scale,
                               const Documents& documents = {}, const NextTokens& next = {}) = 0;
  /// `of` of the logits, computed in chunks of CausalModelOptions::logits_chunk rows (of_logits()): an objective of the
  /// caller's own, such as log_probs() of the targets. The logits are in the dtype that the model computes in, whole on every
  /// rank. `of` may call other models' forwards that have no backward. @throws as of_logits().
  virtual Var forward(const Var& tokens, const OfLogits& of, const HiddenRows& options);
  /// The rows behind the last norm, [batch * seq, dim] on every rank, for heads of the caller's own. A loss of them is
  /// computed alike on all ranks of a tensor-parallel group.
  virtual Var forward(const Var& tokens, const HiddenRows& options);
  /// The logits [n, vocab] of rows that the forward above returned, on every rank, for no backward.
  virtual Tensor forward(const HeadOf& hidden);
  Var forward(const Var& tokens, const OfLogits& of) { return forward(tokens, of, {}); }
  /// The logits [batch * seq, vocab] on every rank, in the dtype that the model computes in, for no backward.
  virtual Tensor forward(const Tensor& tokens) = 0;

  /// Generation: the logits [n, vocab], in the same dtype, behind the last of tokens i32 [n, rows], of which row i follows
  /// the positions that caches[i] has, and is kept there. Caches may have different lengths; each sequence's logits are those
  /// of a forward of it alone, to rounding. Each has a cache of its own. After an exception the caches have the positions that they had. For
  /// no backward; generate() calls it. @throws NotSupported by models without caches; InvalidArgument for a cache of another
  /// model, and for rows with which ModelDescription::changes_angles(): clear the cache and give all tokens.
  virtual Tensor forward(const Tensor& tokens, const std::vector<KvCache*>& caches);
  Tensor forward(const Tensor& tokens, KvCache* cache) { return forward(tokens, std::vector{cache}); }
  /// An empty cache for so many positions of this model on this rank. @throws as forward().
  virtual KvCache make_cache(Device& device, int64_t capacity, DType dtype) const;

  /// Sizes and family. @throws NotSupported by models without.
  virtual const ModelDescription& description() const;
  /// Blocks, and behind them the layer of a head for multi-token prediction.
  virtual size_t blocks() const = 0;
  virtual ModuleBase& block(size_t i) = 0;
  /// The module of a block's experts on this rank; null in a dense block.
  virtual ModuleBase* experts(size_t i) = 0;
  /// Each block's activations are dropped and computed again in backward. @param arguments memory that stores blocks' inputs until then
  virtual void set_recompute(bool on, Place arguments = Place::device) = 0;
  /// Ends a step of a model with MixtureDescription::bias_speed: raises the selection bias of experts that got fewer rows
  /// than the mean of their layer, in all forwards of training since the last call and on all ranks, by that speed, and
  /// lowers that of the others. Call it once behind each Optimizer::step(), on every rank: a collective. The biases are
  /// equal on all ranks, in bits. Of no effect on other models.
  /// @param skip i64 [1] on the device, or undefined: not 0 keeps the biases (ShardRuntime::skip(), of before the step)
  virtual void update_selection_bias(const Tensor& skip = {}) { (void)skip; }
  /// The largest logits of each block's attention; empty without CausalModelOptions::logit_maxima.
  virtual std::vector<std::shared_ptr<LogitMaxima>> logit_maxima() { return {}; }
  /// Adds the adapters' products to their weights and sets lora_B to zeros: the same function to rounding, in weights that
  /// need no adapters. Collective, between steps; optimizer states stay. Of no effect without adapters.
  virtual void fold_adapters() {}
  /// Sets whether forwards add the adapters' products: without, it is the model that the adapters are trained beside, as a
  /// reference to evaluate (WithoutAdapters). Set it outside of forwards and between backwards. Of no effect without adapters.
  virtual void use_adapters(bool on) { (void)on; }
};

/// Scope in which the model's forwards leave its adapters out.
class [[nodiscard]] WithoutAdapters {
 public:
  explicit WithoutAdapters(CausalModel& model) : model_(model) { model_.use_adapters(false); }
  ~WithoutAdapters() { model_.use_adapters(true); }
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  CausalModel& model_;
};

struct CausalModelOptions {
  TensorParallel tp{};
  ExpertParallel ep{};
  /// Ranks that share sequences (FullyShardOptions::context_dim). Forwards take whole sequences, the same on all of these
  /// ranks, and each computes its slice of the rows (ContextParallel::slice()): losses, rows before the head and the rows of
  /// OfLogits are those of the slice, and objectives and their gradients sum up over the ranks. Their number divides the
  /// query and the key heads of a tensor-parallel rank, and is at most the sequences' length. Logits of forward(tokens) are
  /// whole. Not with caches.
  ContextParallel context{};
  /// Between the tensor-parallel regions each rank of `tp` keeps its part of the rows alone; see
  /// sequence_parallel.h. The forward's bits are those without; gradients of norms, and of biases behind
  /// sums, are added up rank by rank, so training is the same to rounding. Of no effect in a group of one,
  /// and on generation with a cache.
  bool sequence_parallel = false;
  /// Rows whose logits exist at once; 0: all. See linear_cross_entropy().
  int64_t logits_chunk = 1024;
  /// Adapters; every other parameter is frozen. Not of gpt2, whose weights are [in, out], nor of byte_gpt.
  LoraOptions lora{};
  /// Attention keeps the largest logits of its heads, for QkClip. Not of families that normalise queries or keys, nor of gpt2.
  bool logit_maxima = false;
};

/// Builds the model; parameters are only described. @throws InvalidArgument for a description whose numbers
/// do not fit each other, or the ranks, naming all of them.
std::unique_ptr<CausalModel> causal_model(const ModelDescription& description,
                                          const CausalModelOptions& options = {});

}  // namespace sherd::nn
