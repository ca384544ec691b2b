// Cross-entropy whose vocabulary is in parts, against the one over all of it.
#include <sherd/nn/ops.h>

#include "kernels/lab.h"
#include "nn/kernels/targets.h"

namespace sherd::test {
namespace {

// Targets, of which every third is not learned if `masked`.
Tensor wanted(Lab& lab, int64_t rows, int64_t vocab, bool masked) {
  return lab.ints({rows}, masked ? masked_targets(rows, vocab) : targets(rows, vocab));
}

struct Both {
  Floats losses, d;
};

Both whole(Lab& lab, int64_t rows, const Floats& values, DType t, bool masked = false) {
  const int64_t vocab = static_cast<int64_t>(values.size()) / std::max<int64_t>(rows, 1);
  const Tensor logits = lab.tensor({rows, vocab}, values, t), losses = lab.empty({rows});
  const Tensor want = wanted(lab, rows, vocab, masked);
  ops::cross_entropy_forward(lab.s, losses, logits, want);
  ops::cross_entropy_backward(lab.s, logits, logits, want, 0.25f);
  return {lab.floats(losses), lab.floats(logits)};
}

// Columns cut at `cuts` (0, ..., vocab), as matrices of their own or of rows with room behind them.
Both in_parts(Lab& lab, int64_t rows, const Floats& values, DType t, const std::vector<int64_t>& cuts,
              bool room = false, bool masked = false) {
  const int64_t vocab = cuts.back(), parts = static_cast<int64_t>(cuts.size()) - 1;
  const Tensor stats = lab.empty({parts, rows, 3}), losses = lab.empty({rows}), lse = lab.empty({rows});
  const Tensor want = wanted(lab, rows, vocab, masked);
  std::vector<ops::Columns> logits;
  for (size_t p = 0; p + 1 < cuts.size(); ++p) {
    Floats mine;
    for (int64_t i = 0; i < rows; ++i)
      mine.insert(mine.end(), values.begin() + i * vocab + cuts[p], values.begin() + i * vocab + cuts[p + 1]);
    const int64_t cols = cuts[p + 1] - cuts[p], ld = room ? (cols + 63) / 64 * 64 : cols;
    const Tensor whole = lab.tensor({rows, cols}, mine, t), wider = room ? lab.empty({rows, ld}, t) : whole;
    if (room && cols > 0) ops::strided_copy(lab.s, wider, ld, whole, cols, rows, cols);
    logits.emplace_back(wider, 0, cols);
    const int64_t at = static_cast<int64_t>(p) * rows * 3;
    ops::vocab_parallel_partial(lab.s, stats.flat(at, at + rows * 3).view({rows, 3}), logits.back(), want,
                                {cuts[p], vocab});
  }
  ops::vocab_parallel_combine(lab.s, losses, lse, stats, want);
  Both both{lab.floats(losses), Floats(static_cast<size_t>(rows * vocab))};
  for (size_t p = 0; p < logits.size(); ++p) {
    ops::vocab_parallel_backward(lab.s, logits[p], logits[p], lse, want, {cuts[p], vocab}, 0.25f);
    const Floats d = lab.floats(logits[p].matrix);
    const int64_t cols = logits[p].count, ld = logits[p].matrix.size(1);
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(d.begin() + i * ld, cols, both.d.begin() + i * vocab + cuts[p]);
  }
  return both;
}

TEST(VocabParallel, PartsAgreeWithTheWhole) {
  for (const char* kernels : {kFast, "reference"}) {
    for (const DType t : {DType::f32, DType::bf16}) {
      for (const float spread : {1.0f, 20.0f}) {
        Lab lab(kernels);
        const int64_t rows = 19, vocab = 37;
        const Floats values = normal(rows * vocab, 1, spread);
        const Both want = whole(lab, rows, values, t);
        for (const std::vector<int64_t>& cuts : std::vector<std::vector<int64_t>>{
                 {0, 37}, {0, 18, 37}, {0, 1, 2, 37}, {0, 8, 16, 24, 37}, {0, 0, 37, 37}}) {
          const Both got = in_parts(lab, rows, values, t, cuts);
          expect_close(got.losses, want.losses, 3e-6, kernels);
          // exp(x - lse) has the rounding of an lse as large as the logits.
          expect_close(got.d, want.d, t == DType::f32 ? 2e-7 * (1 + spread) : epsilon(t) / 4, kernels);
          const Both roomy = in_parts(lab, rows, values, t, cuts, true);
          EXPECT_EQ(bits(roomy.losses), bits(got.losses)) << kernels;
          EXPECT_EQ(bits(roomy.d), bits(got.d)) << kernels;
        }
      }
    }
  }
}

TEST(VocabParallel, RowsThatAreNotLearnedHaveNeitherLossNorGradient) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const int64_t rows = 19, vocab = 37;
    const Floats values = normal(rows * vocab, 1, 1.0f);
    const Both want = whole(lab, rows, values, DType::f32, true);
    const Both got = in_parts(lab, rows, values, DType::f32, {0, 18, 37}, false, true);
    expect_close(got.losses, want.losses, 3e-6, kernels);
    expect_close(got.d, want.d, 4e-7, kernels);  // as of rows that are learned
    EXPECT_EQ(got.losses[0], 0.0f) << kernels;
    for (int64_t j = 0; j < vocab; ++j) EXPECT_EQ(got.d[static_cast<size_t>(j)], 0.0f) << kernels;
  }
}

