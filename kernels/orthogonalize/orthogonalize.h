// Orthogonal factors of matrices. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>

namespace sherd {

/// Each of `batch` row-major [rows, cols] f32 matrices by itself; status (MatrixStatus) i32 [batch]. out does
/// not alias in. Norms are taken in double; see OrthogonalizeOptions for the iteration. `svd` drops the
/// directions whose singular value is below max(rows, cols) * 2^-23 * the largest. The result for a matrix
/// depends, in bits, on neither the batch it comes in nor the number of threads.
struct OrthogonalizeArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  const float* in = nullptr;
  float* out = nullptr;
  int32_t* status = nullptr;
  OrthogonalizeOptions options;  // its form is standard or gram
};

/// gram [batch, n, n] = x^T x (contract_rows, n = cols) or x x^T (n = rows), whole and exactly symmetric,
/// half the work. Squares of elements beyond 1e19 or below 1e-19 leave f32's range: such a matrix ends as not
/// finite or zero.
struct GramProductArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  bool contract_rows = false;
  const float* x = nullptr;
  float* gram = nullptr;
};

/// q [batch, n, n] = the product of steps [first, last) of the iteration as a polynomial in R = gram, such
/// that X <- Xq (contract_rows) or qX. When first is 0, gram is that of the matrix before normalisation: its
/// trace gives ||U||_F^2, gram is scaled by 1/(||U||_F + eps)^2 and q by 1/(||U||_F + eps), and status (i32
/// [batch]) is written; q of a zero or not finite matrix is zero. Otherwise status is not touched. gram may
/// be overwritten. options.restarts do not matter to the kernel.
struct GramIterateArgs {
  int64_t batch = 1, n = 0;
  float* q = nullptr;
  float* gram = nullptr;
  int32_t* status = nullptr;
  int first = 0, last = 0;
  OrthogonalizeOptions options;
};

/// out [batch, rows, cols] = x q (contract_rows) or q x. A q of zeros gives zeros, whatever x holds.
struct GramApplyArgs {
  int64_t batch = 1, rows = 0, cols = 0;
  bool contract_rows = false;
  const float* x = nullptr;
  const float* q = nullptr;
  float* out = nullptr;
};

struct OrthogonalizeKernels {
  static constexpr const char* kName = "orthogonalize";
  static const OrthogonalizeKernels* reference();
  static const OrthogonalizeKernels* cpu();
  static const OrthogonalizeKernels* cuda();

  void (*orthogonalize)(ExecutionContext&, const OrthogonalizeArgs&);
  void (*gram_product)(ExecutionContext&, const GramProductArgs&);
  void (*gram_iterate)(ExecutionContext&, const GramIterateArgs&);
  void (*gram_apply)(ExecutionContext&, const GramApplyArgs&);
  /// Return the scratch bytes that these request; null: none.
  int64_t (*orthogonalize_scratch)(const OrthogonalizeArgs&) = nullptr;
  int64_t (*gram_product_scratch)(const GramProductArgs&) = nullptr;
  int64_t (*gram_iterate_scratch)(const GramIterateArgs&) = nullptr;
};

/// Returns the FLOPs of the iteration for one matrix with short side s and long side l. A symmetric product counts half,
/// since only one triangle is computed. Each step of the standard form: X X^T (s^2 l), its square (s^3), times X
/// (2 s^2 l).
double standard_flops(double s, double l, int steps);
/// Returns those of the gram form, in restarts + 1 runs. Each run: R = X X^T (s^2 l) and X <- Q X (2 s^2 l). Each step:
/// the products R^2, Q and two that renew R (s^3 each, all symmetric), less Q in a run's first step and R's two in its
/// last. The sum, with runs = restarts + 1: 3 s^2 l runs + s^3 (4 steps - 3 runs).
double gram_flops(double s, double l, int steps, int restarts);

Work work_of(const Device& device, const OrthogonalizeArgs& a);
Work work_of(const Device& device, const GramProductArgs& a);
Work work_of(const Device& device, const GramIterateArgs& a);
Work work_of(const Device& device, const GramApplyArgs& a);

namespace ops {

/// in, out f32 [rows, cols] or [batch, rows, cols], distinct; status i32 [batch].
/// @throws InvalidArgument naming all of: no steps, restarts outside 1..steps-1 or not increasing, the gram
/// form in bf16, values that are not finite.
void orthogonalize(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
                   const OrthogonalizeOptions& options);

/// The parts of the gram form, for matrices whose contracted dimension is spread over ranks; like
/// orthogonalize they take one matrix or a batch. Summed over the ranks' pieces, gram is the Gram matrix of
/// the whole.
void gram_product(Stream& s, const Tensor& gram, const Tensor& x, bool contract_rows);
/// status may be undefined unless first is 0.
/// @throws InvalidArgument when a restart is inside (first, last): that needs the matrix; see gram_apply.
void gram_iterate(Stream& s, const Tensor& q, const Tensor& gram, const Tensor& status, int first, int last,
                  const OrthogonalizeOptions& options);
void gram_apply(Stream& s, const Tensor& out, const Tensor& x, const Tensor& q, bool contract_rows);

}  // namespace ops
}  // namespace sherd
