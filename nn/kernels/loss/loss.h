// Cross-entropy. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/columns.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Target of a row that is not learned: its loss is 0, and so is its row of dlogits.
constexpr int32_t kIgnoredTarget = -1;

/// losses[i] = logsumexp(logits[i]) - logits[i][target[i]] (nats).
/// Backward: dlogits[i] = (softmax(logits[i]) - onehot(target[i])) * scale * scales[i], without the latter where scales
/// are null; dlogits may be logits. scales has the dtype of losses.
/// Both at once give the same bits and read the logits once. Rows of logits and dlogits are ld elements apart;
/// nothing between them is written.
struct CrossEntropyArgs {
  int64_t rows = 0, vocab = 0, ld = 0;
  Ref logits{}, dlogits{};
  const int32_t* targets = nullptr;
  Ref losses{};
  float scale = 1;
  Ref scales{};
};

inline Work work_of(const Device&, const CrossEntropyArgs& a) {
  return {.bytes = bytes_of({a.logits, a.dlogits}, a.rows * a.vocab)};
}

struct LossKernels {
  static constexpr const char* kName = "loss";
  static const LossKernels* reference();
  static const LossKernels* cpu();
  static const LossKernels* cuda();

  void (*cross_entropy_forward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_backward)(ExecutionContext&, const CrossEntropyArgs&);
  void (*cross_entropy_forward_backward)(ExecutionContext&, const CrossEntropyArgs&);
};

namespace ops {

/// logits, dlogits [rows, vocab], both with rows of one length where they are columns of larger matrices; targets
/// i32 (rows elements), losses f32 [rows], as `scales` where defined: a factor of each row's gradient beside `scale`. A target outside [0, vocab) but kIgnoredTarget fails the stream with InvalidArgument.
void cross_entropy_forward(Stream& s, const Tensor& losses, const Columns& logits, const Tensor& targets);
void cross_entropy_backward(Stream& s, const Columns& dlogits, const Columns& logits, const Tensor& targets,
                            float scale, const Tensor& scales = {});
void cross_entropy_forward_backward(Stream& s, const Tensor& losses, const Columns& dlogits,
                                    const Columns& logits, const Tensor& targets, float scale);

}  // namespace ops
}  // namespace sherd
