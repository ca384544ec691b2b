#include <algorithm>
#include <cmath>
#include <vector>

#include "reference.h"

namespace sherd::reference {
namespace {

/// Row-major matrix of doubles.
struct Matrix {
  int64_t rows, cols;
  std::vector<double> data = std::vector<double>(static_cast<size_t>(rows * cols));
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * cols + j)]; }
};

Matrix product(Matrix& a, Matrix& b) {
  Matrix c{a.rows, b.cols};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t p = 0; p < a.cols; ++p)
      for (int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, p) * b.at(p, j);
  return c;
}

Matrix transposed(Matrix& a) {
  Matrix t{a.cols, a.rows};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

}  // namespace

void newton_schulz(ExecutionContext&, const NewtonSchulzArgs& args) {
  Matrix x{args.rows, args.cols};
  std::copy_n(args.in, args.rows * args.cols, x.data.begin());
  double squares = 0;
  for (double v : x.data) squares += v * v;
  for (double& v : x.data) v /= std::sqrt(squares) + args.eps;
  const bool tall = args.rows > args.cols;
  if (tall) x = transposed(x);
  for (int step = 0; step < args.steps; ++step) {
    const double a = args.coefficients[step][0], b = args.coefficients[step][1],
                 c = args.coefficients[step][2];
    Matrix xt = transposed(x);
    Matrix gram = product(x, xt);
    Matrix gram_x = product(gram, x);
    Matrix gram_gram_x = product(gram, gram_x);
    for (size_t i = 0; i < x.data.size(); ++i)
      x.data[i] = a * x.data[i] + b * gram_x.data[i] + c * gram_gram_x.data[i];
  }
  if (tall) x = transposed(x);
  std::transform(x.data.begin(), x.data.end(), args.out, [](double v) { return static_cast<float>(v); });
}

}  // namespace sherd::reference
