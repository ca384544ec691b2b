// Products for Newton-Schulz on batches of matrices. Private to CUDA kernels.
//
// Factors are f32, bf16 or f16 (both of one type), results of that type or f32 (f64 throughout is possible,
// too). Sums are f32; f32 factors are never rounded to tf32, whatever DeviceOptions::tf32 says: errors in R
// grow by a^2 per step.
//
// Same matrix, same bits, in any batch: the way is chosen by shape and types alone (matmul.h), provided that
// operands are `regular`. Others are copied first by their owners.
#pragma once

#include "factors.h"

namespace sherd::cuda {

/// Returns whether rows and matrices begin at multiples of 16 bytes and rows are padded_ld apart.
bool regular(const Matrices& m);

/// c[m, n] = a[m, k] b[k, n] for every matrix. k is not 0.
void product(ExecutionContext&, Factor a, Factor b, const Terms& terms, const Matrices& c);

/// The same where the result is known to be symmetric, as x x^T and products of commuting symmetric matrices
/// are: computed below the diagonal and mirrored, so that c is symmetric to the bit.
///
/// Three ways. Below kBlocksFrom the whole product is one call: smaller blocks would not fill the chip. From
/// there on 10 of 16 blocks are computed (62.5 % of the work), as four block columns would have it:
///     [P . . .]   P: two panels of two blocks by one, B: one square of two by two blocks,
///     [P D . .]   D: two diagonal blocks.
///     [B B P .]
///     [B B P D]
/// With Chip::symmetric == hopper, a kernel of our own computes tiles on and below the diagonal alone, where
/// symmetric.h says that it can.
void symmetric_product(ExecutionContext&, Factor a, Factor b, const Terms& terms, const Matrices& c);

/// The second way at any size, without the mirror: elements above the blocks named above are not written.
/// c.rows must be more than 3 * 64 * ceil(floor(c.rows / 4) / 64).
void lower_blocks(ExecutionContext&, Factor a, Factor b, const Terms& terms, const Matrices& c);

/// A single matrix of this size has three calls of at least 64 tiles of 128 x 256 on 132 multiprocessors.
inline constexpr int64_t kBlocksFrom = 4096;

}  // namespace sherd::cuda