TEST(VocabParallel, FarApartPartsNeitherOverflowNorVanish) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Both got = in_parts(lab, 1, {-1000, 1000, 1000, -1000}, DType::f32, {0, 1, 3, 4});
    expect_close(got.losses, {std::log(2.0f)}, 1e-6);
    expect_close(got.d, {0, -0.125f, 0.125f, 0}, 1e-4);
  }
}

TEST(VocabParallel, MatchesReference) {
  for (const DType t : {DType::f32, DType::bf16}) {
    for (auto [rows, vocab] :
         std::initializer_list<std::array<int64_t, 2>>{{0, 8}, {1, 2}, {7, 33}, {64, 513}, {3, 20000}}) {
      const int64_t r = rows, v = vocab;
      const Floats values = normal(r * v, 3, 4);
      // The f32 sum of v exponentials is off by about sqrt(v) roundings, and every probability (at most 1)
      // with it.
      const double sum = std::sqrt(static_cast<double>(v)) * 0x1p-24;
      for (const bool losses : {true, false})
        expect_same_as_reference(
            [&](Lab& lab) {
              const Both b = in_parts(lab, r, values, t, {0, v / 3, v});
              return losses ? b.losses : b.d;
            },
            t == DType::f32 ? 3e-6 + sum : epsilon(t) / 4);
    }
  }
}

TEST(VocabParallel, WrongArgumentsAreRefused) {
  Lab lab;
  const Tensor logits = lab.full({2, 4}, 0), stats = lab.empty({2, 3}), lse = lab.full({2}, 0);
  const Tensor want = lab.ints({2}, {0, 7});
  EXPECT_THROW(ops::vocab_parallel_partial(lab.s, lab.empty({2, 2}), logits, want, {0, 8}), ShapeMismatch);
  EXPECT_THROW(ops::vocab_parallel_partial(lab.s, stats, logits, lab.ints({3}, {0, 0, 0}), {0, 8}),
               ShapeMismatch);
  EXPECT_THROW(ops::vocab_parallel_partial(lab.s, stats, logits, want, {5, 8}), InvalidArgument);
  EXPECT_THROW(ops::vocab_parallel_combine(lab.s, lse, lse, stats, want), ShapeMismatch);
  EXPECT_THROW(ops::vocab_parallel_backward(lab.s, lab.empty({2, 3}), logits, lse, want, {0, 8}, 1),
               ShapeMismatch);
  const auto fails = [&] {
    ops::vocab_parallel_partial(lab.s, stats, logits, want, {0, 7});  // 7 is not in [0, 7)
    lab.s.synchronize();
  };
  EXPECT_THROW(fails(), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
