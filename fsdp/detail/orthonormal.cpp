#include <sherd/fsdp/detail/orthonormal.h>

#include <algorithm>
#include <cmath>

namespace sherd {
namespace {

constexpr int64_t kLanes = 8;   // partial sums that one vector instruction can hold
constexpr int64_t kPanel = 16;  // rows that stay in the cache while those before them pass by

// Returns the dot product in eight interleaved sums. The order is fixed: vectorization changes no bits.
double dot(const double* a, const double* b, int64_t n) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += a[i + k] * b[i + k];
  for (int64_t k = 0; i < n; ++i, ++k) sums[k] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Takes from `v` its part along the unit vector `u`.
void project_out(double* v, const double* u, int64_t n) {
  const double along = dot(v, u, n);
  for (int64_t i = 0; i < n; ++i) v[i] -= along * u[i];
}

}  // namespace

void make_orthonormal(std::vector<double>& a, int64_t vectors, int64_t length) {
  const auto row = [&](int64_t i) { return a.data() + i * length; };
  for (int64_t begin = 0; begin < vectors; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, vectors);
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < begin; ++j)
        for (int64_t i = begin; i < end; ++i) project_out(row(i), row(j), length);
    for (int64_t i = begin; i < end; ++i) {
      for (int pass = 0; pass < 2; ++pass)
        for (int64_t j = begin; j < i; ++j) project_out(row(i), row(j), length);
      const double norm = std::sqrt(dot(row(i), row(i), length));
      for (int64_t k = 0; k < length; ++k) row(i)[k] /= norm;
    }
  }
}

}  // namespace sherd
