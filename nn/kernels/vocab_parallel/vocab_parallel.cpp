#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/nn/kernels/indices/indices.h>

namespace sherd::ops {

using namespace door;

namespace {

VocabParallelArgs vocab_args(Check& check, const Columns& logits, const Tensor& targets, VocabPart part) {
  const Tensor& in = logits.matrix;
  check.dims("logits", in, 2).dtype("logits", in, kActivations).dtype("targets", targets, DType::i32);
  check.count("targets", targets, in.size(0)).done();
  require_columns("vocab_parallel", {&logits});
  const int64_t end = part.begin + logits.count;
  require(part.begin >= 0 && end <= part.vocab,
          fmt::format("vocab_parallel: columns [{}, {}) of a vocabulary of {}", part.begin, end, part.vocab));
  VocabParallelArgs a{.rows = in.size(0), .cols = logits.count, .ld = ld(logits), .begin = part.begin};
  a.logits = ref(logits);
  a.targets = targets.data<int32_t>();
  return a;
}

}  // namespace

void vocab_parallel_partial(Stream& s, const Tensor& stats, const Columns& logits, const Tensor& targets,
                            VocabPart part) {
  Check check("vocab_parallel_partial");
  VocabParallelArgs a = vocab_args(check, logits, targets, part);
  check.dtype("stats", stats, DType::f32).shape("stats", stats, {a.rows, 3}).done();
  a.stats = stats.data<float>();
  queue(s, "vocab_parallel_partial", kernels<IndicesKernels>(s).check_indices, "vocab_parallel_partial",
        "target", a.targets, a.rows, part.vocab, kIgnoredTarget);
  queue(s, "vocab_parallel_partial", kernels<VocabParallelKernels>(s).vocab_parallel_partial, a);
}

void vocab_parallel_combine(Stream& s, const Tensor& losses, const Tensor& lse, const Tensor& stats,
                            const Tensor& targets) {
  Check check("vocab_parallel_combine");
  check.dims("stats", stats, 3).dtype("stats", stats, DType::f32);
  VocabParallelArgs a{.rows = stats.size(1), .parts = stats.size(0)};
  check.shape("stats", stats, {a.parts, a.rows, 3});
  check.dtype("losses", losses, DType::f32).count("losses", losses, a.rows);
  check.dtype("targets", targets, DType::i32).count("targets", targets, a.rows);
  check.dtype("lse", lse, DType::f32).count("lse", lse, a.rows).done();
  a.stats = stats.data<float>();
  a.lse = lse.data<float>();
  a.losses = losses.data<float>();
  a.targets = targets.data<int32_t>();
  queue(s, "vocab_parallel_combine", kernels<VocabParallelKernels>(s).vocab_parallel_combine, a);
}

void vocab_parallel_backward(Stream& s, const Columns& dlogits, const Columns& logits, const Tensor& lse,
                             const Tensor& targets, VocabPart part, float scale) {
  Check check("vocab_parallel_backward");
  VocabParallelArgs a = vocab_args(check, logits, targets, part);
  check.dtype("lse", lse, DType::f32).count("lse", lse, a.rows);
  check_gradient(check, dlogits, logits);
  check.done();
  a.lse = lse.data<float>();
  a.dlogits = ref(dlogits);
  a.scale = scale;
  queue(s, "vocab_parallel_backward", kernels<VocabParallelKernels>(s).vocab_parallel_backward, a);
}

}  // namespace sherd::ops
