#include <sherd/nn/sequence_parallel.h>

#include <fmt/format.h>

#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/function.h>

namespace sherd::nn {
namespace {

void require_rows(const char* function, const Tensor& x, int64_t wanted, const SequenceRows& rows) {
  if (x.dim() != 2 || x.size(0) != wanted)
    throw ShapeMismatch(
        fmt::format("SequenceRows::{}: the value is {}, must be [{}, d] on rank {} of {}, of {} rows in all",
                    function, to_string(x.shape()), wanted, rows.tp.rank(), rows.tp.size(), rows.count));
}

}  // namespace

Var SequenceRows::enter(const Var& x) const {
  if (!splits()) return tp.copied(x);
  require_rows("enter", x.value(), here(), *this);
  return function(
      {x}, [&](Stream& s) { return tp.all_rows(s, x.value(), count); },
      [rows = *this, device = &x.device(), shape = Shape{count, x.size(1)}, dtype = x.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {rows.tp.own_rows_of_sum(s, call.output().tensor(*device, shape, dtype))};
      });
}

SequenceRows::Entered SequenceRows::enter_both(const Var& x) const {
  if (!splits()) return {tp.copied(x), x};
  require_rows("enter_both", x.value(), here(), *this);
  const std::vector<Var> twice = functions(
      {x},
      [&](Stream& s) {
        const Tensor all = tp.all_rows(s, x.value(), count);
        return std::vector<Tensor>{all, all};
      },
      [group = tp, device = &x.device(), shape = Shape{count, x.size(1)}, dtype = x.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Gradient &of_cut = call.output(0), &of_whole = call.output(1);
        const auto own = [&] { return group.own_rows(of_whole.tensor(*device, shape, dtype)); };
        if (!of_cut.defined()) return {own()};
        const Tensor dx = group.own_rows_of_sum(s, of_cut.tensor(*device, shape, dtype));
        if (of_whole.defined()) ops::add(s, dx, dx, own());
        return {dx};
      });
  return {twice[0], twice[1]};
}

Var SequenceRows::leave(const Var& y) const {
  if (!splits()) return tp.summed(y);
  require_rows("leave", y.value(), count, *this);
  return function(
      {y}, [&](Stream& s) { return tp.own_rows_of_sum(s, y.value()); },
      [rows = *this, device = &y.device(), width = y.size(1), dtype = y.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor part = call.output().tensor(*device, {rows.here(), width}, dtype);
        return {rows.tp.all_rows(s, part, rows.count)};
      });
}

}  // namespace sherd::nn
