// Symmetric products by tensor cores of compute capability 9.0, with half the work. Private to CUDA kernels.
#pragma once

#include "factors.h"

namespace sherd::cuda {

/// Returns whether symmetric_hopper() supports the product. It needs a chip of compute capability 9.0, f16 or
/// bf16 factors and a result of their type or f32. Rows and matrices are at multiples of 16 bytes. The summed
/// dimension of the factors is contiguous in memory, or could be read so because they are symmetric: x x^T of
/// a wide x and products of squares, not x^T x of a tall one.
bool symmetric_hopper_available(const Chip& chip, Factor a, Factor b, const Terms& terms, const Matrices& c);

/// symmetric_product() of such matrices in one kernel. A matrix's bits depend neither on its batch nor on the
/// tiles' width, which is tile_width() (symmetric_tiles.h) unless one of kTileWidths is given, as tests do.
/// b, where it is square and not transposed, is taken to be symmetric to the bit.
void symmetric_hopper(ExecutionContext& context, Factor a, Factor b, const Terms& terms, const Matrices& c,
                      int width = 0);

}  // namespace sherd::cuda
