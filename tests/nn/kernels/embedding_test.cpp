#include <sherd/nn/ops.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct EmbeddingCase {
  int64_t batch, seq, width, vocab;
  DType dtype;
  bool positions;
};

std::vector<int32_t> tokens(const EmbeddingCase& c) {
  std::vector<int32_t> t;
  for (int64_t i = 0; i < c.batch * c.seq; ++i)
    t.push_back(static_cast<int32_t>(i * i % c.vocab));  // repeats
  return t;
}

std::vector<EmbeddingCase> embedding_cases() {
  std::vector<EmbeddingCase> all;
  for (DType t : {DType::f32, DType::bf16})
    for (bool p : {false, true})
      for (auto [b, s, w, v] : std::initializer_list<std::array<int64_t, 4>>{
               {1, 1, 1, 1}, {2, 3, 5, 4}, {3, 50, 67, 11}, {0, 4, 8, 3}})
        all.push_back({b, s, w, v, t, p});
  return all;
}

TEST(Embedding, KnownRows) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    Tensor table = lab.tensor({3, 2}, {1, 2, 3, 4, 5, 6}),
           positions = lab.tensor({3, 2}, {10, 20, 30, 40, 50, 60});
    Tensor t = lab.ints({2, 2}, {2, 0, 1, 1}), out = lab.empty({4, 2});
    ops::embedding_forward(lab.s, out, t, table, positions);  // more positions than seq
    EXPECT_EQ(lab.floats(out), (Floats{15, 26, 31, 42, 13, 24, 33, 44}));
    Tensor dtable = lab.full({3, 2}, 100), dpositions = lab.full({3, 2}, 0);
    ops::embedding_backward(lab.s, dtable, dpositions, lab.tensor({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), t);
    EXPECT_EQ(lab.floats(dtable), (Floats{103, 104, 112, 114, 101, 102}));
    EXPECT_EQ(lab.floats(dpositions), (Floats{6, 8, 10, 12, 0, 0}));
  }
}

TEST(Embedding, PartsOfATableAddUpToAll) {
  for (const char* kernels : {kFast, "reference"})
    for (DType t : {DType::f32, DType::bf16})
      for (const bool with_positions : {false, true}) {
        Lab lab(kernels);
        const EmbeddingCase c{2, 7, 9, 11, t, with_positions};
        const Tensor tokens_in = lab.ints({2, 7}, tokens(c)), table = lab.random({12, 9}, 1, t),
                     dout = lab.random({14, 9}, 2, t);
        const Tensor positions = with_positions ? lab.random({7, 9}, 3, t) : Tensor();
        const Tensor whole = lab.empty({14, 9}, t), dwhole = lab.full({12, 9}, 0);
        ops::embedding_forward(lab.s, whole, tokens_in, table, positions);
        ops::embedding_backward(lab.s, dwhole, {}, dout, tokens_in);
        Floats sum(14 * 9, 0.0f), gradient;
        for (int64_t begin : {0, 4, 8}) {  // the last row is after the vocabulary
          const Tensor part = lab.empty({14, 9}, t), dpart = lab.full({4, 9}, 0);
          ops::embedding_forward(lab.s, part, tokens_in, table.rows(begin, begin + 4),
                                 begin == 0 ? positions : Tensor(), {begin, 11});
          const Floats values = lab.floats(part);
          for (size_t i = 0; i < sum.size(); ++i)
            sum[i] = t == DType::f32 ? sum[i] + values[i] : static_cast<float>(bf16(sum[i] + values[i]));
          ops::embedding_backward(lab.s, dpart, {}, dout, tokens_in, {begin, 11});
          for (const float g : lab.floats(dpart)) gradient.push_back(g);
        }
        EXPECT_EQ(sum, lab.floats(whole)) << kernels;
        EXPECT_EQ(gradient, lab.floats(dwhole)) << kernels;
      }
}

TEST(Embedding, MatchesReferenceToTheBit) {
  for (const EmbeddingCase& c : embedding_cases()) {
    expect_bits_of_reference([&](Lab& lab) {
      Tensor out = lab.empty({c.batch * c.seq, c.width}, c.dtype);
      Tensor positions = c.positions ? lab.random({c.seq + 2, c.width}, 2, c.dtype) : Tensor();
      ops::embedding_forward(lab.s, out, lab.ints({c.batch, c.seq}, tokens(c)),
                             lab.random({c.vocab, c.width}, 1, c.dtype), positions);
      return lab.floats(out);
    });
    expect_bits_of_reference([&](Lab& lab) {
      Tensor dtable = lab.random({c.vocab, c.width}, 3),
             dpositions = c.positions ? lab.random({c.seq, c.width}, 4) : Tensor();
      ops::embedding_backward(lab.s, dtable, dpositions, lab.random({c.batch * c.seq, c.width}, 5, c.dtype),
                              lab.ints({c.batch, c.seq}, tokens(c)));
      return c.positions ? lab.floats({dtable, dpositions}) : lab.floats(dtable);
    });
  }
}

}  // namespace
}  // namespace sherd::test
