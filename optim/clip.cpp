#include <sherd/optim/clip.h>

#include <fmt/format.h>

#include <span>
#include <vector>

#include <sherd/kernels/ops/exact_sum.h>
#include <sherd/kernels/ops/ops.h>
#include <sherd/optim/detail/gradient_sums.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

namespace {

std::shared_ptr<const GradientStats> clip(ShardRuntime& runtime, UpdateSet* set, double max_norm) {
  if (!(max_norm >= 0))
    throw InvalidArgument(
        fmt::format("clip_grad_norm: max_norm {} must not be negative; 0 only measures", max_norm));
  runtime.require_gradients("clip_grad_norm()", set);
  Device& device = runtime.device();
  Stream& stream = device.compute();

  const GradientSums all = sums_by_dimension(runtime, set);
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, MemoryClass::scratch, "gradient norm");
  const Tensor skip = Tensor::empty(device, {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  auto stats = std::make_shared<GradientStats>();
  const Tensor total =
      Tensor::host(device, {ExactSum::kWords}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::clip_factor(stream, factor, total, all.sums, max_norm, skip);
  compare_served(runtime, all.served);
  stream.submit("gradient norm", [total, stats](ExecutionContext& context) {
    context.after([total, stats] {
      const std::span<const int64_t> words(total.data<int64_t>(), ExactSum::kWords);
      stats->norm = ExactSum::norm(words);
      stats->zeros = words[ExactSum::kZeros];
      stats->non_finite = words[ExactSum::kNonFinite];
    });
  });
  if (max_norm > 0) ops::scale_by(stream, clipped_pieces(runtime, set), factor);
  set == nullptr ? runtime.set_skip(skip) : set->set_skip(skip);
  return stats;
}

}  // namespace

std::shared_ptr<const GradientStats> clip_grad_norm(ModuleBase& root, double max_norm) {
  return clip(runtime_of(root), nullptr, max_norm);
}

std::shared_ptr<const GradientStats> clip_grad_norm(const Optimizer& optimizer, double max_norm) {
  return clip(optimizer.runtime(), &optimizer.updates(), max_norm);
}

}  // namespace sherd
