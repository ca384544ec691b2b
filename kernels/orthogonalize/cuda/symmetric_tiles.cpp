#include "symmetric_tiles.h"

#include <algorithm>

namespace sherd::cuda {
namespace {

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Twice the clocks of a tile for 64 summed elements.
int64_t cost_of(int width) { return 4 * width + (256 + 3 * width); }

}  // namespace

int64_t tiles_of(int64_t n, int width) {
  int64_t tiles = 0;
  for (int64_t end = kTileRows; end < n + kTileRows; end += kTileRows)
    tiles += divided_up(std::min(end, n), width);
  return tiles;
}

int tile_width(int64_t n, int64_t batch, int multiprocessors) {
  int best = 0;
  int64_t least = 0;
  for (const int width : kTileWidths) {
    const int64_t time = divided_up(batch * tiles_of(n, width), multiprocessors) * cost_of(width);
    if (best == 0 || time <= least) best = width, least = time;
  }
  return best;
}

}  // namespace sherd::cuda
