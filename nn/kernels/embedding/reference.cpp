#include <fmt/format.h>

#include <string_view>

#include <sherd/kernels/device/detail/bad_index.h>
#include <sherd/nn/kernels/embedding/embedding.h>

#include <sherd/kernels/device/reference/access.h>

namespace sherd::reference {

void check_indices(ExecutionContext&, const char* op, const char* what, const int32_t* indices, int64_t count,
                   int64_t bound) {
  for (int64_t i = 0; i < count; ++i)
    if (indices[i] < 0 || indices[i] >= bound)
      throw InvalidArgument(bad_index(op, what, indices[i], i, bound));
}

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

}  // namespace sherd::reference
