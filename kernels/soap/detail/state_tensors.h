// The tensors of a SOAP state one by one. Private to the kernels of SOAP.
#pragma once

#include <cstdint>

#include <sherd/kernels/soap/soap.h>

namespace sherd {

/// Calls f(f32 tensor, f64 copy, elements) for each tensor of a state but the steps.
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
  f(s.exp_avg, d.exp_avg, m * n);
  f(s.exp_avg_sq, d.exp_avg_sq, m * n);
}

}  // namespace sherd
