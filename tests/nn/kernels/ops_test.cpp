#include <sherd/nn/ops.h>

#include "kernels/lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

TEST(ModelOps, ShapesAreChecked) {
  Lab lab;
  auto t = [&](Shape s, DType d = DType::f32) { return lab.empty(std::move(s), d); };
  const Tensor none;
  EXPECT_THROW(ops::rms_norm_forward(lab.s, t({2, 3}), t({3}), t({2, 3}), t({3}), 0), ShapeMismatch);
  EXPECT_THROW(ops::rms_norm_backward(lab.s, t({2, 3}), t({2}), t({2, 3}), t({2, 3}), t({3}), t({2})),
               ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, t({4, 2}), t({1, 1, 4}), t({4, 7}), 1, 1), ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, t({4, 2}), t({3, 1, 4}), t({4, 6}), 3, 1), ShapeMismatch);
  EXPECT_THROW(ops::attention_forward(lab.s, t({4, 2}), t({1, 1, 4}), t({4, 6}), 0, 1), InvalidArgument);
  EXPECT_THROW(ops::attention_backward(lab.s, t({4, 5}), t({4, 2}), t({4, 2}), t({1, 1, 4}), t({4, 6}), 1, 1),
               ShapeMismatch);
  EXPECT_THROW(ops::layer_norm_forward(lab.s, t({2, 3}), t({2}), t({2}), t({2, 3}), t({3}), t({2}), 0),
               ShapeMismatch);
  EXPECT_THROW(
      ops::layer_norm_backward(lab.s, t({2, 3}), t({3}), t({2, 3}), t({2, 3}), t({3}), t({3}), t({2})),
      ShapeMismatch);
  EXPECT_THROW(ops::activation_forward(lab.s, Activation::silu, t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::activation_backward(lab.s, Activation::silu, t({4}), t({3}), t({4})), ShapeMismatch);
  EXPECT_THROW(ops::swiglu_forward(lab.s, t({2, 3}), t({2, 3}), t({3, 2})), ShapeMismatch);
  EXPECT_THROW(ops::swiglu_forward(lab.s, t({2, 2}), t({2, 5})), ShapeMismatch);
  EXPECT_THROW(ops::swiglu_backward(lab.s, t({2, 6}), t({2, 2}), t({2, 6})), ShapeMismatch);
  EXPECT_THROW(ops::softmax_forward(lab.s, t({2, 3}), t({3, 2})), ShapeMismatch);
  EXPECT_THROW(ops::softmax_forward(lab.s, t({}), t({})), ShapeMismatch);
  EXPECT_THROW(ops::softmax_backward(lab.s, t({2, 3}), t({6}), t({2, 3})), ShapeMismatch);
  EXPECT_THROW(ops::embedding_forward(lab.s, t({4, 3}), t({2, 2}, DType::i32), t({9, 3}), t({1, 3})),
               ShapeMismatch);
  EXPECT_THROW(ops::embedding_backward(lab.s, t({9, 3}), none, t({4, 2}), t({2, 2}, DType::i32)),
               ShapeMismatch);
  EXPECT_THROW(ops::cross_entropy_forward(lab.s, t({2}), t({2, 5}), t({3}, DType::i32)), ShapeMismatch);
  EXPECT_THROW(ops::cross_entropy_backward(lab.s, t({2, 4}), t({2, 5}), t({2}, DType::i32), 1),
               ShapeMismatch);
  EXPECT_THROW(
      ops::cross_entropy_forward_backward(lab.s, t({3}), t({2, 5}), t({2, 5}), t({2}, DType::i32), 1),
      ShapeMismatch);
  lab.s.synchronize();  // nothing was queued
}

TEST(ModelOps, ForeignTokensFailTheStream) {
  for (int32_t token : {-1, 5}) {
    Lab lab;
    Tensor out = lab.empty({2, 3}), table = lab.random({5, 3}, 1);
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  ops::embedding_forward(lab.s, out, lab.ints({1, 2}, {4, token}), table, Tensor());
                  lab.s.synchronize();
                }),
                AllOf(HasSubstr("embedding_forward"), HasSubstr(std::to_string(token)),
                      HasSubstr("position 1"), HasSubstr("[0, 5)")));
  }
}

TEST(ModelOps, ForeignTargetsFailTheStream) {
  Lab lab;
  Tensor losses = lab.empty({1});
  const auto logits = lab.random({1, 3}, 1), targets = lab.ints({1}, {3});
  EXPECT_THROW(
      {
        ops::cross_entropy_forward(lab.s, losses, logits, targets);
        lab.s.synchronize();
      },
      InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
