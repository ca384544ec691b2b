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

/// Tiles of kTileRows x width that reach the diagonal of an n x n matrix, or are below it.
int64_t tiles_of(int64_t n, int width);

/// `batch` products of n x k by k x n elements of 16 bits.
struct SymmetricShape {
  int64_t n, k, batch;
  int result_bytes = 2;  // of an element
  bool addend = false;
};

/// The width whose tiles take the least time, as counted in clocks; the wider of two that are equal. The time
/// is the longer of two:
/// - Loads. 128 (128 + width) bytes for 64 summed elements of a tile, at 25 bytes a clock and multiprocessor,
///   by L2, which all multiprocessors share; then the stores of the last tile.
/// - Work of the multiprocessor with the most tiles. Products: for 64 summed elements the mean of the tensor
///   cores' rate, 4 clocks a column, and shared memory's, 256 + 3 a column. Stores: two of each element and one
///   read of the addend, at 14.5 bytes a clock (3.35 TB/s of an H100). The cooperative schedule adds them up,
///   the ping-pong schedule overlaps a tile's stores with the products of the next.
/// The kernel alone has not been timed. L2's rate is inferred from Newton-Schulz on one H200
/// (docs/performance.md); all else is from data sheets.
/// `ping_pong`: with the widths of that schedule. By default without: it has not run on a GPU yet.
int tile_width(const SymmetricShape& shape, int multiprocessors, bool ping_pong = false);

}  // namespace sherd::cuda
