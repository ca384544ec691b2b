#include <sherd/nn/routing.h>

#include <fmt/format.h>

#include <algorithm>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/epilogue/epilogue.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/summed_gradient.h>

namespace sherd::nn {
namespace {

using detail::like;
using detail::like_f32;

Tensor integers(const Tensor& beside, Shape shape) {
  return Tensor::empty(beside.device(), std::move(shape), DType::i32, detail::kActivations);
}

/// Writes equal shares of `rows` to a dry device's memory, which the host reads.
void spread_evenly(const Tensor& counts, int64_t rows) {
  const int64_t experts = counts.numel();
  for (int64_t e = 0; e < experts; ++e)
    counts.data<int32_t>()[e] = static_cast<int32_t>(rows / experts + (e < rows % experts ? 1 : 0));
}

Routes unsorted_routes(const Tensor& logits, int64_t k) {
  const int64_t rows = logits.size(0);
  return {{},
          integers(logits, {rows, k}),
          integers(logits, {rows * k}),
          integers(logits, {rows * k}),
          integers(logits, {logits.size(1)})};
}

void sort_choices(Stream& s, const Routes& r) {
  ops::sort_by_expert(s, r.order, r.position, r.counts, r.indices);
  if (s.device().dry()) spread_evenly(r.counts, r.indices.numel());
}

/// Returns whether the choices of this forward count. If a second run cannot find them, they count in that
/// run alone.
bool balances(const Var& x, const LoadBalancing& b) {
  return b.weight != 0 && x.tape() != nullptr && (b.loads ? x.tape()->training() : x.tape()->recording());
}

}  // namespace

RouterLogits router_logits(const Var& x, const Parameter& w, const TensorParallel& tp,
                           const Parameter& bias) {
  const Tensor in = x.value();
  const Shape shape{in.size(0), w.shape()[0]};
  const std::vector<Var> out = functions(
      {x},
      [&](Stream& s) {
        Tensor logits = like_f32(in, shape);
        ops::gemm(s, logits, in, false, w.data(), true);
        if (bias.defined()) ops::add_bias(s, logits, detail::as_dtype(s, bias.data(), DType::f32));
        return std::vector<Tensor>{logits, in};
      },
      [in, shape, w, tp, bias](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient &of_logits = call.output(0), &of_x = call.output(1);
        if (!of_logits.defined() && tp.size() == 1) return {of_x};
        // Whatever became of this rank's rows, the others wait for its part of the sum.
        const Gradient from_logits = of_logits.defined() ? of_logits : Gradient::constant(0);
        Tensor dlogits = from_logits.tensor(in.device(), shape, DType::f32);
        if (bias.defined())
          detail::add_summed(s, tp, bias, [&](const GradTarget& sums) {
            if (sums.beta == 0) ops::fill(s, sums.grad, 0);
            ops::bias_backward(s, sums.grad, dlogits);
          });
        if (in.dtype() != DType::f32) {
          const Tensor narrow = like(in, shape);
          ops::cast(s, narrow, dlogits);
          dlogits = narrow;
        }
        detail::add_summed(s, tp, w, [&](const GradTarget& dw) {
          ops::gemm(s, dw.grad, dlogits, true, in, false, 1, dw.beta);
        });
        if (!call.wants(0)) return {Gradient()};
        const Tensor dx = like(in);
        if (of_x.defined()) ops::copy(s, dx, of_x.tensor(in));
        ops::gemm(s, dx, dlogits, false, w.data(), false, 1, of_x.defined() ? 1 : 0);
        return {dx};
      },
      bias.defined() ? std::vector<Parameter>{w, bias} : std::vector<Parameter>{w});
  return {out[0], out[1]};
}

Routes route_top_k(const Var& x, int64_t k, const LoadBalancing& balancing, std::optional<bool> normalised) {
  const Tensor logits = x.value();
  const int64_t rows = logits.size(0), experts = logits.size(1);
  Routes r = unsorted_routes(logits, k);
  const bool trains = balances(x, balancing);
  const std::shared_ptr<LayerLoads> loads =
      balancing.loads ? balancing.loads : std::make_shared<LayerLoads>(1);
  const auto layer = static_cast<size_t>(balancing.layer);
  if (layer >= loads->known_.size())
    throw InvalidArgument(
        fmt::format("route_top_k: layer {} of a model of {} mixtures; count them from 0, in each forward",
                    balancing.layer, loads->layers()));
  const bool counts = trains && !loads->known_[layer];
  if (counts && !loads->counts_.defined()) {
    loads->counts_ = integers(logits, {loads->layers(), experts});
    ops::fill(logits.device().compute(), loads->counts_, 0);
  }
  const ops::TopKBalance balance{.counts = trains ? loads->counts_ : Tensor(),
                                 .layer = balancing.layer,
                                 .factor = balancing.weight * balancing.scale * static_cast<float>(experts),
                                 .rows = balancing.rows};
  r.gates = function(
      {x},
      [&](Stream& s) {
        Tensor gates = like_f32(logits, {rows, k});
        ops::route_top_k(s, r.indices, gates, logits, normalised);
        sort_choices(s, r);
        if (counts) {
          const auto at = static_cast<int64_t>(layer) * experts;
          const Tensor everywhere = loads->counts_.flat(at, at + experts);
          if (balancing.rows.lengths.defined())
            ops::count_choices(s, everywhere, r.indices, balancing.rows);
          else
            ops::copy(s, everywhere, r.counts);
          // On the compute stream alone, as all work with this memory: the collective need not own it.
          if (balancing.ranks && balancing.ranks->size() > 1)
            balancing.ranks->all_reduce(s, everywhere.unowned_view());
          loads->known_[layer] = true;
        }
        return gates;
      },
      [logits, indices = r.indices, balance, normalised](Stream& s,
                                                         const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dgates = call.output().tensor(logits.device(), indices.shape(), DType::f32);
        const Tensor dlogits = like(logits);
        ops::route_top_k_backward(s, dlogits, dgates, logits, indices, balance, normalised);
        return {dlogits};
      });
  return r;
}

bool LayerLoads::first_run(int layer) {
  const bool first = !known_.at(static_cast<size_t>(layer));
  known_[static_cast<size_t>(layer)] = true;
  return first;
}

Routes route_in_groups(const Var& x, const GroupRouting& o) {
  const Tensor logits = x.value();
  const int64_t rows = logits.size(0), experts = logits.size(1);
  if (o.sequences < 1 || o.all_rows % o.sequences != 0)
    throw InvalidArgument(
        fmt::format("route_in_groups: {} rows are not {} equal sequences", o.all_rows, o.sequences));
  Routes r = unsorted_routes(logits, o.k);
  const int64_t own = std::max<int64_t>(1, o.all_rows / o.sequences);
  const ops::RowsOfSequences at{o.first_row, own, o.lengths, o.slice.first(), o.slice.positions(own)};
  // Counts of choices are constants of backward.
  const bool balanced = o.weight != 0 && x.tape() != nullptr && x.tape()->training();
  const Tensor counts = balanced ? integers(logits, {o.sequences, experts}) : Tensor();
  const float balance = o.weight * o.scale * static_cast<float>(experts);
  r.gates = function(
      {x},
      [&](Stream& s) {
        Tensor gates = like_f32(logits, {rows, o.k});
        ops::route_in_groups(s, r.indices, gates, logits, o.bias, o.choice);
        sort_choices(s, r);
        if (o.step_load.defined()) ops::count_choices(s, o.step_load, r.indices, at);
        if (balanced) {
          ops::fill(s, counts, 0);
          ops::count_choices(s, counts, r.indices, at);
          for (const auto& ranks : {o.ranks, o.slice.ranks.comm})
            if (ranks && ranks->size() > 1) ranks->all_reduce(s, counts.unowned_view());
        }
        return gates;
      },
      [logits, indices = r.indices, choice = o.choice, counts, balance, at](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dgates = call.output().tensor(logits.device(), indices.shape(), DType::f32);
        const Tensor dlogits = like(logits);
        ops::route_in_groups_backward(s, dlogits, dgates, logits, indices, choice, counts, balance, at);
        return {dlogits};
      });
  return r;
}

Var dispatch(const Var& x, const Routes& routes) {
  const Tensor in = x.value();
  const Shape shape{routes.order.numel(), in.size(1)};
  return function(
      {x},
      [&](Stream& s) {
        Tensor rows = like(in, shape);
        ops::expand_rows(s, rows, in, routes.order, {});
        return rows;
      },
      [device = &in.device(), n = in.size(0), shape, dtype = in.dtype(), position = routes.position](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor drows = call.output().tensor(*device, shape, dtype);
        const Tensor dx = like(drows, {n, shape[1]});
        ops::combine_rows(s, dx, drows, position, {});
        return {dx};
      });
}

Var combine(const Var& x, const Routes& routes) {
  const Tensor rows = x.value(), gates = routes.gates.value();
  const Shape shape{gates.size(0), rows.size(1)};
  return function(
      {x, routes.gates},
      [&](Stream& s) {
        Tensor y = like(rows, shape);
        ops::combine_rows(s, y, rows, routes.position, gates);
        return y;
      },
      [rows, gates, shape, order = routes.order, position = routes.position](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor dy = call.output().tensor(rows.device(), shape, rows.dtype());
        Gradient drows, dgates;
        if (call.wants(1)) {
          const Tensor d = like_f32(rows, gates.shape());
          ops::combine_gates_backward(s, d, dy, rows, position);
          dgates = d;
        }
        if (call.wants(0)) {
          const Tensor d = like(rows);
          ops::expand_rows(s, d, dy, order, gates);
          drows = d;
        }
        return {drows, dgates};
      });
}

}  // namespace sherd::nn
