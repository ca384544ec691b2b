// Tiles of a symmetric product and the choice of their width, counted for 132 multiprocessors.
#include <gtest/gtest.h>
#include <sherd/kernels/orthogonalize/cuda/symmetric_tiles.h>

#include <algorithm>
#include <iterator>

namespace sherd::cuda {
namespace {

constexpr int kChip = 132;  // multiprocessors of an H100 or H200

TEST(SymmetricTiles, AreThoseThatReachTheDiagonal) {
  for (const int width : kTileWidths)
    for (const int64_t n : {1, 8, 127, 128, 129, 143, 144, 145, 256, 257, 300, 1000, 2048}) {
      int64_t tiles = 0;
      for (int64_t row = 0; row < n; row += kTileRows)
        for (int64_t col = 0; col < n; col += width) tiles += col <= std::min(row + kTileRows, n) - 1 ? 1 : 0;
      EXPECT_EQ(tiles_of(n, width), tiles) << n << " by " << width;
    }
}

TEST(SymmetricTiles, WidthsBySizeDepthAndBatch) {
  struct Case {
    SymmetricShape shape;
    int width;
  };
  for (const Case& c : {Case{{512, 512, 1}, 128}, Case{{1024, 1024, 1}, 128}, Case{{1024, 4096, 1}, 128},
                        Case{{1024, 1024, 8}, 192}, Case{{1024, 1024, 16}, 256}, Case{{1024, 1024, 32}, 256},
                        Case{{2048, 2048, 1}, 256}, Case{{2048, 2048, 16}, 256}, Case{{2048, 7168, 8}, 256},
                        Case{{4096, 4096, 4}, 256}, Case{{8192, 8192, 1}, 256}})
    EXPECT_EQ(tile_width(c.shape, kChip, true), c.width)
        << c.shape.batch << " of " << c.shape.n << " by " << c.shape.k;
}

// Four full waves of narrow tiles load 29 % more bytes than 2.06 waves of wide ones.
TEST(SymmetricTiles, WideTilesLoadLess) {
  EXPECT_EQ(tiles_of(4096, 128), 4 * kChip);
  EXPECT_EQ(tiles_of(4096, 256), 272);
  EXPECT_EQ(tile_width({4096, 4096, 1}, kChip), 256);
}

// The ping-pong schedule hides stores: the more they take beside the products, the narrower the tiles.
TEST(SymmetricTiles, NarrowTilesHideTheirStores) {
  const auto width = [](int64_t k, int result_bytes, bool addend) {
    return tile_width({1024, k, 8, result_bytes, addend}, kChip, true);
  };
  EXPECT_EQ(width(1024, 2, false), 192);
  EXPECT_EQ(width(1024, 2, true), 128);
  EXPECT_EQ(width(1024, 4, false), 128);
  EXPECT_EQ(width(4096, 4, false), 256);
}

TEST(SymmetricTiles, ByDefaultNoneIsPingPong) {
  for (const int64_t n : {8, 512, 1024, 2048, 4096})
    for (const int64_t batch : {1, 8}) EXPECT_GT(tile_width({n, n, batch}, kChip), kPingPongWidth);
}

// Whatever the chip and the matrices, some kernel has the width.
TEST(SymmetricTiles, AWidthThatThereIs) {
  for (const int chip : {1, 78, 114, 132})
    for (const int64_t n : {1, 100, 1000, 5120, 16384})
      for (const int64_t k : {1, 1000, 100000})
        for (const int64_t batch : {1, 3, 1000}) {
          const int width = tile_width({n, k, batch}, chip);
          EXPECT_TRUE(std::find(std::begin(kTileWidths), std::end(kTileWidths), width) !=
                      std::end(kTileWidths));
        }
}

}  // namespace
}  // namespace sherd::cuda
