#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/dtensor.h>
#include <sherd/kernels/ops.h>

namespace sherd {

void redistribute_flat(Stream& stream, Communicator& comm, Placement from, Placement to, const Tensor& full,
                       const Tensor& slice) {
  const auto flat = [](Placement p) { return !p.is_shard() || p.dim == 0; };
  const bool gather = from == Shard(0) && to.is_replicate();
  const bool reduce_to_slice = from.is_partial() && to == Shard(0);
  const bool reduce = from.is_partial() && to.is_replicate();
  const bool cut = from.is_replicate() && to == Shard(0);
  if (!flat(from) || !flat(to) || !(gather || reduce_to_slice || reduce || cut || from == to))
    throw NotSupported(fmt::format(
        "redistribute_flat from {} to {} is not supported; use S(0)->R, P->S(0), P->R and R->S(0)",
        to_string(from), to_string(to)));
  if (from == to) return;
  if (reduce) {
    if (comm.size() > 1 && full.numel() > 0) comm.all_reduce(stream, full.flat());
    return;
  }
  const int64_t n = slice.numel();
  if (full.numel() != comm.size() * n || full.dtype() != slice.dtype())
    throw ShapeMismatch(
        fmt::format("redistribute_flat over {} ranks: full has {} elements of {}, slice {} of {}; "
                    "full must hold one slice per rank",
                    comm.size(), full.numel(), name_of(full.dtype()), n, name_of(slice.dtype())));
  if (n == 0) return;

  const Tensor own = full.flat(comm.rank() * n, (comm.rank() + 1) * n);
  const bool view = own.raw() == slice.raw();
  if (cut || comm.size() == 1) {
    if (view) return;
    if (gather)
      ops::copy(stream, own, slice.flat());
    else
      ops::copy(stream, slice.flat(), own);
  } else if (gather) {
    comm.all_gather(stream, full.flat(), slice.flat());
  } else {
    comm.reduce_scatter(stream, slice.flat(), full.flat());
  }
}

}  // namespace sherd
