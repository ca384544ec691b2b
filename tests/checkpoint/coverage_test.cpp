#include <sherd/checkpoint/format/coverage.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "checkpoint/pick.h"

namespace sherd {

void showValue(const Box& box, std::ostream& out) {
  out << to_string(box.offset) << " + " << to_string(box.size);
}

namespace {

bool holds(const Box& box, const Shape& at) {
  for (size_t d = 0; d < at.size(); ++d) {
    if (at[d] < box.offset[d] || at[d] >= box.offset[d] + box.size[d]) return false;
  }
  return true;
}

/// Calls `visit` with every index of a tensor, in row-major order, until it returns false.
template <class Visit>
void each_element(const Shape& shape, Visit visit) {
  Shape at(shape.size(), 0);
  for (int64_t i = 0; i < numel_of(shape); ++i) {
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
    if (!visit(at)) return;
  }
}

std::optional<CoverageFault> slow_fault(const Shape& shape, const std::vector<Box>& boxes) {
  std::optional<CoverageFault> fault;
  each_element(shape, [&](const Shape& at) {
    const auto times = std::count_if(boxes.begin(), boxes.end(), [&](const Box& b) { return holds(b, at); });
    if (times != 1) fault = CoverageFault{at, times};
    return times == 1;
  });
  return fault;
}

void expect_same(const std::optional<CoverageFault>& got, const std::optional<CoverageFault>& expected) {
  RC_ASSERT(got.has_value() == expected.has_value());
  if (!got) return;
  RC_ASSERT(got->at == expected->at);
  RC_ASSERT(got->times == expected->times);
}

Shape any_shape() {
  static constexpr int64_t kLargest[] = {0, 40, 12, 6, 4, 3, 2, 2, 2};
  Shape shape(static_cast<size_t>(pick(1, 8)));
  for (int64_t& size : shape) size = pick(1, kLargest[shape.size()]);
  return shape;
}

Box any_box(const Shape& shape) {
  Box box{Shape(shape.size()), Shape(shape.size())};
  for (size_t d = 0; d < shape.size(); ++d) {
    box.offset[d] = pick(0, shape[d]);
    box.size[d] = pick(0, shape[d] - box.offset[d]);
  }
  return box;
}

/// Cuts boxes in two, anywhere, again and again.
std::vector<Box> any_tiling(const Shape& shape) {
  std::vector<Box> boxes = {{Shape(shape.size(), 0), shape}};
  const int64_t cuts = pick(0, 12);
  for (int64_t i = 0; i < cuts; ++i) {
    const auto which = static_cast<size_t>(pick(0, std::ssize(boxes) - 1));
    const auto d = static_cast<size_t>(pick(0, std::ssize(shape) - 1));
    const int64_t at = pick(0, boxes[which].size[d]);  // pieces of size 0 too
    Box second = boxes[which];
    second.offset[d] += at;
    second.size[d] -= at;
    boxes[which].size[d] = at;
    boxes.push_back(second);
  }
  for (size_t i = boxes.size(); i > 1; --i)
    std::swap(boxes[i - 1], boxes[static_cast<size_t>(pick(0, static_cast<int64_t>(i) - 1))]);
  return boxes;
}

RC_GTEST_PROP(Coverage, RandomBoxes, ()) {
  const Shape shape = any_shape();
  std::vector<Box> boxes(static_cast<size_t>(pick(0, 8)));
  for (Box& box : boxes) box = any_box(shape);
  expect_same(coverage_fault(shape, boxes), slow_fault(shape, boxes));
}

RC_GTEST_PROP(Coverage, Tilings, ()) {
  const Shape shape = any_shape();
  RC_ASSERT(!coverage_fault(shape, any_tiling(shape)));
}

RC_GTEST_PROP(Coverage, SpoiledTilings, ()) {
  const Shape shape = any_shape();
  std::vector<Box> boxes = any_tiling(shape);
  const auto which = static_cast<size_t>(pick(0, std::ssize(boxes) - 1));
  const auto d = static_cast<size_t>(pick(0, std::ssize(shape) - 1));
  Box& box = boxes[which];
  switch (pick(0, 3)) {
    case 0:
      boxes.erase(boxes.begin() + static_cast<int64_t>(which));
      break;
    case 1:
      boxes.push_back(Box(box));
      break;
    case 2:  // shifted
      if (box.offset[d] + box.size[d] < shape[d]) {
        box.offset[d] += 1;
      } else if (box.offset[d] > 0) {
        box.offset[d] -= 1;
      }
      break;
    case 3:  // one more replaces another
      boxes[static_cast<size_t>(pick(0, std::ssize(boxes) - 1))] = Box(box);
  }
  expect_same(coverage_fault(shape, boxes), slow_fault(shape, boxes));
}

RC_GTEST_PROP(Coverage, IntersectionHoldsWhatBothHold, ()) {
  const Shape shape = any_shape();
  const Box a = any_box(shape), b = any_box(shape);
  const std::optional<Box> both = intersect(a, b);
  if (both) RC_ASSERT(numel_of(both->size) > 0);
  each_element(shape, [&](const Shape& at) {
    RC_ASSERT((both && holds(*both, at)) == (holds(a, at) && holds(b, at)));
    return true;
  });
}

// Boxes of which two are missing and two are there twice, so that counts and volumes fit.
TEST(Coverage, IsNotFooledByEqualVolumes) {
  const std::vector<Box> boxes = {{{0, 0}, {1, 2}}, {{0, 0}, {1, 2}}, {{3, 0}, {1, 2}}, {{3, 0}, {1, 2}}};
  const auto fault = coverage_fault({4, 2}, boxes);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->at, (Shape{0, 0}));
  EXPECT_EQ(fault->times, 2);
}

TEST(Coverage, OfNoElementsNeedsNoBoxes) {
  EXPECT_FALSE(coverage_fault({0}, {}));
  EXPECT_FALSE(coverage_fault({4, 0, int64_t{1} << 62}, {}));
  EXPECT_FALSE(coverage_fault({1}, std::vector<Box>{{{0}, {1}}}));
  const auto missing = coverage_fault({1}, {});
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->times, 0);
}

TEST(Coverage, SizesMayBeHuge) {
  const Shape shape = {int64_t{1} << 31, (int64_t{1} << 31) - 1};
  const std::vector<Box> boxes = {{{0, 0}, {1, shape[1]}}, {{1, 0}, {shape[0] - 1, shape[1] - 1}}};
  const auto fault = coverage_fault(shape, boxes);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->at, (Shape{1, shape[1] - 1}));
}

TEST(Coverage, ManyBoxesTakeLittleTime) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < 300'000; ++i) boxes.push_back({{i % 1000 * 7, i / 1000 * 3}, {7, 3}});
  EXPECT_FALSE(coverage_fault({7000, 900}, boxes));
  boxes[177'177].offset[0] += 1;
  const auto fault = coverage_fault({7000, 900}, boxes);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->at, (Shape{177 * 7, 177 * 3}));
  EXPECT_EQ(fault->times, 0);
}

}  // namespace
}  // namespace sherd
