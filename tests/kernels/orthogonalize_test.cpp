// Newton-Schulz in both forms against a loop in double, and against the polar factor that it converges to.
#include <map>

#include "matrices.h"

namespace sherd::test {
namespace {

const std::vector<Coefficients> kJordan(5, {3.4445f, -4.7750f, 2.0315f});
/// Steps that differ; the first ones of "Polar Express", divided for a safety of 1.05.
const std::vector<Coefficients> kVaried = {{7.8925829f, -20.382702f, 13.555092f},
                                           {3.9114830f, -2.5464635f, 0.42690012f},
                                           {3.7606580f, -2.5128226f, 0.43236616f}};
/// Converges to the polar factor: 15/8, -10/8, 3/8; 1.875^18 lifts a singular value of 1e-4 to 1.
const std::vector<Coefficients> kPolar(18, {1.875f, -1.25f, 0.375f});

OrthogonalizeOptions form(IterationForm f, std::vector<Coefficients> steps = kJordan,
                          std::vector<int> restarts = {}, DType working = DType::f32) {
  return {.form = f, .steps = std::move(steps), .restarts = std::move(restarts), .working = working};
}

/// Bound of the effect of rounding on a matrix of any rank, relative to the result. Sums of k f32 terms carry
/// about sqrt(k) roundings of 2^-24, and factors and results one each. The remainder in directions that
/// should be empty grows by the factor a per step; in the gram form it is R, where it grows by a^2 (the last
/// step uses R once more).
double tolerance(const OrthogonalizeOptions& o, int64_t longer) {
  double growth = 1;
  for (size_t i = 0; i < o.steps.size(); ++i) {
    const double a = std::max(1.0f, o.steps[i].a);
    if (o.form == IterationForm::standard) growth *= a;
    if (o.form == IterationForm::gram && i + 1 < o.steps.size()) growth *= a * a;
  }
  return 0x1p-24 * (2 + std::sqrt(double(longer))) * growth;
}

struct Size {
  int64_t rows, cols;
};
std::string print(Size s) { return std::to_string(s.rows) + "x" + std::to_string(s.cols); }

TEST(Orthogonalize, ADiagonalFollowsTheScalarPolynomial) {
  double x = 0.6, y = 0.8;  // 3 and 4 over the norm 5
  for (int i = 0; i < 5; ++i) {
    auto step = [](double s) { return 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s; };
    x = step(x), y = step(y);
  }
  for (const char* kernels : {kFast, "reference"})
    for (IterationForm f : {IterationForm::standard, IterationForm::gram}) {
      Lab lab(kernels);
      const auto got = orthogonalized(lab, 2, 3, {3, 0, 0, 0, 4, 0}, form(f));
      EXPECT_EQ(got.status, MatrixStatus::fine);
      expect_close(got.values, {static_cast<float>(x), 0, 0, 0, static_cast<float>(y), 0}, 1e-5);
    }
}

TEST(Orthogonalize, FollowsThePolynomialInDouble) {
  Lab lab;
  const std::vector<OrthogonalizeOptions> all = {form(IterationForm::standard),
                                                 form(IterationForm::standard, kVaried),
                                                 form(IterationForm::gram),
                                                 form(IterationForm::gram, kJordan, {2}),
                                                 form(IterationForm::gram, kVaried),
                                                 form(IterationForm::gram, kVaried, {1, 2}),
                                                 form(IterationForm::standard, {{2, 0, 0}}),
                                                 form(IterationForm::gram, {{1.5f, -0.5f, 0}})};
  for (Size s : {Size{1, 1},
                 {1, 9},
                 {9, 1},
                 {5, 7},
                 {16, 16},
                 {33, 70},
                 {131, 67},
                 {49, 49},
                 {180, 180},
                 {64, 300},
                 {129, 270}}) {
    const int64_t k = std::min(s.rows, s.cols);
    const Doubles spectra[] = {
        widened(s.rows, s.cols, normal(s.rows * s.cols, 1)),
        with_singular_values(s.rows, s.cols, log_uniform(k, 1e-3), 2).matrix,
        with_singular_values(s.rows, s.cols, std::vector<double>(static_cast<size_t>((k + 3) / 4), 1), 4)
            .matrix};
    for (const Doubles& matrix : spectra) {
      const Floats values = narrowed(matrix);
      std::map<float, Doubles> wanted;  // by the first step's a, which distinguishes the step lists above
      for (const OrthogonalizeOptions& o : all) {
        const float key = o.steps[0].a;
        if (!wanted.contains(key)) wanted[key] = iterated(widened(s.rows, s.cols, values), o.steps);
        const auto got = orthogonalized(lab, s.rows, s.cols, values, o);
        EXPECT_EQ(got.status, MatrixStatus::fine);
        EXPECT_LE(relative_error(got.values, wanted[key]), tolerance(o, std::max(s.rows, s.cols)))
            << print(s) << ", spectrum " << &matrix - spectra << ", options " << &o - all.data();
      }
    }
  }
}

// The reference rounds only the result (2^-24 per element) and, through the input of R, nothing else.
TEST(Orthogonalize, TheReferenceIsThatLoop) {
  Lab lab("reference");
  const Floats values = normal(20 * 31, 5);
  for (Size s : {Size{20, 31}, {31, 20}})
    for (const auto& o :
         {form(IterationForm::standard), form(IterationForm::gram), form(IterationForm::gram, kVaried, {2})})
      EXPECT_LE(relative_error(orthogonalized(lab, s.rows, s.cols, values, o).values,
                               iterated(widened(s.rows, s.cols, values), o.steps)),
                0x1p-23);
}

// Full rank: what rounding leaves in a direction stops growing when the direction reaches 1, so the growth is
// at most ||U||_F over the smallest singular value, squared in the gram form.
TEST(Orthogonalize, ConvergesToThePolarFactor) {
  Lab lab;
  for (Size s : {Size{40, 40}, {37, 120}, {90, 33}, {128, 128}}) {
    const int64_t k = std::min(s.rows, s.cols);
    for (double smallest : {0.1, 1e-3}) {
      const Known known = with_singular_values(s.rows, s.cols, log_uniform(k, smallest), 7);
      const Floats values = narrowed(known.matrix);
      const double spread = frobenius(known.matrix) / smallest;
      const auto standard =
          orthogonalized(lab, s.rows, s.cols, values, form(IterationForm::standard, kPolar));
      EXPECT_LE(relative_error(standard.values, known.polar), 0x1p-23 * spread)
          << print(s) << " " << smallest;
      if (smallest < 0.1) continue;
      const auto gram =
          orthogonalized(lab, s.rows, s.cols, values, form(IterationForm::gram, kPolar, {4, 9}));
      EXPECT_LE(relative_error(gram.values, known.polar), 0x1p-23 * spread * spread) << print(s);
    }
  }
}

TEST(Orthogonalize, FormsByShapeAreGramFromALongSideOfThreeTimesTheShortOne) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (Size s : {Size{10, 30}, {30, 10}, {10, 29}, {29, 10}, {20, 20}, {1, 40}}) {
      const Floats values = normal(s.rows * s.cols, 9);
      const bool gram = std::max(s.rows, s.cols) >= 3 * std::min(s.rows, s.cols);
      const auto run = [&](IterationForm f) {
        return bits(orthogonalized(lab, s.rows, s.cols, values, form(f, kJordan, {2})).values);
      };
      EXPECT_EQ(run(IterationForm::by_shape), run(gram ? IterationForm::gram : IterationForm::standard))
          << print(s) << " " << kernels;
    }
  }
}

