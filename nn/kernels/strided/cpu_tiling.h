// Cut of a strided map into tiles of two dimensions that fit in the L1 cache. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <sherd/kernels/device/dtype.h>
#include <sherd/nn/kernels/strided/strided.h>

namespace sherd::cpu {

constexpr int64_t kTileElements = 1024;
constexpr int64_t kLine = 64;      // bytes of a cache line
constexpr int64_t kBlockSide = 8;  // tiles of a block

/// Rows and columns of a tile.
struct Extent {
  int64_t rows, cols;
};

/// Distances in elements between rows and between columns.
struct Step {
  int64_t row, col;
  bool dense(Extent e) const { return (col == 1 || e.cols == 1) && (row == e.cols || e.rows == 1); }
};

/// The cut of the output: columns are the dimension along which the output is contiguous, or the last. Rows are one
/// along which an operand is; else the last of the others; where both are short, the longest. The rest is outside.
struct Tiling {
  explicit Tiling(const MapArgs& args) : a(args), col(a.dims - 1) {
    for (int d = 0; d < a.dims; ++d)
      if (a.out.strides[d] == 1) col = d;
    row = col == a.dims - 1 ? a.dims - 2 : a.dims - 1;
    for (int d = 0; d < a.dims; ++d)
      for (const MapOperand* o : {&a.in[0], &a.in[1], &a.in[2]})
        if (d != col && o->ref.data && o->strides[d] == 1 && o->strides[col] > 1) row = d, transposed = true;
    if (!transposed && size(col) * size(row) < kTileElements)
      for (int d = 0; d < a.dims; ++d)
        if (d != col && size(d) > size(row)) row = d;
    // A transposed tile is a cache line wide and high. With more rows of a power of two bytes, of which a column is in few
    // sets of a cache, lines would be lost between prefetch and use.
    const int64_t side = transposed ? kLine / size_of(a.out.ref.dtype) : kTileElements;
    const auto other = [&](int64_t n) {
      return transposed && n == side ? side : kTileElements / std::max<int64_t>(1, n);
    };
    tile.cols = std::min(side, size(col));
    tile.rows = std::min(other(tile.cols), size(row));
    tile.cols = std::min(other(tile.rows), size(col));
    down = (size(row) + tile.rows - 1) / tile.rows;
    across = (size(col) + tile.cols - 1) / tile.cols;
    count = down * across;
    for (int d = 0; d < a.dims; ++d)
      if (d != col && d != row) count *= a.sizes[d];
  }

  int64_t size(int d) const { return d < 0 ? 1 : a.sizes[d]; }
  Step step(const MapOperand& o) const {
    return {row < 0 ? 0 : o.strides[row], col < 0 ? 0 : o.strides[col]};
  }
  /// Row and column of the i-th tile. Transposed tiles are taken by square blocks: each side of a copy has its rows in
  /// other pages of memory, and those of a block fit in the processor's translation buffer.
  std::pair<int64_t, int64_t> tile_at(int64_t i) const {
    if (!transposed) return {i / across, i % across};
    const int64_t strip = i / (kBlockSide * across), in_strip = i % (kBlockSide * across);
    const int64_t height = std::min(kBlockSide, down - strip * kBlockSide);
    const int64_t block = in_strip / (height * kBlockSide), in_block = in_strip % (height * kBlockSide);
    const int64_t width = std::min(kBlockSide, across - block * kBlockSide);
    return {strip * kBlockSide + in_block / width, block * kBlockSide + in_block % width};
  }
  /// Start of tile i in each operand, the output first, and its extent.
  struct Place {
    int64_t at[1 + kMapInputs];
    Extent extent;
  };
  Place place(int64_t i) const {
    Place p{};
    const auto [of_row, of_col] = tile_at(i % (across * down));
    const int64_t c = of_col * tile.cols, r = of_row * tile.rows;
    int64_t outside = i / (across * down);
    const auto move = [&](int d, int64_t by) {
      p.at[0] += by * a.out.strides[d];
      for (int k = 0; k < kMapInputs; ++k) p.at[1 + k] += by * a.in[k].strides[d];
    };
    if (col >= 0) move(col, c);
    if (row >= 0) move(row, r);
    for (int d = a.dims - 1; d >= 0; --d)
      if (d != col && d != row) move(d, outside % a.sizes[d]), outside /= a.sizes[d];
    p.extent = {std::min(tile.rows, size(row) - r), std::min(tile.cols, size(col) - c)};
    return p;
  }

  MapArgs a;
  int col, row;
  bool transposed = false;
  Extent tile{};
  int64_t down = 1, across = 1, count = 1;
};

}  // namespace sherd::cpu
