// Gradients that are kept in 16 bits.
#include <fmt/format.h>

#include <string>
#include <utility>

#include <sherd/fsdp/group.h>
#include <sherd/fsdp/noise_runs.h>
#include <sherd/kernels/muon/muon.h>
#include <sherd/kernels/ops.h>

namespace sherd {

template <class F>
void ParamGroup::for_kept(Kept range, F f) const {
  const int64_t slice = layout_->slice(),
                first = range == Kept::cell ? part_begin_ + cell_begin_ : part_begin_,
                end = range == Kept::cell ? first + slice : part_begin_ + part_;
  for (int p = 0; p < static_cast<int>(spec_.params.size()); ++p) {
    const Parameter& param = spec_.params[static_cast<size_t>(p)];
    const int64_t held =
        param.tensor_shard() ? held_elements(param.shape(), *param.tensor_shard()) : param.numel();
    if (range == Kept::whole) {
      f(param, ParamRange{ParamIndex(0), ParamIndex(held)}, layout_->full_range(ParamId(p)).begin.value);
      continue;
    }
    for (int64_t r = first / slice; r < end / slice; ++r) {
      const RankId rank(static_cast<int>(r));
      const ParamRange piece = clipped(layout_->piece(ParamId(p), rank), held);
      if (piece.size() > 0) f(param, piece, r * slice + layout_->local_begin(ParamId(p), rank).value - first);
    }
  }
}

// What is kept is rounded. A microbatch is added to it, and the last sum is computed in f32 in the slot, or in
// staging, and rounded at its end.
void ParamGroup::reduce_rounded(Stream& stream, bool last, int microbatch, const Staging& staging) {
  const Placement target = reduce_target(last);
  const bool fresh = std::exchange(part_fresh_, false), whole = grad_full_.defined();
  const auto add = [&](const Tensor& kept, const Tensor& values, Kept range) {
    if (fresh || last) ops::fill(stream, kept, 0);
    // Sums of other ranks' microbatches have noise of their own, so that its errors average out.
    const ShardAxes& a = axes();
    const int sums = range == Kept::whole  ? a.replicate_index * a.shard_ranks + a.shard_index
                     : range == Kept::part ? a.replicate_index
                                           : 0;
    std::vector<UpdateSegment> segments;
    for_kept(range, [&](const Parameter& p, ParamRange elements, int64_t at) {
      const std::string use = fmt::format(
          "gradient {} {} {}", updates_[static_cast<size_t>(p.index_in_group())], microbatch, sums);
      for (const NoiseRun& run : noise_runs(p, elements, staging.zero)) {
        segments.push_back({.weight = kept.data<bf16>() + at + run.begin,
                            .count = run.count,
                            .at = at + run.begin,
                            .alpha = 1,
                            .noise = run.noise});
        segments.back().noise.key = hash64(run.noise.key, use);
      }
    });
    ops::muon_update(stream, segments, values, {}, DType::f32, {Master::bf16, DType::f32});
  };
  if (target.is_partial()) return add(grad_full_, grad_open_, Kept::whole);
  if (whole && !fresh) ops::scaled_add(stream, grad_open_.flat(0, full_elements()), 1, grad_full_);
  const Tensor gradient = wire_gradient(stream, staging);
  Tensor part = target.is_replicate() ? sum_whole(stream, gradient) : sum_to_part(stream, gradient);
  if (!last) return add(grad_part_, part, Kept::part);
  final_ = true;
  if (part.dtype() != DType::f32)  // the slot's content is in staging, or summed
    ops::cast(stream, grad_open_.flat(0, part_), std::exchange(part, grad_open_.flat(0, part_)));
  if (!whole && !fresh) ops::scaled_add(stream, part, 1, grad_part_);
  const Tensor cell = cell_of(part);
  {
    const Serving serving(*spec_.comms.reduce_outer, gradients_);
    redistribute_flat(stream, *spec_.comms.reduce_outer, outer_.grad_micro, outer_.grad, part,
                      outer_.grad.is_shard() ? cell : part);
  }
  if (ranks_ > 1) ops::scale(stream, cell, 1.0f / static_cast<float>(ranks_));
  add(cell_of(grad_part_), cell, Kept::cell);
}

}  // namespace sherd
