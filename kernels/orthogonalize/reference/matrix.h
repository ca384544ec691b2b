// Matrices of doubles for the orthogonalizers. Private to reference kernels.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/dtype.h>

namespace sherd::reference {

/// Row-major.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data = std::vector<double>(static_cast<size_t>(rows * cols));

  static Matrix of(const float* values, int64_t rows, int64_t cols) {
    Matrix m{rows, cols};
    m.data.assign(values, values + rows * cols);
    return m;
  }
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * cols + j)]; }
  double at(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * cols + j)]; }
  void store(float* to) const {
    for (double v : data) *to++ = static_cast<float>(v);
  }
};

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.cols};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t p = 0; p < a.cols; ++p)
      for (int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, p) * b.at(p, j);
  return c;
}

inline Matrix transposed(const Matrix& a) {
  Matrix t{a.cols, a.rows};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

/// alpha a + beta b
inline Matrix sum(double alpha, const Matrix& a, double beta, const Matrix& b) {
  Matrix c{a.rows, a.cols};
  for (size_t i = 0; i < c.data.size(); ++i) c.data[i] = alpha * a.data[i] + beta * b.data[i];
  return c;
}

inline Matrix identity(int64_t n) {
  Matrix m{n, n};
  for (int64_t i = 0; i < n; ++i) m.at(i, i) = 1;
  return m;
}

/// Rounds a matrix as it is stored between products: 16-bit types round every element, f32 leaves the doubles
/// unchanged.
inline Matrix kept(Matrix m, DType working) {
  for (double& v : m.data) {
    if (working == DType::bf16) v = float(bf16(static_cast<float>(v)));
    if (working == DType::f16) v = float(f16(static_cast<float>(v)));
  }
  return m;
}

/// The polar factor UV^T of a = U S V^T by one-sided Jacobi rotations, without the directions whose singular
/// value is below `cut` times the largest.
Matrix jacobi_polar(const Matrix& a, double cut);

}  // namespace sherd::reference
