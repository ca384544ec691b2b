// Passes over memory at sizes where kernels change their way of going, and checks of indices.
#include <sherd/nn/ops.h>

#include "kernels/lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

struct Gradients {
  Floats table, positions;
};

Gradients embedding_gradients(Lab& lab, int64_t batch, int64_t seq, int64_t width, int64_t vocab,
                              int64_t often, DType t) {
  std::mt19937 engine(5);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < batch * seq; ++i)  // one token makes up `often` of every 100
    tokens.push_back(static_cast<int64_t>(engine() % 100) < often
                         ? static_cast<int32_t>(vocab / 2)
                         : static_cast<int32_t>(engine() % static_cast<unsigned>(vocab)));
  const Tensor dtable = lab.random({vocab, width}, 1), dpositions = lab.random({seq, width}, 2);
  ops::embedding_backward(lab.s, dtable, dpositions, lab.random({batch * seq, width}, 3, t),
                          lab.ints({batch, seq}, tokens));
  return {lab.floats(dtable), lab.floats(dpositions)};
}

TEST(EmbeddingBackward, ManyTokensAndALargeVocabulary) {
  for (DType t : {DType::f32, DType::bf16})
    for (int64_t width : {3, 8}) {
      Lab fast, slow("reference");
      const Gradients got = embedding_gradients(fast, 5, 1001, width, 70001, 1, t);
      const Gradients want = embedding_gradients(slow, 5, 1001, width, 70001, 1, t);
      EXPECT_EQ(bits(got.table), bits(want.table));
      EXPECT_EQ(bits(got.positions), bits(want.positions));
    }
}

TEST(EmbeddingBackward, OneTokenNearlyEverywhere) {
  for (int64_t width : {5, 16}) {
    Lab fast, again, slow("reference");
    const Gradients got = embedding_gradients(fast, 4, 800, width, 300, 90, DType::f32);
    const Gradients want = embedding_gradients(slow, 4, 800, width, 300, 90, DType::f32);
    // About 2900 additions of values near 1 to a sum near 50: a rounding error of 50 * 2^-24 each.
    expect_close(got.table, want.table, 2e-4);
    EXPECT_EQ(bits(got.positions), bits(want.positions));
    EXPECT_EQ(bits(embedding_gradients(again, 4, 800, width, 300, 90, DType::f32).table), bits(got.table));
  }
}

TEST(CheckIndices, NamesTheLowestPositionOfTheFirstCall) {
  Lab lab;
  const Tensor out = lab.full({6, 2}, 9), table = lab.random({5, 2}, 1);
  const Tensor first = lab.ints({1, 6}, {4, 0, -7, 5, 4, 99}), second = lab.ints({1, 6}, {77, 0, 0, 0, 0, 0});
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  if (again == 0) ops::embedding_forward(lab.s, out, first, table, Tensor());
                  if (again == 0)
                    ops::embedding_forward(lab.s, out, second, table, Tensor());  // may throw already
                  lab.s.synchronize();
                }),
                testing::HasSubstr("token -7 at position 2 lies outside [0, 5)"));
  }
}

TEST(CheckIndices, EventsBeforeTheCallAreFine) {
  Lab lab;
  const Tensor out = lab.empty({1, 2}), table = lab.random({5, 2}, 1), tokens = lab.ints({1, 1}, {5});
  const Event before = lab.s.record();
  const auto fails = [&] {  // at its second pass, if the first is done by then
    ops::embedding_forward(lab.s, out, tokens, table, Tensor());
    lab.s.synchronize();
  };
  EXPECT_THROW(fails(), InvalidArgument);
  EXPECT_NO_THROW(before.synchronize());
  EXPECT_THROW(lab.floats(table), InvalidArgument);  // a failed stream stays failed
}

}  // namespace
}  // namespace sherd::test