TEST(Orthogonalize, TheTransposedMatrixGivesTheTransposedResult) {
  Lab lab;
  const Doubles wide = widened(20, 31, normal(20 * 31, 3));
  for (IterationForm f : {IterationForm::standard, IterationForm::gram}) {
    const auto a = orthogonalized(lab, 20, 31, narrowed(wide), form(f));
    const auto b = orthogonalized(lab, 31, 20, narrowed(flipped(wide)), form(f));
    // The same products; only the order of the sum inside the norm differs.
    expect_close(narrowed(flipped(widened(31, 20, b.values))), a.values, 1e-5);
  }
}

// Relative errors on a spectrum from 1e-3 to 1 and on a Gaussian matrix, as published for these forms: .05 to
// .10 in bf16 (8 bits), an eighth of it in f16 (11 bits); gram in f16 with one restart .010 to .035.
TEST(Orthogonalize, SixteenBitTypesStayWithinTheirPublishedErrors) {
  struct Bound {
    OrthogonalizeOptions options;
    double error;
  };
  const Bound cases[] = {{form(IterationForm::standard, kJordan, {}, DType::bf16), 0.10},
                         {form(IterationForm::standard, kJordan, {}, DType::f16), 0.10 / 8},
                         {form(IterationForm::gram, kJordan, {2}, DType::f16), 0.035}};
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (Size s : {Size{64, 64}, {70, 130}, {200, 50}, {50, 61}}) {
      const int64_t k = std::min(s.rows, s.cols);
      for (const Doubles& matrix : {widened(s.rows, s.cols, normal(s.rows * s.cols, 1)),
                                    with_singular_values(s.rows, s.cols, log_uniform(k, 1e-3), 2).matrix}) {
        const Floats values = narrowed(matrix);
        const Doubles want = iterated(widened(s.rows, s.cols, values), kJordan);
        for (const Bound& c : cases) {
          const auto got = orthogonalized(lab, s.rows, s.cols, values, c.options);
          const double error = relative_error(got.values, want);
          EXPECT_LE(error, c.error) << kernels << " " << print(s) << " " << &c - cases;
          EXPECT_GE(error, 1e-4) << "nothing was rounded";
          for (float v : got.values)  // the result is kept in the working type too
            ASSERT_EQ(v, c.options.working == DType::bf16 ? float(bf16(v)) : float(f16(v)));
        }
      }
    }
  }
}

