// cuBLASLt behind one struct: row-major batched products, planned once per shape. Private to CUDA kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/dtype.h>

namespace sherd::cuda {

class CudaQueue;

/// A row-major matrix of each of a batch: elements from row to row, and from matrix to matrix.
struct Operand {
  void* data = nullptr;
  int64_t ld = 0;
  int64_t stride = 0;
};

/// Operation of cuBLASLt on a product before it is stored; gelu_backward multiplies it by gelu'(pre).
enum class MatmulEpilogue { none, bias, gelu, gelu_bias, gelu_pre, gelu_pre_bias, gelu_backward };

/// c[m,n] = alpha * op(a) op(b) + beta * addend for every matrix of a batch. Sums are f32 (f64 when `in` is).
///   in, out: f32 -> f32, bf16 -> bf16 or f32, f16 -> f16 or f32, f64 -> f64.
///   tf32: f32 products round their factors to 10 bits.
/// The addend has the type of c, may be c itself, and is not read when beta is 0. No size is 0.
/// bias [n] and pre [m, n] have the type of c and begin at multiples of 16 bytes; pre's rows are n elements
/// apart.
struct Matmul {
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  DType in = DType::f32, out = DType::f32;
  bool tf32 = false;
  double alpha = 1, beta = 0;
  Operand a{}, b{}, c{}, addend{};
  MatmulEpilogue epilogue = MatmulEpilogue::none;
  void* bias = nullptr;
  void* pre = nullptr;
  /// Number of such matrices that the algorithm is chosen for, whatever `batch` is.
  int64_t nominal_batch = 1;
};

/// The nominal batch of products that come in batches of any size. The best algorithm for one matrix (a split
/// sum, small tiles) would be wrong for the 8 or 32 of a transformer's layers. The best one for these is
/// slightly slower for one matrix.
inline constexpr int64_t kNominalBatch = 8;

/// Issues the product on the queue's stream.
///
/// The algorithm is cuBLASLt's heuristic's first choice for the nominal batch of the shape, types, leading
/// dimensions, alignments (to 16 bytes at most) and epilogue; where it has none that one matrix takes, too,
/// its choice for one matrix. It is remembered with the queue, and every batch of the shape runs it, as one
/// call where it allows that and matrix by matrix otherwise. So a matrix's bits depend neither on the batch it
/// comes in nor on earlier calls. Sums over k may be split, then in a fixed order through the workspace;
/// never with atomics.
/// @throws CudaError when cuBLASLt fails or has no algorithm, with the product in words.
void matmul(CudaQueue& queue, const Matmul& product);

/// Same for products with another implementation, such as those with an epilogue: returns false and issues
/// nothing where cuBLASLt has no algorithm. The queue keeps this answer, too.
/// @throws CudaError when cuBLASLt fails.
bool try_matmul(CudaQueue& queue, const Matmul& product);

/// Returns whether `data` is at a multiple of `bytes`.
inline bool aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace sherd::cuda
