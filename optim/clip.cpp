#include <sherd/optim/clip.h>

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/kernels/squares/exact_sum.h>
#include <sherd/optim/detail/gradient_sums.h>
#include <sherd/optim/optimizer.h>

namespace sherd {
namespace {

// The words are exact integer sums, equal on all ranks and independent of the order of addition.
float norm_of(NormKind kind, std::span<const int64_t> words, float largest) {
  if (words[ExactSum::kNonFinite] != 0 || words[ExactSum::kElsewhere] != 0)
    return std::numeric_limits<float>::quiet_NaN();
  switch (kind) {
    case NormKind::one:
      return static_cast<float>(ExactSum::value(words));
    case NormKind::infinity:
      return largest;
    case NormKind::two:
      break;
  }
  return ExactSum::norm(words);
}

// Measures the norm over all ranks and scales the gradients on the device. The host waits only with
// error_if_nonfinite; statistics are filled in when the compute stream has reached them.
std::shared_ptr<const GradientStats> clip(ShardRuntime& runtime, UpdateSet* set, double max_norm,
                                          const ClipOptions& options) {
  if (!(max_norm >= 0))
    throw InvalidArgument(
        fmt::format("clip_grad_norm: max_norm {} must not be negative; 0 only measures", max_norm));
  const std::vector<ParamGroup*> groups = runtime.groups();
  const auto narrow =
      std::ranges::find_if(groups, [](const ParamGroup* g) { return g->plan().grad_dtype != DType::f32; });
  if (max_norm > 0 && !options.in_update && narrow != groups.end())
    throw InvalidArgument(fmt::format(
        "clip_grad_norm: unit '{}' keeps gradients in {} (FullyShardOptions::grad_dtype), which scaling "
        "in place would round again; set ClipOptions::in_update",
        (*narrow)->unit(), name_of((*narrow)->plan().grad_dtype)));
  runtime.require_gradients("clip_grad_norm()", set);
  Device& device = runtime.device();
  Stream& stream = device.compute();

  // Ranks that clip to different norms, or of which some do not clip, would train apart.
  runtime.note_alike(
      hash64(std::bit_cast<uint64_t>(max_norm) ^ hash64(static_cast<uint64_t>(options.norm), "norm"),
             "clip_grad_norm()"));
  // Sums are collective over the mesh; each element counts once, on whatever ranks it is held.
  const GradientSums all = sums_by_dimension(runtime, set, options.norm);
  // Exact sums cannot give a maximum, hence the second pass and its own all-reduce.
  const Tensor largest = options.norm == NormKind::infinity ? largest_gradient(runtime, set) : Tensor();
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, MemoryClass::scratch, "gradient norm");
  const Tensor skip = Tensor::empty(device, {1}, DType::i64, MemoryClass::scratch, "gradient norm");
  auto stats = std::make_shared<GradientStats>();
  // In host memory: the kernel's result is copied there, for statistics.
  const Tensor total =
      Tensor::host(device, {ExactSum::kWords}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::clip_factor(stream, factor, total, all.sums, max_norm, skip, options.norm, largest);
  Tensor host_largest;
  if (largest.defined()) {
    host_largest = Tensor::host(device, {1}, DType::f32, MemoryClass::scratch, "gradient norm");
    ops::copy(stream, host_largest, largest);
  }
  // Queued, not awaited: ranks that differ throw at their next require_gradients().
  compare_served(runtime, all.served);
  // The lambda keeps the tensors and the statistics alive until the device has written them.
  stream.submit({"gradient norm", WorkKind::optimizer}, [total, host_largest, stats,
                                                         kind = options.norm](ExecutionContext& context) {
    context.after([total, host_largest, stats, kind] {
      const std::span<const int64_t> words(total.data<int64_t>(), ExactSum::kWords);
      stats->norm = norm_of(kind, words, host_largest.defined() ? *host_largest.data<float>() : 0);
      stats->zeros = words[ExactSum::kZeros];
      // Non-finite elements of ignored parameters, and of copies on other ranks, are in no sum.
      stats->non_finite =
          words[ExactSum::kNonFinite] != 0 ? words[ExactSum::kNonFinite] : words[ExactSum::kElsewhere];
    });
  });
  // The sums are equal on all ranks, so all of them throw or none.
  if (options.error_if_nonfinite) {
    stream.synchronize();
    if (!std::isfinite(stats->norm))
      throw Error(
          fmt::format("{}: clip_grad_norm: the gradients are not finite (norm {}, {} elements inf or NaN); "
                      "skip the batch by "
                      "zero_grad(), or let Optimizer::step() skip it without ClipOptions::error_if_nonfinite",
                      device.label(), stats->norm, stats->non_finite));
  }
  // A max_norm of 0 only measures; a factor of 1 leaves the bits of gradients unchanged.
  if (max_norm > 0 && !options.in_update) ops::scale_by(stream, clipped_pieces(runtime, set), factor);
  if (max_norm > 0 && options.in_update)
    set == nullptr ? runtime.update_sets()->set_gradient_factor(factor) : set->set_gradient_factor(factor);
  // step() of the optimizers reads this decision instead of summing again.
  set == nullptr ? runtime.set_skip(skip) : set->set_skip(skip);
  return stats;
}

// Clamping is local: each rank's pieces are final and no other rank's elements are needed.
void clip_value(ShardRuntime& runtime, const UpdateSet* set, double value) {
  if (!(value >= 0))
    throw InvalidArgument(fmt::format("clip_grad_value: value {} must not be negative", value));
  runtime.require_gradients("clip_grad_value()", set);
  // compute reads the gradients next, which the reduce stream may still be writing.
  runtime.wait_gradients();
  ops::clamp(runtime.device().compute(), pieces_of(runtime, set), value);
}

}  // namespace

std::shared_ptr<const GradientStats> clip_grad_norm(ModuleBase& root, double max_norm,
                                                    const ClipOptions& options) {
  return clip(runtime_of(root), nullptr, max_norm, options);
}

std::shared_ptr<const GradientStats> clip_grad_norm(const Optimizer& optimizer, double max_norm,
                                                    const ClipOptions& options) {
  return clip(optimizer.runtime(), &optimizer.updates(), max_norm, options);
}

GradientStats read_stats(ModuleBase& root, const std::shared_ptr<const GradientStats>& stats) {
  if (stats == nullptr)
    throw InvalidArgument("read_stats(): the GradientStats are null; pass what clip_grad_norm() returned");
  runtime_of(root).device().compute().synchronize();
  return *stats;
}

void skip_unless_finite(ModuleBase& root, const Tensor& loss) {
  ShardRuntime& runtime = runtime_of(root);
  if (!runtime.skip().defined())
    throw InvalidArgument("skip_unless_finite(): call clip_grad_norm() of the root before, in the same step");
  Device& device = runtime.device();
  Stream& stream = device.compute();
  const auto memory = [&](int64_t n, DType dtype) {
    return Tensor::empty(device, {n}, dtype, MemoryClass::scratch, "gradient norm");
  };
  // The sums of one element more, the loss, beside what the gradients have decided already.
  const Tensor value = memory(1, DType::f32), sums = memory(ExactSum::kWords, DType::i64);
  ops::cast(stream, value, loss);
  ops::fill(stream, sums, 0);
  ops::accumulate_squares(stream, sums, value);
  // A step that the gradients have already skipped stays skipped.
  ops::copy(stream, sums.flat(ExactSum::kElsewhere, ExactSum::kElsewhere + 1), runtime.skip());
  const Tensor factor = memory(1, DType::f32), total = memory(ExactSum::kWords, DType::i64);
  const Tensor skip = memory(1, DType::i64);
  const Tensor all[] = {sums};
  ops::clip_factor(stream, factor, total, all, 0, skip);
  runtime.set_skip(skip);
}

void clip_grad_value(ModuleBase& root, double value) { clip_value(runtime_of(root), nullptr, value); }

void clip_grad_value(const Optimizer& optimizer, double value) {
  clip_value(optimizer.runtime(), &optimizer.updates(), value);
}

}  // namespace sherd
