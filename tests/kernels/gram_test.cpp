// The parts of the gram form, on a matrix in pieces.
#include <random>

#include "matrices.h"

namespace sherd::test {
namespace {

/// Rows (contract_rows) or columns of a matrix, cut at `cuts`.
std::vector<Doubles> pieces(const Doubles& m, bool rows, const std::vector<int64_t>& cuts) {
  std::vector<Doubles> parts;
  for (size_t p = 0; p + 1 < cuts.size(); ++p) {
    const int64_t begin = cuts[p], count = cuts[p + 1] - cuts[p];
    Doubles part{rows ? count : m.rows, rows ? m.cols : count};
    for (int64_t i = 0; i < part.rows; ++i)
      for (int64_t j = 0; j < part.cols; ++j) part.at(i, j) = rows ? m.at(begin + i, j) : m.at(i, begin + j);
    parts.push_back(std::move(part));
  }
  return parts;
}

Tensor upload(Lab& lab, const Doubles& m) { return lab.tensor({m.rows, m.cols}, narrowed(m)); }

Floats gram_of(Lab& lab, const Doubles& m, bool contract_rows) {
  const int64_t n = contract_rows ? m.cols : m.rows;
  const Tensor gram = lab.full({n, n}, NAN);
  ops::gram_product(lab.s, gram, upload(lab, m), contract_rows);
  return lab.floats(gram);
}

// Integers below 8 and fewer than 2^16 products: every partial sum is exact in f32, in any order.
TEST(Gram, ProductsOfIntegersAreExactAndAddUpOverPieces) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (bool contract_rows : {false, true})
      for (int64_t n : {1, 31, 97, 260})
        for (int64_t k : {0, 1, 50, 301}) {
          Doubles x{contract_rows ? k : n, contract_rows ? n : k};
          std::mt19937 engine(static_cast<unsigned>(n * 1000 + k));
          for (double& v : x.data) v = static_cast<double>(engine() % 15) - 7;
          const Doubles want = contract_rows ? times(flipped(x), x) : times(x, flipped(x));
          EXPECT_EQ(gram_of(lab, x, contract_rows), narrowed(want)) << kernels << " " << n << " " << k;
          Floats sum(static_cast<size_t>(n * n), 0);
          for (const Doubles& part : pieces(x, contract_rows, {0, k / 3, k / 3, k / 2, k})) {
            const Floats g = gram_of(lab, part, contract_rows);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += g[i];
          }
          EXPECT_EQ(sum, narrowed(want)) << kernels << " " << n << " " << k;
        }
  }
}

/// The distributed scheme: Gram matrices of pieces, summed; iterate; apply to each piece; again at restarts.
Floats by_pieces(Lab& lab, const Doubles& x, bool contract_rows, const OrthogonalizeOptions& o,
                 MatrixStatus& status) {
  const int64_t n = contract_rows ? x.cols : x.rows, k = contract_rows ? x.rows : x.cols;
  std::vector<Tensor> parts;
  for (const Doubles& p : pieces(x, contract_rows, {0, k / 4, k / 4, k / 2 + 1, k}))
    parts.push_back(upload(lab, p));
  const Tensor code = lab.ints({1}, {-1});
  std::vector<int> ends = o.restarts;
  ends.push_back(static_cast<int>(o.steps.size()));
  int first = 0;
  for (int last : ends) {
    const Tensor gram = lab.full({n, n}, 0), q = lab.full({n, n}, NAN);
    for (const Tensor& p : parts) {
      const Tensor part = lab.empty({n, n});
      ops::gram_product(lab.s, part, p, contract_rows);
      ops::scaled_add(lab.s, gram, 1, part);
    }
    ops::gram_iterate(lab.s, q, gram, first == 0 ? code : Tensor(), first, last, o);
    for (Tensor& p : parts) {
      const Tensor next = lab.full(p.shape(), NAN);
      ops::gram_apply(lab.s, next, p, q, contract_rows);
      p = next;
    }
    first = last;
  }
  lab.s.synchronize();
  Doubles whole{x.rows, x.cols};
  int64_t at = 0;
  for (const Tensor& p : parts) {
    const Doubles part = widened(p.size(0), p.size(1), lab.floats(p));
    for (int64_t i = 0; i < part.rows; ++i)
      for (int64_t j = 0; j < part.cols; ++j)
        (contract_rows ? whole.at(at + i, j) : whole.at(i, at + j)) = part.at(i, j);
    at += contract_rows ? part.rows : part.cols;
  }
  int32_t raw = -1;
  ops::copy_to_host(lab.s, &raw, code);
  status = static_cast<MatrixStatus>(raw);
  return narrowed(whole);
}

