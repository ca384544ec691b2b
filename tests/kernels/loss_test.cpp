#include "lab.h"

namespace sherd::test {
namespace {

std::vector<int32_t> targets(int64_t rows, int64_t vocab) {
  std::vector<int32_t> t;
  for (int64_t i = 0; i < rows; ++i) t.push_back(static_cast<int32_t>((i * 7 + 1) % vocab));
  return t;
}

Floats forward(Lab& lab, int64_t rows, int64_t vocab, DType t, float spread) {
  Tensor losses = lab.empty({rows});
  ops::cross_entropy_forward(lab.s, losses, lab.random({rows, vocab}, 1, t, spread),
                             lab.ints({rows}, targets(rows, vocab)));
  return lab.floats(losses);
}

Floats backward(Lab& lab, int64_t rows, int64_t vocab, DType t, float spread, bool in_place) {
  Tensor logits = lab.random({rows, vocab}, 1, t, spread),
         d = in_place ? logits : lab.empty({rows, vocab}, t);
  ops::cross_entropy_backward(lab.s, d, logits, lab.ints({rows}, targets(rows, vocab)), 0.25f);
  return lab.floats(d);
}

TEST(CrossEntropy, KnownValues) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // Probabilities 1/4, 3/4 and, far from overflow's edge, 1.
    Tensor logits = lab.tensor({2, 2}, {0, std::log(3.0f), 1000, -1000}), losses = lab.empty({2});
    Tensor t = lab.ints({2}, {0, 0}), d = lab.empty({2, 2});
    ops::cross_entropy_forward(lab.s, losses, logits, t);
    expect_close(lab.floats(losses), {std::log(4.0f), 0}, 1e-6);
    ops::cross_entropy_backward(lab.s, d, logits, t, 2);
    expect_close(lab.floats(d), {-1.5f, 1.5f, 0, 0}, 1e-6);
  }
}

TEST(CrossEntropy, MatchesReference) {
  for (DType t : {DType::f32, DType::bf16}) {
    for (float spread : {1.0f, 40.0f}) {
      for (auto [rows, vocab] : std::initializer_list<std::array<int64_t, 2>>{
               {0, 5}, {1, 1}, {3, 7}, {5, 8}, {17, 33}, {64, 257}, {2, 5001}}) {
        const int64_t r = rows, v = vocab;
        expect_same_as_reference([&](Lab& lab) { return forward(lab, r, v, t, spread); }, 3e-6);
        for (bool in_place : {false, true})
          expect_same_as_reference([&](Lab& lab) { return backward(lab, r, v, t, spread, in_place); },
                                   t == DType::f32 ? 1e-6 : epsilon(t) / 4);
      }
    }
  }
}

TEST(CrossEntropy, BothAtOnceGiveTheBitsOfEach) {
  for (const char* kernels : {"cpu", "reference"}) {
    for (DType t : {DType::f32, DType::bf16}) {
      for (auto [rows, vocab] : std::initializer_list<std::array<int64_t, 2>>{
               {0, 5}, {1, 1}, {3, 7}, {17, 33}, {9, 256}, {2, 5001}}) {
        for (bool in_place : {false, true}) {
          Lab lab(kernels);
          const Tensor logits = lab.random({rows, vocab}, 1, t, 4), losses = lab.empty({rows}),
                       d = in_place ? logits : lab.empty({rows, vocab}, t);
          ops::cross_entropy_forward_backward(lab.s, losses, d, logits,
                                              lab.ints({rows}, targets(rows, vocab)), 0.25f);
          EXPECT_EQ(bits(lab.floats(losses)), bits(forward(lab, rows, vocab, t, 4))) << kernels << vocab;
          EXPECT_EQ(bits(lab.floats(d)), bits(backward(lab, rows, vocab, t, 4, false))) << kernels << vocab;
        }
      }
    }
  }
}

TEST(CrossEntropy, ReferenceBackwardIsTheGradient) {
  const int64_t rows = 4, vocab = 6;
  std::vector<double> logits = doubles(rows * vocab, 1), d(logits.size());
  const std::vector<int32_t> t = targets(rows, vocab);
  CrossEntropyArgs a{
      .rows = rows, .vocab = vocab, .logits = ref(logits), .dlogits = ref(d), .targets = t.data()};
  a.scale = 1;
  reference_kernels().cross_entropy_backward(no_context(), a);
  // The losses are fp32, which limits central differences: a wider step and a looser bound than elsewhere.
  std::vector<float> losses(rows);
  a.losses = losses.data();
  const double h = 1e-2;
  for (size_t i = 0; i < logits.size(); ++i) {
    double change = 0;
    for (double side : {1.0, -1.0}) {
      const double kept = logits[i];
      logits[i] += side * h;
      reference_kernels().cross_entropy_forward(no_context(), a);
      for (float l : losses) change += side * double(l);
      logits[i] = kept;
    }
    EXPECT_NEAR(d[i], change / (2 * h), 1e-4) << i;
  }
}

}  // namespace
}  // namespace sherd::test
