// The exact polar factor: LAPACK's, and the reference's own one-sided Jacobi.
#include "matrices.h"

namespace sherd::test {
namespace {

const OrthogonalizeOptions kSvd{.method = Orthogonalizer::svd};

// The input is rounded to f32, which moves its polar factor by at most 2^-24 ||U||_F over the smallest
// singular value; the result is rounded once more.
double tolerance(const Doubles& matrix, double smallest) {
  return 0x1p-24 * frobenius(matrix) / smallest + 0x1p-23;
}

TEST(Polar, EverySpectrum) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (auto [rows, cols] : std::initializer_list<std::array<int64_t, 2>>{
             {1, 1}, {1, 7}, {7, 1}, {5, 9}, {30, 30}, {61, 20}, {20, 61}}) {
      for (double smallest : {1.0, 1e-3}) {
        const Known known = with_singular_values(rows, cols, log_uniform(std::min(rows, cols), smallest), 11);
        const auto got = orthogonalized(lab, rows, cols, narrowed(known.matrix), kSvd);
        EXPECT_EQ(got.status, MatrixStatus::fine);
        EXPECT_LE(relative_error(got.values, known.polar), tolerance(known.matrix, smallest))
            << kernels << " " << rows << "x" << cols << " " << smallest;
      }
    }
  }
}

TEST(Polar, LowRankGivesThePartialIsometry) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    for (auto [rows, cols, rank] :
         std::initializer_list<std::array<int64_t, 3>>{{12, 40, 3}, {40, 12, 5}, {24, 24, 1}}) {
      const Known known = with_singular_values(rows, cols, log_uniform(rank, 0.5), 13);
      const auto got = orthogonalized(lab, rows, cols, narrowed(known.matrix), kSvd);
      EXPECT_LE(relative_error(got.values, known.polar), tolerance(known.matrix, 0.5)) << kernels;
    }
  }
}

TEST(Polar, ScaleDoesNotMatter) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Floats values = normal(8 * 5, 3);
    const auto plain = orthogonalized(lab, 8, 5, values, kSvd);
    for (float scale : {0x1p+100f, 0x1p-100f}) {
      Floats scaled = values;
      for (float& v : scaled) v *= scale;
      expect_close(orthogonalized(lab, 8, 5, scaled, kSvd).values, plain.values, 1e-6);
    }
  }
}

TEST(Polar, BothAlgorithmsAgree) {
  for (auto [rows, cols] : std::initializer_list<std::array<int64_t, 2>>{{48, 48}, {33, 70}, {70, 33}})
    expect_same_as_reference(
        [&, r = rows, c = cols](Lab& lab) {
          return orthogonalized(lab, r, c, normal(r * c, 17), kSvd).values;
        },
        0x1p-22);
}

TEST(Polar, RepeatedSingularValues) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Floats identity = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    expect_close(orthogonalized(lab, 3, 3, identity, kSvd).values, identity, 1e-7);
  }
}

}  // namespace
}  // namespace sherd::test
