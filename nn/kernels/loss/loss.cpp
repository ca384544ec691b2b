#include <sherd/nn/kernels/loss/loss.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/nn/kernels/indices/indices.h>

namespace sherd::ops {

using namespace door;

namespace {

// Shared part of the cross-entropy functions. Losses and dlogits are checked and set if they are requested.
void cross_entropy(Stream& s, const char* op, void (*kernel)(ExecutionContext&, const CrossEntropyArgs&),
                   const Tensor* losses, const Columns* dlogits, const Columns& logits, const Tensor& targets,
                   float scale, const Tensor& scales = {}) {
  Check check(op);
  const Tensor& in = logits.matrix;
  check.dims("logits", in, 2).dtype("logits", in, kActivations).dtype("targets", targets, DType::i32);
  check.count("targets", targets, in.size(0));
  if (losses) check.dtype("losses", *losses, wide(in.dtype())).count("losses", *losses, in.size(0));
  if (dlogits) check_gradient(check, *dlogits, logits);
  if (scales.defined()) check.dtype("scales", scales, wide(in.dtype())).count("scales", scales, in.size(0));
  check.done();
  require_columns(op, {&logits});
  CrossEntropyArgs a{.rows = in.size(0), .vocab = logits.count, .ld = ld(logits), .logits = ref(logits)};
  a.targets = targets.data<int32_t>();
  if (losses) a.losses = ref(*losses);
  if (dlogits) a.dlogits = ref(*dlogits);
  a.scale = scale;
  if (scales.defined()) a.scales = ref(scales);
  queue(s, op, kernels<IndicesKernels>(s).check_indices, op, "target", a.targets, a.rows, a.vocab,
        kIgnoredTarget);
  queue(s, {op, WorkKind::loss}, kernel, a);
}

}  // namespace

void cross_entropy_forward(Stream& s, const Tensor& losses, const Columns& logits, const Tensor& targets) {
  cross_entropy(s, "cross_entropy_forward", kernels<LossKernels>(s).cross_entropy_forward, &losses, nullptr,
                logits, targets, 1);
}

void cross_entropy_backward(Stream& s, const Columns& dlogits, const Columns& logits, const Tensor& targets,
                            float scale, const Tensor& scales) {
  cross_entropy(s, "cross_entropy_backward", kernels<LossKernels>(s).cross_entropy_backward, nullptr,
                &dlogits, logits, targets, scale, scales);
}

void cross_entropy_forward_backward(Stream& s, const Tensor& losses, const Columns& dlogits,
                                    const Columns& logits, const Tensor& targets, float scale) {
  cross_entropy(s, "cross_entropy_forward_backward", kernels<LossKernels>(s).cross_entropy_forward_backward,
                &losses, &dlogits, logits, targets, scale);
}

}  // namespace sherd::ops
