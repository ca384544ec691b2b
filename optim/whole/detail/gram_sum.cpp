#include <sherd/optim/whole/detail/gram_sum.h>

#include <sherd/kernels/ops.h>

namespace sherd {

void sum_over_owners(Stream& compute, Communicator& team, const MatrixBuffers& buffers, const Tensor& grams,
                     const GramExchange& g) {
  const auto floats = [&](int64_t elements) { return buffers.message(elements, DType::f32); };
  const Tensor partial_out = floats(g.partial.send_total), partial_in = floats(g.partial.recv_total);
  ops::copy_segments(compute, partial_out, grams, g.pack);
  // A reduce-scatter by messages: the backend's own sum could round differently on ranks or runs.
  team.all_to_all_v(compute, partial_in.unowned_view(), g.partial.recv, partial_out.unowned_view(),
                    g.partial.send);
  const Tensor sums = floats(g.sums_total);
  for (auto& s : g.sums) {
    if (s.count == 0) continue;
    const Tensor to = sums.flat(s.to, s.to + s.count);
    ops::copy(compute, to, partial_in.flat(s.from[0], s.from[0] + s.count));
    for (size_t k = 1; k < s.from.size(); ++k)
      // One owner adds each slice and sends the sum to the others: all of them iterate on the same bits.
      ops::scaled_add(compute, to, 1.0f, partial_in.flat(s.from[k], s.from[k] + s.count));
  }
  const Tensor whole_out = floats(g.whole.send_total), whole_in = floats(g.whole.recv_total);
  ops::copy_segments(compute, whole_out, sums, g.spread);
  team.all_to_all_v(compute, whole_in.unowned_view(), g.whole.recv, whole_out.unowned_view(), g.whole.send);
  ops::copy_segments(compute, grams, whole_in, g.unpack);
}

}  // namespace sherd
