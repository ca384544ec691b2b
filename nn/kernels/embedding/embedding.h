// Rows of a table chosen by tokens. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/nn/kernels/vocab_parallel/vocab_parallel.h>

namespace sherd {

/// out[i] = table[token[i] - begin] + positions[i mod seq]; positions may be null. Backward adds, in increasing i, to
/// dtable and dpositions, which may be null. A token outside of [begin, begin + vocab) has a row of zeros and no
/// gradient in the table.
struct EmbeddingArgs {
  int64_t count = 0, seq = 0, width = 0, vocab = 0, begin = 0;
  const int32_t* tokens = nullptr;
  Ref table{}, positions{}, out{};
  Ref dout{};
  Ref dtable{}, dpositions{};
};

inline Work work_of(const Device&, const EmbeddingArgs& a) {
  return {.bytes = bytes_of({a.table, a.out, a.dout, a.dtable}, a.count * a.width)};
}

struct EmbeddingKernels {
  static constexpr const char* kName = "embedding";
  static const EmbeddingKernels* reference();
  static const EmbeddingKernels* cpu();
  static const EmbeddingKernels* cuda();

  void (*embedding_forward)(ExecutionContext&, const EmbeddingArgs&);
  void (*embedding_backward)(ExecutionContext&, const EmbeddingArgs&);
};

namespace ops {

/// tokens i32 [batch, seq]; table [vocab, width]; positions [>= seq, width] or undefined; out [batch*seq,
/// width]. A token outside [0, vocab) fails the stream with InvalidArgument.
/// @param part where the table is that of rows [part.begin, part.begin + its rows) of a vocabulary of part.vocab (0:
/// it is all of it): the other tokens of the vocabulary have zeros. Rows behind the vocabulary are never used.
void embedding_forward(Stream& s, const Tensor& out, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions, VocabPart part = {});
/// dtable and dpositions are f32 and add; dpositions may be undefined.
void embedding_backward(Stream& s, const Tensor& dtable, const Tensor& dpositions, const Tensor& dout,
                        const Tensor& tokens, VocabPart part = {});

}  // namespace ops
}  // namespace sherd
