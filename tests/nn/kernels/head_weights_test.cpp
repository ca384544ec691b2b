// Weights of a head, padded where a GPU's products want it.
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/nn/detail/logits.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

/// A matrix with zeros behind its columns.
Tensor widened(Lab& lab, const Tensor& m, int64_t columns) {
  const Floats narrow = lab.floats(m);
  Floats wide(static_cast<size_t>(m.size(0) * columns), 0);
  for (int64_t i = 0; i < m.numel(); ++i)
    wide[static_cast<size_t>(i / m.size(1) * columns + i % m.size(1))] = narrow[static_cast<size_t>(i)];
  return lab.tensor({m.size(0), columns}, wide, m.dtype());
}

TEST(HeadWeights, GiveThePlainProductsAndZerosBehindThem) {
  constexpr int64_t kRows = 6, kWidth = 16;
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t vocab : {1, 63, 64, 65, 72}) {
      Lab lab;
      Stream& s = lab.s;
      const bool pads = kCuda && t == DType::bf16 && vocab % 8 != 0;
      const int64_t columns = pads ? (vocab + 63) / 64 * 64 : vocab;
      const Tensor w = lab.random({vocab, kWidth}, 1, t), x = lab.random({kRows, kWidth}, 2, t);
      const nn::detail::HeadWeights head(s, w);
      const ops::Columns logits = head.logits(s, x);
      ASSERT_EQ(logits.matrix.shape(), (Shape{kRows, columns}));
      EXPECT_EQ(logits.begin, 0);
      EXPECT_EQ(logits.count, vocab);
      // Sums of 16 terms of size 1 in f32, rounded to the dtype once.
      const double tolerance = 16 * 0x1p-23 + (t == DType::bf16 ? epsilon(t) : 0);
      const Tensor plain = lab.empty({kRows, vocab}, t);
      ops::gemm(s, plain, x, false, w, true);
      expect_close(lab.floats(logits.matrix), lab.floats(widened(lab, plain, columns)), tolerance);

      const Tensor d = lab.random({kRows, vocab}, 3, t), dw = lab.full({vocab, kWidth}, 1),
                   dx = lab.empty({kRows, kWidth}, t);
      const Tensor plain_dw = lab.full({vocab, kWidth}, 1), plain_dx = lab.empty({kRows, kWidth}, t);
      const ops::Columns dlogits{widened(lab, d, columns), 0, vocab};
      head.backward(s, dlogits, x, dw, 1, {});
      head.backward(s, dlogits, x, {}, 0, dx);
      ops::gemm(s, plain_dw, d, true, x, false, 1, 1);
      ops::gemm(s, plain_dx, d, false, w, false);
      expect_close(lab.floats(dw), lab.floats(plain_dw), 16 * 0x1p-23);
      // Sums of up to 72 terms.
      expect_close(lab.floats(dx), lab.floats(plain_dx), 5 * tolerance);
    }
}

}  // namespace
}  // namespace sherd::test
