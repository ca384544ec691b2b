// The step of KL-SOAP for whole matrices: Adam in the eigenbasis of Kronecker factors. ops.h says what holds for all
// operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd {

/// Longest side with a factor: LAPACK counts the elements of its work array by 32-bit integers.
inline constexpr int64_t kLargestSoapSide = 32000;

struct SoapConstants {
  double beta1 = 0.9, beta2 = 0.95;
  double shampoo_beta = 0.95;  // of the factors
  double eps = 1e-7;           // least eigenvalue that divides; added to Adam's denominator
};

/// State of one matrix [m, n], all f32, zero at first. Rows of a basis are the eigenvectors, by descending eigenvalue. A
/// side whose three pointers are null keeps the identity as its basis.
template <class T>
struct SoapStateOf {
  T *left = nullptr, *left_basis = nullptr, *left_values = nullptr;     // L [m, m], [m, m], [m]
  T *right = nullptr, *right_basis = nullptr, *right_values = nullptr;  // R [n, n], [n, n], [n]
  /// Adam's moments [m, n]: the first of the gradient as it is, the second of its elements in the basis.
  T *exp_avg = nullptr, *exp_avg_sq = nullptr;
  T* steps = nullptr;  // [1], the updates so far
};
using SoapState = SoapStateOf<float>;

/// One matrix of a call.
struct SoapMatrix {
  SoapState state;
  const int64_t* skip = nullptr;  // null, or other than 0: out is zero and the state stays, in bits
  /// The moments where they rest in bf16; those of `state` are null then. They are rounded as they are stored (rest.h), with the
  /// noise of `key`, the steps and the element's index.
  bf16 *exp_avg = nullptr, *exp_avg_sq = nullptr;
  uint64_t key = 0;

  Noise noise() const { return {.key = key, .count = state.steps}; }
};

/// KL-SOAP (Vyas et al. 2024, arXiv 2409.11321, with the Kullback-Leibler correction of Lin et al. 2025, arXiv 2509.03378),
/// in the form of Emerging-Optimizers' SOAP v3. G is the input [m, n], t the step from 1, B the bases with a row for each
/// eigenvector, w = (1 - shampoo_beta) / (1 - shampoo_beta^t):
///   X = G B_R^T, Y = B_L G                                    (in the bases before the step; identities at t = 1)
///   L = (1 - w) L + w/n X diag(1 / max(lam_R, eps)) X^T       (lam = 1 where the basis is an identity)
///   R = (1 - w) R + w/m Y^T diag(1 / max(lam_L, eps)) Y
///   t = 1: B, lam = eigenvectors and eigenvalues of the factor
///   else:  B = Q^T of the QR factorization of (factor B^T), lam = diag(B factor B^T)
///   rows of B, lam, and rows (L) or columns (R) of v sorted by descending lam
///   t = 1: out = 0, and the moments stay zero
///   else:  m = beta1 m + (1 - beta1) G;  v = beta2 v + (1 - beta2) (B_L G B_R^T)^2
///          out = B_L^T [ m' / (1 - beta1^s) / (sqrt(v / (1 - beta2^s)) + eps) ] B_R,  m' = B_L m B_R^T, s = t - 1
/// The first step makes the bases alone, as the original SOAP's. They turn far in the second step, while the factors have
/// a low rank: a second moment from the first step would be one of other directions, and the update some 1000 times
/// too large. The published form rotates m from the old basis to the new one. That is linear, so m without rotation is the same.
/// The diagonal of QR's triangle is positive or zero.
///
/// eps bounds how much a direction counts that the first gradients left empty (lam about 0) and later ones fill.
///
/// All is computed in double and rounded to f32 in state and out. A matrix's bits depend on neither its batch nor the number
/// of threads. A matrix with a non-finite element has out 0, an unchanged state and the status not_finite.
/// @throws Error on the stream when LAPACK or cuSOLVER finds no eigenvectors.
struct SoapArgs {
  int64_t rows = 0, cols = 0;
  const float* in = nullptr;
  float* out = nullptr;
  int32_t* status = nullptr;
  std::vector<SoapMatrix> matrices;
  SoapConstants constants;
};

struct SoapKernels {
  static constexpr const char* kName = "soap";
  static const SoapKernels* reference();
  static const SoapKernels* cpu();
  /// Waits for its stream once for each batch, to read the steps; not for CUDA graphs.
  static const SoapKernels* cuda();

  void (*soap_step)(ExecutionContext&, const SoapArgs&);
  /// Returns the scratch bytes that it requests; null: none.
  int64_t (*soap_scratch)(const SoapArgs&) = nullptr;
};

/// Returns the FLOPs of a step for one matrix: products 12 m n (m + n), and 26/3 k^3 for the QR and the products of each
/// factor of side k. A side with an identity takes no part.
double soap_flops(double rows, double cols, bool left, bool right);

Work work_of(const Device& device, const SoapArgs& a);

namespace ops {

/// in, out f32 [batch, rows, cols], distinct; status i32 [batch]; one entry of `matrices` for each.
/// @throws ShapeMismatch naming every matrix without a state; InvalidArgument for constants outside their ranges.
void soap_step(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
               std::span<const SoapMatrix> matrices, const SoapConstants& constants);

}  // namespace ops
}  // namespace sherd
