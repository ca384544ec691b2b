// Products of matrices. ops.h says what holds for all operations.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/columns.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// C[m,n] = alpha * op(A) op(B) + beta * C, row-major with leading dimensions.
/// A and B have one dtype (f32 or bf16); C is f32 or that dtype; the sum over k is fp32.
/// beta = 0 never reads C. m, n or k may be 0.
/// Epilogue, only with alpha = 1 and beta = 0, C of A's dtype and ldc = n: bias [n] of that dtype is added to
/// every row, and with `gelu` C = gelu(product + bias) while pre [m, n] of that dtype receives product +
/// bias. Each of bias and pre may be null; pre may not be C. Or, without gelu: C = residual + (product + bias).
/// Or, with `gelu_backward` alone, C = product * gelu'(pre), where pre is read. Residual and pre have C's
/// dtype and shape, rows of n elements, and are not C. On the CPU the bits are those of gemm, add_bias,
/// gelu_forward, add and gelu_backward one after another; elsewhere they agree to the roundings between
/// those.
struct GemmArgs {
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  Ref a{}, b{}, c{};
  int64_t lda = 0, ldb = 0, ldc = 0;
  Ref bias{}, pre{};
  bool gelu = false;
  Ref residual{};
  bool gelu_backward = false;
};

struct GemmKernels {
  static constexpr const char* kName = "gemm";
  static const GemmKernels* reference();
  static const GemmKernels* cpu();
  static const GemmKernels* cuda();

  void (*gemm)(ExecutionContext&, const GemmArgs&);
  /// Returns the scratch bytes that gemm requests with so many threads; null: none.
  int64_t (*scratch)(const GemmArgs&, int threads) = nullptr;
};
Work work_of(const Device& device, const GemmArgs& g);

namespace ops {

/// Computes GemmArgs' formula for 2-D tensors; op(A) is A or, with trans_a, its transpose, and B likewise.
void gemm(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
          float alpha = 1, float beta = 0);
/// gemm() of columns of larger matrices; columns beside C's are not changed. @throws InvalidArgument for
/// columns outside of the matrix.
void gemm_columns(Stream& s, const Columns& c, const Columns& a, bool trans_a, const Columns& b, bool trans_b,
                  float beta = 0);
/// Computes gemm and add_bias, in one kernel where the device has one. This holds for all functions below.
/// bias [n]; all tensors of one dtype.
void gemm_bias(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
               const Tensor& bias);
/// bias [n] may be undefined (none); pre may be undefined when no backward follows.
void gemm_gelu(Stream& s, const Tensor& c, const Tensor& pre, const Tensor& a, bool trans_a, const Tensor& b,
               bool trans_b, const Tensor& bias = {});
/// C = residual + (product + bias); one kernel rounds once, gemm, add_bias and add each time. bias [n] may be
/// undefined.
void gemm_add(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b,
              const Tensor& residual, const Tensor& bias = {});
/// pre is what gemm_gelu wrote.
void gemm_gelu_backward(Stream& s, const Tensor& c, const Tensor& a, bool trans_a, const Tensor& b,
                        bool trans_b, const Tensor& pre);

}  // namespace ops
}  // namespace sherd
