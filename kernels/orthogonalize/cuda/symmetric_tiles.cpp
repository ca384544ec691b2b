#include "symmetric_tiles.h"

#include <algorithm>

namespace sherd::cuda {
namespace {

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

double clocks(const SymmetricShape& s, int width, int multiprocessors) {
  const int64_t tiles = s.batch * tiles_of(s.n, width);
  const auto most = static_cast<double>(divided_up(tiles, multiprocessors));
  const auto pieces = static_cast<double>(divided_up(s.k, 64));
  const double loads =
      pieces * static_cast<double>(tiles) * 128 * (kTileRows + width) / (25.0 * multiprocessors);
  const double products = pieces * (4 * width + 256 + 3 * width) / 2;
  const double stores = kTileRows * width * s.result_bytes * (s.addend ? 3 : 2) / 14.5;
  const double work = width <= kPingPongWidth ? most * std::max(products, stores) + std::min(products, stores)
                                              : most * (products + stores);
  return std::max(loads + stores, work);
}

}  // namespace

int64_t tiles_of(int64_t n, int width) {
  int64_t tiles = 0;
  for (int64_t end = kTileRows; end < n + kTileRows; end += kTileRows)
    tiles += divided_up(std::min(end, n), width);
  return tiles;
}

int tile_width(const SymmetricShape& shape, int multiprocessors, bool ping_pong) {
  int best = 0;
  double least = 0;
  for (const int width : kTileWidths) {
    if (width <= kPingPongWidth && !ping_pong) continue;
    const double time = clocks(shape, width, multiprocessors);
    if (best == 0 || time <= least) best = width, least = time;
  }
  return best;
}

}  // namespace sherd::cuda
