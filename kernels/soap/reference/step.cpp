#include <sherd/kernels/soap/reference/step.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <sherd/kernels/orthogonalize/orthogonalize_options.h>
#include <sherd/kernels/soap/detail/state_tensors.h>

namespace sherd {
namespace {

/// One factor [n, n] with its basis; null: the identity.
struct SoapSide {
  int64_t n;
  double *factor, *basis, *values;
  explicit operator bool() const { return factor != nullptr; }
};

struct Memory {
  double* next;
  double* take(int64_t count) { return std::exchange(next, next + count); }
};

class Step {
 public:
  Step(int64_t rows, int64_t cols, const SoapStateOf<double>& s, const SoapConstants& c,
       const SoapRoutines& r, double* work)
      : m_(rows), n_(cols), s_(s), c_(c), r_(r), memory_{work}, t_(s.steps[0] + 1) {}

  void run(const double* g, double* out) {
    const SoapSide left{m_, s_.left, s_.left_basis, s_.left_values};
    const SoapSide right{n_, s_.right, s_.right_basis, s_.right_values};
    double *x = memory_.take(m_ * n_), *y = memory_.take(m_ * n_), *spare = memory_.take(m_ * n_);
    const bool first = t_ == 1;
    // Both in the bases before the step, so that the factors do not depend on their order.
    to_right(g, !first && right, x);
    to_left(g, !first && left, y);
    if (left) add_covariance(left, x, right, true);
    if (right) add_covariance(right, y, left, false);
    if (left) renew(left, first, [&](const std::vector<int64_t>& order) { permute_rows(order, spare); });
    if (right) renew(right, first, [&](const std::vector<int64_t>& order) { permute_columns(order, spare); });
    if (first)
      std::fill_n(out, m_ * n_, 0.0);
    else
      adam(g, x, y, out, left, right);
    s_.steps[0] = t_;
  }

 private:
  // x = g B_R^T
  void to_right(const double* g, bool rotates, double* x) {
    if (rotates) return r_.product(false, true, m_, n_, n_, g, s_.right_basis, x);
    std::copy_n(g, m_ * n_, x);
  }
  // y = B_L g
  void to_left(const double* g, bool rotates, double* y) {
    if (rotates) return r_.product(false, false, m_, n_, m_, s_.left_basis, g, y);
    std::copy_n(g, m_ * n_, y);
  }

  // factor = (1 - w) factor + w / other * Z Z^T (by_rows) or Z^T Z, Z = z with lam^-1/2 along the other side.
  void add_covariance(const SoapSide& side, double* z, const SoapSide& other, bool by_rows) {
    Memory memory = memory_;
    if (t_ > 1 && other) {
      double* const scales = memory.take(other.n);
      std::transform(other.values, other.values + other.n, scales,
                     [&](double value) { return 1 / std::sqrt(std::max(value, c_.eps)); });
      for (int64_t i = 0; i < m_; ++i)
        for (int64_t j = 0; j < n_; ++j) z[i * n_ + j] *= scales[by_rows ? j : i];
    }
    const int64_t k = side.n;
    double* sum = memory.next;
    r_.product(!by_rows, by_rows, k, k, other.n, z, z, sum);
    const double w = (1 - c_.shampoo_beta) / (1 - std::pow(c_.shampoo_beta, t_));
    for (int64_t i = 0; i < k * k; ++i)
      side.factor[i] = (1 - w) * side.factor[i] + w / static_cast<double>(other.n) * sum[i];
  }

