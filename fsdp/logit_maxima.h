// Largest attention logits of a step, beside the parameters that make them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

/// Place of a projection's heads. Head h is `rows` rows from first_row + h * stride on, of this rank's (tensor-parallel)
/// piece of a matrix [rows, width], or elements of a bias.
struct ProjectedHeads {
  Parameter param = {};
  int64_t first_row = 0;
  int64_t rows = 0;    // 0: the attention's head_dim
  int64_t stride = 0;  // 0: rows
};

/// Heads of one attention. Counts and indices of heads are those of this tensor-parallel rank, whose query
/// heads use its own key heads.
struct AttentionHeads {
  /// Name in messages.
  std::string name = {};
  /// All parameters in which the queries, resp. the keys, are linear: the weight, and the bias if there is
  /// one.
  std::vector<ProjectedHeads> queries = {}, keys = {};
  /// Queries of keys that all heads share, the rotary part of latent attention: a clip leaves these keys alone, and the queries
  /// take the whole factor (Kimi K2, arXiv 2507.20534). They need as many key heads as query heads.
  std::vector<ProjectedHeads> alone = {};
  int heads = 0, kv_heads = 0, head_dim = 0;
  /// Key head of each query head. Only where key heads are unsharded on all tensor-parallel ranks, and a
  /// rank's query heads do not share them evenly. Empty: heads / kv_heads consecutive query heads share one.
  std::vector<int> key_of = {};
  /// Queries or keys are normalised: the logits then do not follow from the size of the weights.
  bool normalised = false;

  /// Returns the heads of a fused projection with rows q, k and v. `bias` may be undefined.
  static AttentionHeads fused(std::string name, const Parameter& weight, const Parameter& bias, int heads,
                              int kv_heads, int head_dim);
  /// Rows [first, second) of head `head`.
  std::pair<int64_t, int64_t> rows(const ProjectedHeads& p, int64_t head) const {
    const int64_t count = p.rows > 0 ? p.rows : head_dim;
    const int64_t first = p.first_row + head * (p.stride > 0 ? p.stride : count);
    return {first, first + count};
  }
  /// Returns the key head of a query head.
  int key_head(int query) const {
    return key_of.empty() ? query / (heads / kv_heads) : key_of[static_cast<size_t>(query)];
  }
  /// Returns all errors, each with its value; empty when valid.
  std::vector<std::string> problems() const;
};

/// Largest logit of each head of one attention since the latest reset(). Attention forwards raise it over all
/// microbatches of a step on this rank; clips read it (QkClip). One rank's thread uses it.
class LogitMaxima {
 public:
  /// May be made before or after the model is sharded. @throws InvalidArgument naming all errors.
  explicit LogitMaxima(AttentionHeads heads);
  LogitMaxima(const LogitMaxima&) = delete;
  LogitMaxima& operator=(const LogitMaxima&) = delete;

  const AttentionHeads& heads() const { return heads_; }
  /// Returns the maxima: f32 [heads] in memory of `device`. Forwards on its compute stream raise an element
  /// to its head's largest logit. Values start at zero, so smaller logits are not recorded. The first call
  /// allocates the memory, which stays the same.
  const Tensor& values(Device& device);
  /// Sets the maxima to zero on the compute stream. Call it when a batch is dropped (zero_grad(),
  /// reset_step()); otherwise its logits count in the next step.
  void reset();

 private:
  AttentionHeads heads_;
  Tensor values_;
};

}  // namespace sherd
