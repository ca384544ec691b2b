#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/dtensor.h>

namespace sherd {
namespace {

ParamRange range(int64_t begin, int64_t end) { return {ParamIndex(begin), ParamIndex(end)}; }

/// Flat indices of a box's elements in row-major order of the box.
std::vector<int64_t> elements_of(const Shape& shape, const Box& box) {
  std::vector<int64_t> flat = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t f : flat)
      for (int64_t i = 0; i < box.size[d]; ++i) next.push_back(f * shape[d] + box.offset[d] + i);
    flat = std::move(next);
  }
  return flat;
}

TEST(Boxes, WholeRowsAreOneBox) {
  EXPECT_EQ(boxes_of({4, 3}, range(3, 9)), (std::vector<Box>{{{1, 0}, {2, 3}}}));
  EXPECT_EQ(boxes_of({4, 3}, range(0, 12)), (std::vector<Box>{{{0, 0}, {4, 3}}}));
}

TEST(Boxes, CutRowsAddOneBoxOnEitherSide) {
  EXPECT_EQ(boxes_of({4, 3}, range(2, 10)),
            (std::vector<Box>{{{0, 2}, {1, 1}}, {{1, 0}, {2, 3}}, {{3, 0}, {1, 1}}}));
  EXPECT_EQ(boxes_of({4, 3}, range(4, 5)), (std::vector<Box>{{{1, 1}, {1, 1}}}));
}

TEST(Boxes, ThreeDimensionsGiveAtMostFive) {
  EXPECT_EQ(boxes_of({3, 3, 3}, range(1, 26)), (std::vector<Box>{{{0, 0, 1}, {1, 1, 2}},
                                                                 {{0, 1, 0}, {1, 2, 3}},
                                                                 {{1, 0, 0}, {1, 3, 3}},
                                                                 {{2, 0, 0}, {1, 2, 3}},
                                                                 {{2, 2, 0}, {1, 1, 2}}}));
}

TEST(Boxes, ScalarsAndEmptyIntervals) {
  EXPECT_EQ(boxes_of({}, range(0, 1)), (std::vector<Box>{{{0}, {1}}}));
  EXPECT_TRUE(boxes_of({}, range(1, 1)).empty());
  EXPECT_TRUE(boxes_of({4, 3}, range(5, 5)).empty());
  EXPECT_TRUE(boxes_of({4, 0}, range(0, 0)).empty());
}

TEST(Boxes, OutsideTheTensorIsAnError) {
  EXPECT_THROW((void)boxes_of({4, 3}, range(0, 13)), InvalidArgument);
  EXPECT_THROW((void)boxes_of({4, 3}, range(-1, 2)), InvalidArgument);
  EXPECT_THROW((void)boxes_of({4, 3}, range(3, 2)), InvalidArgument);
}

RC_GTEST_PROP(Boxes, CoverTheIntervalInOrderExactlyOnce, ()) {
  const auto dims = *rc::gen::inRange<size_t>(1, 5);
  const auto shape = *rc::gen::container<Shape>(dims, rc::gen::inRange<int64_t>(1, 6));
  const int64_t numel = numel_of(shape);
  const auto begin = *rc::gen::inRange<int64_t>(0, numel + 1);
  const auto end = *rc::gen::inRange<int64_t>(begin, numel + 1);

  const auto boxes = boxes_of(shape, range(begin, end));
  RC_ASSERT(boxes.size() <= 2 * (dims - 1) + 1);
  int64_t at = begin;
  for (const Box& box : boxes) {
    for (int64_t e : elements_of(shape, box)) RC_ASSERT(e == at++);
  }
  RC_ASSERT(at == end);
}

TEST(EvenChunk, FollowsTheCeilConvention) {
  const auto chunk = [](int64_t n, int parts, int i) {
    const EvenChunk c = even_chunk(n, parts, i);
    return std::pair(c.offset, c.size);
  };
  EXPECT_EQ(chunk(10, 4, 0), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(chunk(10, 4, 3), std::pair(int64_t{9}, int64_t{1}));
  EXPECT_EQ(chunk(5, 4, 2), std::pair(int64_t{4}, int64_t{1}));
  EXPECT_EQ(chunk(5, 4, 3), std::pair(int64_t{5}, int64_t{0}));  // empty, at the end
  EXPECT_EQ(chunk(2, 7, 6), std::pair(int64_t{2}, int64_t{0}));
  EXPECT_EQ(chunk(0, 3, 1), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(chunk(6, 1, 0), std::pair(int64_t{0}, int64_t{6}));
  EXPECT_THROW((void)even_chunk(3, 0, 0), InvalidArgument);
  EXPECT_THROW((void)even_chunk(3, 2, 2), InvalidArgument);
  EXPECT_THROW((void)even_chunk(-1, 2, 0), InvalidArgument);
}

}  // namespace
}  // namespace sherd
