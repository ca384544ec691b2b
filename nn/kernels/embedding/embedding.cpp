#include <sherd/nn/kernels/embedding/embedding.h>

#include <fmt/format.h>

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/device/device.h>
#include <sherd/nn/kernels/indices/indices.h>

namespace sherd::ops {

using namespace door;

void embedding_forward(Stream& s, const Tensor& out, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions, VocabPart part) {
  Check check("embedding_forward");
  check.dims("tokens", tokens, 2).dims("table", table, 2);
  check.dtype("tokens", tokens, DType::i32)
      .dtype("table", table, kActivations)
      .dtype("out", out, table.dtype());
  EmbeddingArgs e{.count = tokens.numel(),
                  .seq = tokens.size(1),
                  .width = table.size(1),
                  .vocab = table.size(0),
                  .begin = part.begin};
  check.shape("out", out, {e.count, e.width});
  if (positions.defined()) {
    check.dims("positions", positions, 2).dtype("positions", positions, table.dtype());
    check.that(positions.size(0) >= e.seq && positions.size(1) == e.width,
               fmt::format("positions is {}, must be [at least {}, {}]", to_string(positions.shape()), e.seq,
                           e.width));
    e.positions = ref(positions);
  }
  check.done();
  e.tokens = tokens.data<int32_t>();
  e.table = ref(table);
  e.out = ref(out);
  queue(s, "embedding_forward", kernels<IndicesKernels>(s).check_indices, "embedding_forward", "token",
        e.tokens, e.count, part.vocab == 0 ? e.vocab : part.vocab, 0);
  queue(s, "embedding_forward", kernels<EmbeddingKernels>(s).embedding_forward, e);
}

void embedding_backward(Stream& s, const Tensor& dtable, const Tensor& dpositions, const Tensor& dout,
                        const Tensor& tokens, VocabPart part) {
  Check check("embedding_backward");
  check.dims("tokens", tokens, 2).dims("dtable", dtable, 2);
  check.dtype("tokens", tokens, DType::i32)
      .dtype("dtable", dtable, wide(dout.dtype()))
      .dtype("dout", dout, kActivations);
  EmbeddingArgs e{.count = tokens.numel(),
                  .seq = tokens.size(1),
                  .width = dtable.size(1),
                  .vocab = dtable.size(0),
                  .begin = part.begin};
  check.shape("dout", dout, {e.count, e.width});
  if (dpositions.defined()) {
    check.dims("dpositions", dpositions, 2).dtype("dpositions", dpositions, wide(dout.dtype()));
    check.that(dpositions.size(0) >= e.seq && dpositions.size(1) == e.width,
               fmt::format("dpositions is {}, must be [at least {}, {}]", to_string(dpositions.shape()),
                           e.seq, e.width));
  }
  check.done();
  e.tokens = tokens.data<int32_t>();
  e.dout = ref(dout);
  e.dtable = ref(dtable);
  if (dpositions.defined()) e.dpositions = ref(dpositions);
  queue(s, "embedding_backward", kernels<IndicesKernels>(s).check_indices, "embedding_backward", "token",
        e.tokens, e.count, part.vocab == 0 ? e.vocab : part.vocab, 0);
  // CUB's sort has other kernels for other counts and loads them: InOrder.
  const InOrder in_order(s.device(), s.device().first_use({e.count, e.vocab}));
  queue(s, "embedding_backward", kernels<EmbeddingKernels>(s).embedding_backward, e);
}

}  // namespace sherd::ops