TEST(Orthogonalize, StatusAndZeros) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    OrthogonalizeOptions svd;
    svd.method = Orthogonalizer::svd;
    for (const auto& o : {form(IterationForm::standard), form(IterationForm::gram), svd}) {
      const Floats zeros(6, 0);
      auto got = orthogonalized(lab, 3, 2, zeros, o);
      EXPECT_EQ(got.status, MatrixStatus::zero);
      EXPECT_EQ(got.values, zeros);
      for (float bad : {NAN, INFINITY, -INFINITY}) {
        got = orthogonalized(lab, 3, 2, {1, 2, 3, 4, bad, 6}, o);
        EXPECT_EQ(got.status, MatrixStatus::not_finite);
        EXPECT_EQ(got.values, zeros);
      }
      for (Size s : {Size{0, 4}, {4, 0}}) {
        got = orthogonalized(lab, s.rows, s.cols, {}, o);
        EXPECT_EQ(got.status, MatrixStatus::zero);
      }
    }
  }
}

TEST(Orthogonalize, AnIterationThatOverflowsGivesZerosAndIsReported) {
  const std::vector<Coefficients> explosive = {{1e30f, 0, 0}, {1e30f, 0, 0}};
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (IterationForm f : {IterationForm::standard, IterationForm::gram}) {
      const auto got = orthogonalized(lab, 5, 3, normal(15, 1), form(f, explosive));
      EXPECT_EQ(got.status, MatrixStatus::not_finite);
      EXPECT_EQ(got.values, Floats(15, 0));
    }
    // Its neighbours in a batch are none the worse: eps keeps the second one's norm at 1e-23.
    const Tensor in = lab.tensor({3, 1, 2}, {1, 0, 1e-30f, 0, 0, 1}), out = lab.full({3, 1, 2}, NAN);
    const Tensor status = lab.ints({3}, {-1, -1, -1});
    ops::orthogonalize(lab.s, out, in, status, form(IterationForm::standard, explosive));
    std::vector<int32_t> codes(3);
    ops::copy_to_host(lab.s, codes.data(), status);
    EXPECT_EQ(codes, (std::vector<int32_t>{2, 0, 2}));
    const Floats values = lab.floats(out);
    EXPECT_NEAR(values[2] / 1e37f, 1, 1e-5);
    for (size_t i : {0, 1, 3, 4, 5}) EXPECT_EQ(values[i], 0);
  }
}

TEST(Orthogonalize, HugeAndTinyMatrices) {
  const Floats values = normal(6 * 9, 6);
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (IterationForm f : {IterationForm::standard, IterationForm::gram}) {
      const Doubles plain = iterated(widened(6, 9, values), kJordan);
      for (float scale : {1e30f, 1e37f, 1e-30f}) {
        Floats scaled = values;
        for (float& v : scaled) v *= scale;
        const auto got = orthogonalized(lab, 6, 9, scaled, form(f));
        EXPECT_EQ(got.status, MatrixStatus::fine);
        // A tiny matrix is divided by eps, not by its norm: X0 is small and stays so.
        const Doubles want = scale > 1 ? plain : iterated(widened(6, 9, scaled), kJordan);
        EXPECT_LE(relative_error(got.values, want), tolerance(form(f), 9)) << scale;
      }
      OrthogonalizeOptions bare = form(f);
      bare.eps = 0;
      Floats tiny = values;
      for (float& v : tiny) v *= 1e-30f;
      EXPECT_LE(relative_error(orthogonalized(lab, 6, 9, tiny, bare).values, plain), tolerance(bare, 9));
    }
  }
}

}  // namespace
}  // namespace sherd::test
