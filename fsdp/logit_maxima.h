// Largest attention logits of a step, beside the parameters that make them.
#pragma once

#include <string>
#include <vector>

#include <sherd/fsdp/parameter.h>

namespace sherd {

/// Where a projection's heads lie: rows [first_row + h * head_dim, first_row + (h + 1) * head_dim) of this
/// rank's (tensor-parallel) piece of a matrix [rows, width], or elements of a bias, make head h.
struct ProjectedHeads {
  Parameter param = {};
  int64_t first_row = 0;
};

/// Of one attention. Numbers of heads are those of this tensor-parallel rank, whose query heads use its own
/// key heads.
struct AttentionHeads {
  /// For messages.
  std::string name = {};
  /// Everything that the queries, resp. the keys, are linear in: the weight, and the bias if there is one.
  std::vector<ProjectedHeads> queries = {}, keys = {};
  int heads = 0, kv_heads = 0, head_dim = 0;
  /// Queries or keys pass a normalisation on their way: then the logits do not follow from the size of the
  /// weights.
  bool normalised = false;

  /// Of a fused projection, whose rows are those of q, k and v. `bias` may be undefined.
  static AttentionHeads fused(std::string name, const Parameter& weight, const Parameter& bias, int heads,
                              int kv_heads, int head_dim);
  /// What cannot be, each with its value; empty when all is well.
  std::vector<std::string> problems() const;
};

/// The largest logit of each head of one attention since the latest reset(): what attention forwards raise,
/// over all microbatches of a step on this rank, and what clips read (QkClip). One rank's thread uses it.
class LogitMaxima {
 public:
  /// Before or after the model is sharded. @throws InvalidArgument naming all that cannot be.
  explicit LogitMaxima(AttentionHeads heads);
  LogitMaxima(const LogitMaxima&) = delete;
  LogitMaxima& operator=(const LogitMaxima&) = delete;

  const AttentionHeads& heads() const { return heads_; }
  /// f32 [heads], in the memory of `device`, to which forwards write on its compute stream: an element is
  /// raised to the largest logit of its head where that is larger. Zero at first: smaller ones are of no
  /// interest. Always the same memory, which the first call allocates.
  const Tensor& values(Device& device);
  /// On the compute stream: zero again. To be called when a batch is given up (zero_grad(), reset_step()), whose logits
  /// would count in the next step.
  void reset();

 private:
  AttentionHeads heads_;
  Tensor values_;
};

}  // namespace sherd
