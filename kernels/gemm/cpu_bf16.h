// Products of bf16 matrices by oneDNN's kernels for them. Private to CPU kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <sherd/kernels/gemm/gemm.h>

namespace sherd::cpu {

/// C = op(A) op(B) + beta * C without the epilogue: sums in f32, C rounded once. False, with nothing done, for other
/// products and where oneDNN has no fast kernel; A and B are then widened.
bool multiply_bf16(ExecutionContext& context, const GemmArgs& g);
/// Returns the scratch bytes that it requests; none for products that it does not compute.
std::optional<int64_t> scratch_bf16(const GemmArgs& g);

/// C[m, n] = op(A) op(B) + beta * C, sums in f32, for many matrices of the same sizes (at least 1). For processors with
/// features().bf16_products. Made and run by threads that have one thread of OpenMP; run() by several at a time.
class Bf16Product {
 public:
  struct Sizes {
    bool trans_a = false, trans_b = false;
    int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldc = 0;
    float beta = 0;
    DType to = DType::f32;  // of C: f32, or bf16, rounded once
  };
  explicit Bf16Product(const Sizes& sizes);
  ~Bf16Product();
  Bf16Product(Bf16Product&&) noexcept;
  /// @throws Error when the library refuses.
  void run(const bf16* a, const bf16* b, void* c) const;

 private:
  struct Made;
  std::unique_ptr<const Made> made_;
};

}  // namespace sherd::cpu
