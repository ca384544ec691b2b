// Tiles of a symmetric product: which are computed, and their width. Arithmetic alone, private to
// CUDA kernels.
#pragma once

#include <cstdint>

namespace sherd::cuda {

inline constexpr int kTileRows = 128;
/// Widths that symmetric_hopper() has a kernel for.
inline constexpr int kTileWidths[] = {128, 144, 160, 192, 256};
/// Widest tile of the ping-pong schedule: its sums fit into one warpgroup's registers, those of 192 do not.
inline constexpr int kPingPongWidth = 160;

/// Tiles of kTileRows x width that reach the diagonal of an n x n matrix, or lie below it.
int64_t tiles_of(int64_t n, int width);

/// The width whose waves of tiles over the multiprocessors take the least time, as counted. A multiprocessor
/// has one tile at a time, so `batch` matrices take ceil(batch * tiles / multiprocessors) waves. For 64
/// summed elements a tile takes 4 clocks a column by the tensor cores' rate, and 256 + 3 by shared memory's,
/// which wide tiles read less of for the same work; nothing has been measured, so the mean of the two counts.
/// The wider of two that are equal.
int tile_width(int64_t n, int64_t batch, int multiprocessors);

}  // namespace sherd::cuda
