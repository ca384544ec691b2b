// Tiles of a symmetric product and the choice of their width; counted for 132 multiprocessors.
#include <gtest/gtest.h>
#include <sherd/kernels/orthogonalize/cuda/symmetric_tiles.h>

#include <algorithm>
#include <iterator>

namespace sherd::cuda {
namespace {

constexpr int kChip = 132;  // multiprocessors of an H100 or H200

int64_t waves(int64_t n, int64_t batch, int width) {
  return (batch * tiles_of(n, width) + kChip - 1) / kChip;
}

TEST(SymmetricTiles, AreThoseThatReachTheDiagonal) {
  for (const int width : kTileWidths)
    for (const int64_t n : {1, 8, 127, 128, 129, 143, 144, 145, 256, 257, 300, 1000, 2048}) {
      int64_t tiles = 0;
      for (int64_t row = 0; row < n; row += kTileRows)
        for (int64_t col = 0; col < n; col += width) tiles += col <= std::min(row + kTileRows, n) - 1 ? 1 : 0;
      EXPECT_EQ(tiles_of(n, width), tiles) << n << " by " << width;
    }
}

TEST(SymmetricTiles, ThoseOf128MakeFourWholeWavesAt4096) {
  EXPECT_EQ(tiles_of(4096, 128), 4 * kChip);
  EXPECT_EQ(waves(4096, 1, 256), 3);  // 2.06, which leaves 65 % of what three could do
  EXPECT_EQ(tile_width(4096, 1, kChip), 128);
}

TEST(SymmetricTiles, ThoseOf144MakeOneWaveAt2048) {
  EXPECT_EQ(waves(2048, 1, 128), 2);  // of 136 tiles, four too many
  EXPECT_EQ(waves(2048, 1, 144), 1);
  EXPECT_EQ(tile_width(2048, 1, kChip), 144);
}

TEST(SymmetricTiles, WidthsBySizeAndBatch) {
  struct Case {
    int64_t n, batch;
    int width;
  };
  for (const Case& c :
       {Case{1024, 1, 128}, Case{1024, 4, 160}, Case{1024, 8, 160}, Case{1024, 16, 160}, Case{1024, 32, 256},
        Case{2048, 4, 192}, Case{2048, 8, 192}, Case{2048, 16, 256}, Case{2048, 32, 256}, Case{4096, 4, 192},
        Case{4096, 8, 256}, Case{4096, 32, 256}, Case{8192, 1, 256}, Case{8192, 4, 256}})
    EXPECT_EQ(tile_width(c.n, c.batch, kChip), c.width) << c.batch << " of " << c.n;
}

// Whatever the chip and the matrices, some kernel does it, and none is counted to be faster.
TEST(SymmetricTiles, AWidthThatThereIs) {
  for (const int chip : {1, 78, 114, 132})
    for (const int64_t n : {1, 100, 1000, 5120, 16384})
      for (const int64_t batch : {1, 3, 1000}) {
        const int width = tile_width(n, batch, chip);
        EXPECT_TRUE(std::find(std::begin(kTileWidths), std::end(kTileWidths), width) !=
                    std::end(kTileWidths));
      }
}

}  // namespace
}  // namespace sherd::cuda