  // Basis and eigenvalues of the new factor, by descending eigenvalue. `permute` has the second moment follow.
  template <class Permute>
  void renew(const SoapSide& side, bool first, Permute permute) {
    const int64_t k = side.n;
    Memory memory = memory_;
    double *next = memory.take(k * k), *values = memory.take(k), *product = memory.take(k * k);
    if (first) {
      std::copy_n(side.factor, k * k, next);
      r_.eigenvectors(k, next, values, memory.next);
    } else {
      // (factor B^T)^T = B factor: the factor is symmetric.
      r_.product(false, false, k, k, k, side.basis, side.factor, next);
      r_.orthonormal_rows(k, next, memory.next);
      r_.product(false, false, k, k, k, next, side.factor, product);
      for (int64_t i = 0; i < k; ++i)
        values[i] = std::inner_product(next + i * k, next + (i + 1) * k, product + i * k, 0.0);
    }
    std::vector<int64_t> order(static_cast<size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    for (int64_t i = 0; i < k; ++i) {
      const int64_t from = order[static_cast<size_t>(i)];
      side.values[i] = values[from];
      std::copy_n(next + from * k, k, side.basis + i * k);
    }
    permute(order);
  }

  void permute_rows(const std::vector<int64_t>& order, double* spare) {
    std::copy_n(s_.exp_avg_sq, m_ * n_, spare);
    for (int64_t i = 0; i < m_; ++i)
      std::copy_n(spare + order[static_cast<size_t>(i)] * n_, n_, s_.exp_avg_sq + i * n_);
  }
  void permute_columns(const std::vector<int64_t>& order, double* spare) {
    std::copy_n(s_.exp_avg_sq, m_ * n_, spare);
    for (int64_t i = 0; i < m_; ++i)
      for (int64_t j = 0; j < n_; ++j)
        s_.exp_avg_sq[i * n_ + j] = spare[i * n_ + order[static_cast<size_t>(j)]];
  }

  void adam(const double* g, double* x, double* y, double* out, const SoapSide& left, const SoapSide& right) {
    const int64_t size = m_ * n_;
    for (int64_t i = 0; i < size; ++i) s_.exp_avg[i] = c_.beta1 * s_.exp_avg[i] + (1 - c_.beta1) * g[i];
    to_right(g, bool(right), x);
    to_left(x, bool(left), y);
    for (int64_t i = 0; i < size; ++i)
      s_.exp_avg_sq[i] = c_.beta2 * s_.exp_avg_sq[i] + (1 - c_.beta2) * y[i] * y[i];
    to_right(s_.exp_avg, bool(right), x);
    to_left(x, bool(left), y);
    const double correction1 = 1 - std::pow(c_.beta1, t_ - 1), correction2 = 1 - std::pow(c_.beta2, t_ - 1);
    for (int64_t i = 0; i < size; ++i)
      y[i] = y[i] / correction1 / (std::sqrt(s_.exp_avg_sq[i] / correction2) + c_.eps);
    const double* back = y;
    if (left) {
      r_.product(true, false, m_, n_, m_, left.basis, y, x);
      back = x;
    }
    if (right) return r_.product(false, false, m_, n_, n_, back, right.basis, out);
    std::copy_n(back, size, out);
  }

  int64_t m_, n_;
  const SoapStateOf<double>& s_;
  const SoapConstants& c_;
  const SoapRoutines& r_;
  Memory memory_;
  double t_;
};

}  // namespace

int64_t soap_routine_doubles(int64_t n) {
  // dsyevd: 1 + 6n + 2n^2 doubles, and 3 + 5n integers; orthonormal_rows() of the CPU kernels: n^2 + 97n.
  return std::max<int64_t>(1 + 6 * n + 2 * n * n + (3 + 5 * n), n * n + 97 * n);
}

int64_t soap_work_doubles(int64_t rows, int64_t cols) {
  const int64_t k = std::max(rows, cols);
  return 3 * rows * cols + 2 * k * k + k + soap_routine_doubles(k);
}

void soap_matrix(int64_t rows, int64_t cols, const double* g, double* out, const SoapStateOf<double>& state,
                 const SoapConstants& constants, const SoapRoutines& routines, double* work) {
  Step(rows, cols, state, constants, routines, work).run(g, out);
}

int64_t soap_scratch_bytes(const SoapArgs& a) {
  bool left = false, right = false;
  for (const SoapMatrix& m : a.matrices) {
    left = left || m.state.left;
    right = right || m.state.right;
  }
  const int64_t size = a.rows * a.cols;
  const int64_t work = soap_work_doubles(left ? a.rows : 1, right ? a.cols : 1) + 3 * size;
  return 8 * (soap_state_elements(a.rows, a.cols, left, right) + 2 * size + work);
}

void soap_batch(const SoapArgs& a, const SoapRoutines& routines, void* scratch) {
  const int64_t size = a.rows * a.cols;
  for (size_t i = 0; i < a.matrices.size(); ++i) {
    const SoapMatrix& matrix = a.matrices[i];
    const float* in = a.in + static_cast<int64_t>(i) * size;
    float* out = a.out + static_cast<int64_t>(i) * size;
    std::fill_n(out, size, 0.0f);
    const bool finite = std::all_of(in, in + size, [](float v) { return std::isfinite(v); });
    a.status[i] = static_cast<int32_t>(finite ? MatrixStatus::fine : MatrixStatus::not_finite);
    if (size == 0 || !finite || (matrix.skip && *matrix.skip != 0)) continue;

    Memory memory{static_cast<double*>(scratch)};
    double *g = memory.take(size), *update = memory.take(size);
    std::copy_n(in, size, g);
    const bool left = matrix.state.left, right = matrix.state.right;
    double* const wide = memory.take(soap_state_elements(a.rows, a.cols, left, right));
    const SoapStateOf<double> state = soap_layout(wide, a.rows, a.cols, left, right);
    for_soap_tensors(matrix.state, state, a.rows, a.cols,
                     [](const float* from, double* to, int64_t count) { std::copy_n(from, count, to); });
    for_soap_moments(matrix, state, [&](const bf16* from, double* to, NoiseUse) {
      std::transform(from, from + size, to, [](bf16 v) { return double{static_cast<float>(v)}; });
    });
    *state.steps = *matrix.state.steps;
    soap_matrix(a.rows, a.cols, g, update, state, a.constants, routines, memory.next);
    const auto rounded = [](const double* from, int64_t count, float* to) {
      std::transform(from, from + count, to, [](double v) { return static_cast<float>(v); });
    };
    for_soap_tensors(matrix.state, state, a.rows, a.cols,
                     [&](float* to, const double* from, int64_t count) { rounded(from, count, to); });
    rounded(state.steps, 1, matrix.state.steps);
    for_soap_moments(matrix, state, [&](bf16* to, const double* from, NoiseUse use) {
      for (int64_t k = 0; k < size; ++k)
        to[k] = sherd::rounded(static_cast<float>(from[k]), noise_at(matrix.noise(), k, use));
    });
    rounded(update, size, out);
  }
}

}  // namespace sherd
