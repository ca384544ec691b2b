// Same matrix, same bits: in any batch, at any address, on any number of threads. And what is refused.

#include "matrices.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

std::vector<OrthogonalizeOptions> every_kind() {
  OrthogonalizeOptions standard, gram, restarted, brain, half, svd;
  gram.form = restarted.form = half.form = IterationForm::gram;
  restarted.restarts = {2, 4};
  brain.working = DType::bf16;
  half.working = DType::f16;
  half.restarts = {2};
  svd.method = Orthogonalizer::svd;
  return {standard, gram, restarted, brain, half, svd};
}

const std::vector<Shape> kShapes = {{3, 5},    {1, 40},   {40, 1},    {70, 33}, {33, 257}, {129, 130},
                                    {96, 400}, {300, 70}, {261, 261}, {44, 61}, {2, 300},  {258, 300}};

TEST(OrthogonalizeBits, NeitherBatchNorPlaceMatters) {
  Lab lab;
  for (const Shape& shape : kShapes) {
    const int64_t size = shape[0] * shape[1], batch = kEmulated ? 2 : 5;
    // Three elements in front, so that no matrix is aligned.
    const Tensor in = lab.random({batch * size + 3}, 1), out = lab.full({batch * size + 3}, 0);
    const Tensor status = lab.empty({batch}, DType::i32), one = lab.empty({1}, DType::i32);
    const Tensor all_in = in.flat(3, 3 + batch * size).view({batch, shape[0], shape[1]});
    const Tensor all_out = out.flat(3, 3 + batch * size).view({batch, shape[0], shape[1]});
    for (const OrthogonalizeOptions& o : every_kind()) {
      ops::orthogonalize(lab.s, all_out, all_in, status, o);
      for (int64_t i = 0; i < batch; ++i) {
        const Tensor single = lab.tensor(shape, lab.floats(all_in.rows(i, i + 1))), result = lab.empty(shape);
        ops::orthogonalize(lab.s, result, single, one, o);
        ASSERT_EQ(bits(lab.floats(result)), bits(lab.floats(all_out.rows(i, i + 1)))) << to_string(shape);
      }
    }
  }
}

TEST(OrthogonalizeBits, ABatchMayHoldMatricesOfEveryStatus) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor in = lab.tensor({3, 1, 2}, {0, 0, 3, 4, NAN, 1}), out = lab.full({3, 1, 2}, 7);
    const Tensor status = lab.empty({3}, DType::i32);
    OrthogonalizeOptions o;
    o.steps = {{1, 0, 0}};
    ops::orthogonalize(lab.s, out, in, status, o);
    expect_close(lab.floats(out), {0, 0, 0.6f, 0.8f, 0, 0}, 1e-6);
    std::vector<int32_t> codes(3);
    ops::copy_to_host(lab.s, codes.data(), status);
    EXPECT_EQ(codes, (std::vector<int32_t>{1, 0, 2}));
  }
}

TEST(OrthogonalizeBits, ThreadsDoNotMatter) {
  if (kCuda) GTEST_SKIP() << "CUDA kernels have no host threads";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the OpenMP runtime is not instrumented, so its barriers look like races";
#endif
  Lab one(kFast, 1), two(kFast, 2), three(kFast, 3);
  for (const Shape& shape : kShapes) {
    const Floats values = normal(shape[0] * shape[1], 2);
    for (const OrthogonalizeOptions& o : every_kind()) {
      const auto want = bits(orthogonalized(one, shape[0], shape[1], values, o).values);
      EXPECT_EQ(bits(orthogonalized(two, shape[0], shape[1], values, o).values), want) << to_string(shape);
      EXPECT_EQ(bits(orthogonalized(three, shape[0], shape[1], values, o).values), want) << to_string(shape);
    }
  }
}

template <class F>
std::string refusal(F f) {
  return message_of<InvalidArgument>([&] { f(); });
}

TEST(OrthogonalizeRejects, Options) {
  Lab lab;
  const Tensor in = lab.random({2, 2}, 1), out = lab.empty({2, 2}), status = lab.empty({1}, DType::i32);
  auto message = [&](auto change) {
    OrthogonalizeOptions o;
    change(o);
    return refusal([&] { ops::orthogonalize(lab.s, out, in, status, o); });
  };
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(message([](auto& o) { o.steps.clear(); }), HasSubstr("no steps"));
  for (std::vector<int> restarts : {std::vector<int>{0}, {5}, {2, 2}, {3, 1}})
    EXPECT_THAT(message([&](auto& o) { o.restarts = restarts; }), HasSubstr("1..4"));
  EXPECT_THAT(message([](auto& o) {
                o.form = IterationForm::gram;
                o.working = DType::bf16;
              }),
              AllOf(HasSubstr("gram form in bf16"), HasSubstr("use working dtype f16 or f32")));
  EXPECT_THAT(message([](auto& o) {
                o.working = DType::f64;
                o.eps = -1;
                o.steps[1].b = NAN;
              }),
              AllOf(HasSubstr("f64"), HasSubstr("eps -1"), HasSubstr("not finite")));
  EXPECT_THAT(refusal([&] { ops::orthogonalize(lab.s, in, in, status, {}); }), HasSubstr("overlaps"));
}

TEST(OrthogonalizeRejects, Shapes) {
  Lab lab;
  const Tensor status = lab.empty({1}, DType::i32), x = lab.empty({2, 3}), y = lab.empty({3, 2});
  EXPECT_THROW(ops::orthogonalize(lab.s, y, x, status, {}), ShapeMismatch);
  EXPECT_THROW(ops::orthogonalize(lab.s, lab.empty({6}), lab.empty({6}), status, {}), ShapeMismatch);
  EXPECT_THROW(ops::orthogonalize(lab.s, Tensor(), x, status, {}), ShapeMismatch);
  EXPECT_THROW(ops::orthogonalize(lab.s, lab.empty({2, 3}), x, lab.empty({2}, DType::i32), {}),
               ShapeMismatch);
  EXPECT_THROW(ops::orthogonalize(lab.s, lab.empty({2, 3}), x, lab.empty({1}), {}), ShapeMismatch);
  EXPECT_THROW(ops::orthogonalize(lab.s, lab.empty({2, 3}), lab.empty({2, 3}, DType::bf16), status, {}),
               ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
