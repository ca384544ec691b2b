#include <sherd/dtensor/detail/strided_copy.h>

#include <gtest/gtest.h>

#include "rank_helpers.h"

namespace sherd {
namespace {

TEST(StridedCopy, TakesABlockOfADimension) {
  launch(1, [](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const Tensor t = make_tensor(rank, {2, 3, 2}, counting(12));
    const DimBlock b = dim_block({2, 3, 2}, 1, 1, 2);
    EXPECT_EQ(b.numel(), 8);
    const Tensor out = Tensor::empty(*rank.device, {8}, DType::f32, "test");
    const int64_t before = rank.device->copied_bytes();
    strided_copy(stream, out, {0, b.run}, t, b.where, b.blocks, b.run);
    EXPECT_EQ(ops::to_floats(stream, out), (std::vector<float>{3, 4, 5, 6, 9, 10, 11, 12}));
    EXPECT_EQ(rank.device->copied_bytes() - before, 8 * 4);
  });
}

TEST(StridedCopy, PutsABlockAndLeavesTheRest) {
  launch(1, [](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const Tensor t = make_tensor(rank, {2, 3}, {0, 0, 0, 0, 0, 0});
    const DimBlock b = dim_block({2, 3}, 1, 2, 1);
    strided_copy(stream, t, b.where, make_tensor(rank, {2}, {7, 8}), {0, b.run}, b.blocks, b.run);
    EXPECT_EQ(ops::to_floats(stream, t), (std::vector<float>{0, 0, 7, 0, 0, 8}));
  });
}

TEST(StridedCopy, OutsideATensorIsAnError) {
  launch(1, [](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const Tensor a = make_tensor(rank, {6}, counting(6)), b = make_tensor(rank, {6}, counting(6));
    const Tensor other = Tensor::empty(*rank.device, {6}, DType::bf16, "test");
    EXPECT_THROW(strided_copy(stream, a, {0, 3}, b, {1, 3}, 2, 3), ShapeMismatch);
    EXPECT_THROW(strided_copy(stream, a, {-1, 3}, b, {0, 3}, 2, 3), ShapeMismatch);
    EXPECT_THROW(strided_copy(stream, other, {0, 3}, b, {0, 3}, 2, 3), ShapeMismatch);
    EXPECT_NO_THROW(strided_copy(stream, a, {9, 3}, b, {9, 3}, 0, 3));  // nothing to move
  });
}

}  // namespace
}  // namespace sherd
