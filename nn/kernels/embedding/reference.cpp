#include <sherd/nn/kernels/embedding/embedding.h>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {
namespace {

void embedding_forward(ExecutionContext&, const EmbeddingArgs& e) {
  for (int64_t i = 0; i < e.count; ++i) {
    const int64_t row = e.tokens[i] - e.begin;
    const bool here = row >= 0 && row < e.vocab;
    for (int64_t c = 0; c < e.width; ++c) {
      double v = here ? get(e.table, row * e.width + c) : 0;
      if (e.positions.data != nullptr) v += get(e.positions, i % e.seq * e.width + c);
      put(e.out, i * e.width + c, v);
    }
  }
}

void embedding_backward(ExecutionContext&, const EmbeddingArgs& e) {
  for (int64_t i = 0; i < e.count; ++i) {
    const int64_t row = e.tokens[i] - e.begin;
    const bool here = row >= 0 && row < e.vocab;
    for (int64_t c = 0; c < e.width; ++c) {
      const double d = get(e.dout, i * e.width + c);
      if (here) accumulate(e.dtable, row * e.width + c, d);
      if (e.dpositions.data != nullptr) accumulate(e.dpositions, i % e.seq * e.width + c, d);
    }
  }
}

}  // namespace
}  // namespace sherd::reference

namespace sherd {

const EmbeddingKernels* EmbeddingKernels::reference() {
  static constexpr EmbeddingKernels table{
      .embedding_forward = reference::embedding_forward,
      .embedding_backward = reference::embedding_backward,
  };
  return &table;
}

}  // namespace sherd
