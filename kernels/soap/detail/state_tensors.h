// The tensors of a SOAP state: their places in one piece of memory, and one by one. Private to SOAP's kernels, their tests and
// benchmarks.
#pragma once

#include <cstdint>
#include <utility>

#include <sherd/kernels/soap/soap.h>

namespace sherd {

/// Returns the elements of a state of a matrix [m, n] with the factors of these sides.
inline int64_t soap_state_elements(int64_t m, int64_t n, bool left, bool right) {
  return (left ? 2 * m * m + m : 0) + (right ? 2 * n * n + n : 0) + 2 * m * n + 1;
}

/// Returns pointers into `memory` of soap_state_elements(), one tensor behind the other; those of a side without a factor are null.
template <class T>
SoapStateOf<T> soap_layout(T* memory, int64_t m, int64_t n, bool left, bool right) {
  const auto take = [&](bool present, int64_t count) {
    return present ? std::exchange(memory, memory + count) : nullptr;
  };
  return {.left = take(left, m * m),
          .left_basis = take(left, m * m),
          .left_values = take(left, m),
          .right = take(right, n * n),
          .right_basis = take(right, n * n),
          .right_values = take(right, n),
          .exp_avg = take(true, m * n),
          .exp_avg_sq = take(true, m * n),
          .steps = take(true, 1)};
}

/// Calls f(f32 tensor, f64 copy, elements) for each tensor of a state but the steps and moments in bf16.
template <class F>
void for_soap_tensors(const SoapState& s, const SoapStateOf<double>& d, int64_t m, int64_t n, F f) {
  const auto side = [&](float* factor, double* wide, float* basis, double* wide_basis, float* values,
                        double* wide_values, int64_t k) {
    if (factor == nullptr) return;
    f(factor, wide, k * k);
    f(basis, wide_basis, k * k);
    f(values, wide_values, k);
  };
  side(s.left, d.left, s.left_basis, d.left_basis, s.left_values, d.left_values, m);
  side(s.right, d.right, s.right_basis, d.right_basis, s.right_values, d.right_values, n);
  if (s.exp_avg == nullptr) return;
  f(s.exp_avg, d.exp_avg, m * n);
  f(s.exp_avg_sq, d.exp_avg_sq, m * n);
}

/// Calls f(bf16 moment, f64 copy, use of noise) for the moments in bf16.
template <class F>
void for_soap_moments(const SoapMatrix& m, const SoapStateOf<double>& d, F f) {
  if (m.exp_avg == nullptr) return;
  f(m.exp_avg, d.exp_avg, NoiseUse::first_state);
  f(m.exp_avg_sq, d.exp_avg_sq, NoiseUse::second_state);
}

}  // namespace sherd
