#include <sherd/kernels/squares/exact_sum.h>

#include <future>

#include "lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

/// The message of the ShapeMismatch that f throws.
template <class F>
std::string mismatch(F f) {
  return message_of<ShapeMismatch>([&] { f(); });
}

TEST(Ops, CopiesAreCounted) {
  Lab lab;
  Tensor a = lab.random({10}, 1), b = lab.empty({2, 5});
  const int64_t before = lab.device->copied_bytes();
  ops::copy(lab.s, b, a);
  EXPECT_EQ(lab.device->copied_bytes() - before, 40);
  EXPECT_EQ(lab.floats(b), lab.floats(a));
  ops::copy(lab.s, a.view({5, 2}), a);  // the same memory: nothing moves
  EXPECT_EQ(lab.device->copied_bytes() - before, 40);
}

TEST(Ops, CopyFromHostTakesTheBytesAtOnce) {
  Lab lab;
  Tensor t = lab.empty({2});
  Floats host = {1, 2};
  ops::copy_from_host(lab.s, t, host.data(), 8);
  host = {7, 7};
  EXPECT_EQ(lab.floats(t), (Floats{1, 2}));
  EXPECT_THROW(ops::copy_from_host(lab.s, t, host.data(), 4), ShapeMismatch);
}

TEST(Ops, ClosuresKeepNoTensor) {
  Lab lab;
  Tensor t = lab.random({1000}, 1);
  lab.s.synchronize();
  const int64_t with = lab.device->allocator().live_bytes("test");
  std::promise<void> gate;
  lab.s.submit("gate", [f = gate.get_future().share()](ExecutionContext&) { f.wait(); });
  ops::scale(lab.s, t, 2);
  t = Tensor();
  EXPECT_EQ(lab.device->allocator().live_bytes("test"), with - Allocator::rounded(4000));
  gate.set_value();
  lab.s.synchronize();
}

TEST(Ops, MessagesNameTheOperationAndEveryOffender) {
  Lab lab;
  Tensor f = lab.empty({2, 3}), h = lab.empty({2, 3}, DType::bf16), i = lab.empty({4}, DType::i32);
  EXPECT_THAT(mismatch([&] { ops::gemm(lab.s, f, f, false, f, false); }),
              AllOf(HasSubstr("gemm"), HasSubstr("[2, 3]"), HasSubstr("do not fit")));
  EXPECT_THAT(mismatch([&] { ops::gemm(lab.s, h, f, false, h, true); }),
              AllOf(HasSubstr("B is bf16"), HasSubstr("C is bf16")));
  EXPECT_THAT(mismatch([&] { ops::adamw(lab.s, f, h, i, f, {}); }),
              AllOf(HasSubstr("adamw"), HasSubstr("m is bf16"), HasSubstr("v is i32"),
                    HasSubstr("v is [4] (4 elements)")));
  EXPECT_THAT(mismatch([&] { ops::add(lab.s, f, Tensor(), h); }),
              AllOf(HasSubstr("a is undefined"), HasSubstr("b is bf16")));
  EXPECT_THAT(mismatch([&] { ops::copy(lab.s, f, h); }), HasSubstr("copy"));
}

TEST(Ops, ShapesAreChecked) {
  Lab lab;
  auto t = [&](Shape s, DType d = DType::f32) { return lab.empty(std::move(s), d); };
  const Tensor none;
  EXPECT_THROW(ops::fill(lab.s, none, 0), ShapeMismatch);
  EXPECT_THROW(ops::cast(lab.s, t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::cast(lab.s, t({3}), t({3}, DType::i32)), ShapeMismatch);
  EXPECT_THROW(ops::scale(lab.s, t({3}, DType::f64), 2), ShapeMismatch);
  EXPECT_THROW(ops::scale_by(lab.s, t({3}), t({2})), ShapeMismatch);
  EXPECT_THROW(ops::scaled_add(lab.s, t({3}), 1, t({2})), ShapeMismatch);
  EXPECT_THROW(ops::scale_and_add(lab.s, t({3}), 1, 1, t({3}, DType::bf16)), ShapeMismatch);
  EXPECT_THROW(ops::gemm(lab.s, t({2, 2}), t({4}), false, t({2, 2}), false), ShapeMismatch);
  EXPECT_THROW(ops::gelu_forward(lab.s, t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::gelu_backward(lab.s, t({4}), t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::multiply(lab.s, t({3}), t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::multiply(lab.s, t({3}, DType::f64), t({3}, DType::f64), t({3}, DType::f64)),
               ShapeMismatch);
  EXPECT_THROW(ops::accumulate_squares(lab.s, t({ExactSum::kDigits}, DType::i64), t({3})), ShapeMismatch);
  EXPECT_THROW(ops::accumulate_sum(lab.s, t({1}), t({3})), ShapeMismatch);
  EXPECT_THROW(ops::random_normal(lab.s, t({1}), -1, 0, "w", 0, 1), InvalidArgument);
  lab.s.synchronize();  // nothing was queued
}

}  // namespace
}  // namespace sherd::test
