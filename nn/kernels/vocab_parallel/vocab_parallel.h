// Cross-entropy of logits that are column-wise sharded over several ranks. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/columns.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/nn/kernels/loss/loss.h>

namespace sherd {

/// These are columns [begin, begin + cols) of the vocabulary. Three steps, with what each reads and writes:
///   partial: stats[i] = {max, sum of exp(logits[i] - max), logit of target[i] or 0 when it is not here};
///   combine: stats of all parts, [parts, rows, 3], in the order of the parts: lse[i], losses[i] (nats);
///   backward: dlogits[i] = (exp(logits[i] - lse[i]) - onehot(target[i])) * scale; dlogits may be logits.
/// A row whose target is kIgnoredTarget gets lse +inf and loss 0, so its dlogits are zeros.
/// A part without columns has max -inf and sum 0. Rows of logits and dlogits are ld elements apart, as
/// CrossEntropyArgs has it.
struct VocabParallelArgs {
  int64_t rows = 0, cols = 0, ld = 0, begin = 0, parts = 0;
  Ref logits{}, dlogits{};
  const int32_t* targets = nullptr;
  float* stats = nullptr;
  float* lse = nullptr;
  float* losses = nullptr;
  float scale = 1;
};

struct VocabParallelKernels {
  static constexpr const char* kName = "vocab_parallel";
  static const VocabParallelKernels* reference();
  static const VocabParallelKernels* cpu();
  static const VocabParallelKernels* cuda();

  void (*vocab_parallel_partial)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_combine)(ExecutionContext&, const VocabParallelArgs&);
  void (*vocab_parallel_backward)(ExecutionContext&, const VocabParallelArgs&);
};

namespace ops {

/// Columns of the vocabulary in a rank's logits: `begin` and the next cols - 1 of `vocab`.
struct VocabPart {
  int64_t begin = 0, vocab = 0;
};
/// Each rank's logits [rows, cols] give its stats, f32 [rows, 3]; the stats of all ranks give losses and
/// log-sum-exp, f32 [rows], in the same bits on every rank; then each rank has its part of the gradient. One
/// part is cross_entropy to rounding. A target outside [0, vocab) but kIgnoredTarget fails the stream with InvalidArgument.
void vocab_parallel_partial(Stream& s, const Tensor& stats, const Columns& logits, const Tensor& targets,
                            VocabPart part);
void vocab_parallel_combine(Stream& s, const Tensor& losses, const Tensor& lse, const Tensor& stats,
                            const Tensor& targets);
void vocab_parallel_backward(Stream& s, const Columns& dlogits, const Columns& logits, const Tensor& lse,
                             const Tensor& targets, VocabPart part, float scale);

}  // namespace ops
}  // namespace sherd