// Both round R at 2^-23, and directions that R should not have grow by a^2 per step: 3.4445^8 * 2^-23 for
// five steps (see orthogonalize_test.cpp).
TEST(Gram, PiecesTogetherAreOrthogonalize) {
  const double tolerance = 0x1p-23 * std::pow(3.4445, 8);
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (auto [rows, cols] : std::initializer_list<std::array<int64_t, 2>>{{90, 40}, {40, 90}, {33, 33}}) {
      for (std::vector<int> restarts : {std::vector<int>{}, {2}, {1, 3}}) {
        OrthogonalizeOptions o;
        o.form = IterationForm::gram;
        o.restarts = restarts;
        const Doubles x = widened(rows, cols, normal(rows * cols, 21, 5));
        const auto whole = orthogonalized(lab, rows, cols, narrowed(x), o);
        MatrixStatus status{};
        const Floats got = by_pieces(lab, x, rows >= cols, o, status);
        EXPECT_EQ(status, MatrixStatus::fine);
        EXPECT_LE(relative_error(got, widened(rows, cols, whole.values)), tolerance);
        EXPECT_LE(relative_error(got, iterated(x, o.steps)), tolerance);
      }
    }
  }
}

TEST(Gram, HalfPrecisionStaysWithinItsPublishedError) {
  OrthogonalizeOptions o;
  o.form = IterationForm::gram;
  o.restarts = {2};
  o.working = DType::f16;
  Lab lab;
  const Doubles x = with_singular_values(130, 60, log_uniform(60, 1e-3), 2).matrix;
  MatrixStatus status{};
  EXPECT_LE(relative_error(by_pieces(lab, x, true, o, status), iterated(x, o.steps)), 0.035);
}

TEST(Gram, ZeroAndNotFiniteGiveZeros) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    OrthogonalizeOptions o;
    o.restarts = {2};
    for (double bad : {0.0, double(NAN), double(INFINITY)}) {
      Doubles x{8, 3};
      if (bad != 0) x.data = Doubles{8, 3, std::vector<double>(24, 1)}.data;
      x.at(5, 1) = bad;
      MatrixStatus status{};
      EXPECT_EQ(by_pieces(lab, x, true, o, status), Floats(24, 0)) << kernels << " " << bad;
      EXPECT_EQ(status, bad == 0 ? MatrixStatus::zero : MatrixStatus::not_finite);
    }
  }
}

TEST(Gram, BatchesAndThreadsDoNotMatter) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the OpenMP runtime is not instrumented, so its barriers look like races";
#endif
  const int64_t batch = 3, rows = 300, cols = 140;
  auto run = [&](int threads, bool together) {
    Lab lab(kFast, threads);
    const Tensor x = lab.random({batch, rows, cols}, 5), out = lab.empty({batch, rows, cols});
    const Tensor gram = lab.empty({batch, cols, cols}), q = lab.empty({batch, cols, cols});
    const Tensor status = lab.empty({batch}, DType::i32);
    for (int64_t i = 0; i < (together ? 1 : batch); ++i) {
      auto part = [&](const Tensor& t) { return together ? t : t.rows(i, i + 1); };
      ops::gram_product(lab.s, part(gram), part(x), true);
      ops::gram_iterate(lab.s, part(q), part(gram), part(status), 0, 5, {});
      ops::gram_apply(lab.s, part(out), part(x), part(q), true);
    }
    return bits(lab.floats(out));
  };
  const auto want = run(1, true);
  EXPECT_EQ(run(1, false), want);
  EXPECT_EQ(run(2, true), want);
  EXPECT_EQ(run(2, false), want);
}

TEST(Gram, Rejects) {
  Lab lab;
  const Tensor x = lab.random({5, 3}, 1), g3 = lab.empty({3, 3}), g5 = lab.empty({5, 5}),
               q = lab.empty({3, 3});
  const Tensor status = lab.empty({1}, DType::i32);
  EXPECT_THROW(ops::gram_product(lab.s, g5, x, true), ShapeMismatch);
  EXPECT_THROW(ops::gram_product(lab.s, g3, x, false), ShapeMismatch);
  EXPECT_THROW(ops::gram_apply(lab.s, lab.empty({3, 5}), x, g3, true), ShapeMismatch);
  EXPECT_THROW(ops::gram_apply(lab.s, lab.empty({5, 3}), x, g5, true), ShapeMismatch);
  EXPECT_THROW(ops::gram_apply(lab.s, x, x, g3, true), InvalidArgument);
  EXPECT_THROW(ops::gram_iterate(lab.s, g5, g3, status, 0, 5, {}), ShapeMismatch);
  EXPECT_THROW(ops::gram_iterate(lab.s, q, g3, Tensor(), 0, 5, {}), ShapeMismatch);
  EXPECT_THROW(ops::gram_iterate(lab.s, q, x, status, 0, 5, {}), ShapeMismatch);
  for (auto [first, last] : std::initializer_list<std::array<int, 2>>{{-1, 2}, {2, 2}, {3, 2}, {0, 6}})
    EXPECT_THROW(ops::gram_iterate(lab.s, q, g3, status, first, last, {}), InvalidArgument);
  OrthogonalizeOptions o;
  o.working = DType::bf16;
  EXPECT_THROW(ops::gram_iterate(lab.s, q, g3, status, 0, 5, o), InvalidArgument);
  o = {};
  o.restarts = {2};
  EXPECT_THROW(ops::gram_iterate(lab.s, q, g3, status, 0, 5, o), InvalidArgument);  // goes past the restart
  o = {};
  o.method = Orthogonalizer::svd;
  EXPECT_THROW(ops::gram_iterate(lab.s, q, g3, status, 0, 5, o), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
