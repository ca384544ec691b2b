#include "lab.h"

namespace sherd::test {
namespace {

const std::vector<ops::Coefficients> kMuon(5, {3.4445f, -4.7750f, 2.0315f});
/// Converges to the polar factor: 15/8, -10/8, 3/8.
const std::vector<ops::Coefficients> kPolar(16, {1.875f, -1.25f, 0.375f});

Floats orthogonalise(Lab& lab, int64_t rows, int64_t cols, const Floats& values,
                     std::span<const ops::Coefficients> c) {
  Tensor in = lab.tensor({rows, cols}, values), out = lab.empty({rows, cols});
  ops::newton_schulz(lab.s, out, in, c);
  EXPECT_EQ(lab.floats(in), values);  // the input stays
  return lab.floats(out);
}

TEST(NewtonSchulz, ADiagonalFollowsTheScalarPolynomial) {
  for (const char* kernels : {"cpu", "reference"}) {
    Lab lab(kernels);
    const Floats got = orthogonalise(lab, 2, 3, {3, 0, 0, 0, 4, 0}, kMuon);
    double x = 0.6, y = 0.8;  // 3 and 4 over the norm 5
    for (int i = 0; i < 5; ++i) {
      auto step = [](double s) { return 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s; };
      x = step(x), y = step(y);
    }
    expect_close(got, {static_cast<float>(x), 0, 0, 0, static_cast<float>(y), 0}, 1e-5);
  }
}

TEST(NewtonSchulz, MatchesReference) {
  for (auto [r, c] : std::initializer_list<std::array<int64_t, 2>>{
           {1, 1}, {1, 9}, {9, 1}, {5, 7}, {7, 5}, {16, 16}, {33, 70}, {70, 33}, {0, 4}, {64, 48}}) {
    const int64_t rows = r, cols = c;
    expect_same_as_reference(
        [&](Lab& lab) { return orthogonalise(lab, rows, cols, normal(rows * cols, 1), kMuon); }, 2e-4,
        std::to_string(rows) + "x" + std::to_string(cols));
  }
}

TEST(NewtonSchulz, NoStepsNormalise) {
  Lab lab;
  expect_close(orthogonalise(lab, 1, 2, {3, 4}, {}), {0.6f, 0.8f}, 1e-6);
}

TEST(NewtonSchulz, ZeroStaysZero) {
  for (const char* kernels : {"cpu", "reference"}) {
    Lab lab(kernels);
    EXPECT_EQ(orthogonalise(lab, 3, 2, Floats(6, 0), kMuon), Floats(6, 0));
  }
}

TEST(NewtonSchulz, ConvergesToOrthonormalRows) {
  Lab lab;
  const int64_t rows = 12, cols = 40;
  const Floats x = orthogonalise(lab, rows, cols, normal(rows * cols, 2), kPolar);
  Tensor t = lab.tensor({rows, cols}, x), gram = lab.empty({rows, rows});
  ops::gemm(lab.s, gram, t, false, t, true);
  Floats identity(rows * rows, 0);
  for (size_t i = 0; i < rows; ++i) identity[i * rows + i] = 1;
  expect_close(lab.floats(gram), identity, 1e-4);
}

TEST(NewtonSchulz, TheTransposedMatrixGivesTheTransposedResult) {
  Lab lab;
  const int64_t rows = 20, cols = 31;
  const Floats wide = normal(rows * cols, 3);
  auto flip = [](const Floats& m, int64_t r, int64_t c) {
    Floats t(m.size());
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) t[static_cast<size_t>(j * r + i)] = m[static_cast<size_t>(i * c + j)];
    return t;
  };
  // Both run the same products; only the order of the sum inside the norm differs.
  expect_close(flip(orthogonalise(lab, cols, rows, flip(wide, rows, cols), kMuon), cols, rows),
               orthogonalise(lab, rows, cols, wide, kMuon), 1e-5);
}

TEST(NewtonSchulz, RejectsAliasesAndTooManySteps) {
  Lab lab;
  Tensor x = lab.random({2, 2}, 1), y = lab.empty({2, 2});
  EXPECT_THROW(ops::newton_schulz(lab.s, x, x, kMuon), InvalidArgument);
  EXPECT_THROW(ops::newton_schulz(lab.s, y, x, std::vector<ops::Coefficients>(17)), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
