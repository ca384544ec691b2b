// Attention sinks: beside attention to one more key, and beside the reference.
#include <sherd/nn/kernels/attention/cached_attention.h>
#include <sherd/nn/ops.h>

#include "kernels/lab.h"

namespace sherd::test {
namespace {

struct SinksCase {
  int64_t batch, seq, heads, dim;
  DType dtype = DType::f32;

  Shape rows() const { return {batch * seq, heads * dim}; }
  Shape sums() const { return {batch, heads, seq}; }
};

const SinksCase kSinksCases[] = {{1, 1, 1, 1},
                                 {2, 7, 3, 5},
                                 {1, 130, 4, 64},
                                 {3, 0, 2, 4},
                                 {2, 7, 3, 5, DType::bf16},
                                 {1, 90, 4, 64, DType::bf16}};

Floats sinks_passes(Lab& lab, const SinksCase& c) {
  const Tensor out = lab.random(c.rows(), 1, c.dtype), lse = lab.random(c.sums(), 2, DType::f32, 3);
  const Tensor sinks = lab.random({c.heads}, 3), dsinks = lab.random({c.heads}, 4);
  ops::sinks_forward(lab.s, out, lse, sinks);
  ops::sinks_backward(lab.s, dsinks, lab.random(c.rows(), 5, c.dtype), out, lse, sinks);
  return lab.floats({out, lse, dsinks});
}

// Values of up to 4.5 times a factor below 1, rounded once. dsinks is a sum over rows of a dot product of dim terms, of some
// sqrt(rows * dim) with an error of 2^-24 of each term; in bf16 of products that begin with out, which may be rounded to a
// neighbouring value: half an epsilon of each.
double sinks_tolerance(const SinksCase& c) {
  const double terms = std::sqrt(static_cast<double>(c.batch * c.seq * c.dim));
  return c.dtype == DType::f32 ? 1e-5 * (1 + terms) : epsilon(c.dtype) * (4.5 + terms);
}

TEST(Sinks, BothPassesMatchReference) {
  for (const SinksCase& c : kSinksCases)
    expect_same_as_reference(
        [&](Lab& lab) { return sinks_passes(lab, c); }, sinks_tolerance(c),
        "seq " + std::to_string(c.seq) + " dim " + std::to_string(c.dim) + " " + name_of(c.dtype));
}

// One head of width 2 with two positions: a third key whose score is the sink, and whose value is 0.
TEST(Sinks, AreOneMoreKeyWhoseValueIsZero) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    const Tensor qkv = lab.tensor({2, 6}, {1, 0, 2, 0, 4, 8, 1, 0, 3, 0, 6, 2});
    const Tensor out = lab.empty({2, 2}), lse = lab.empty({1, 1, 2}), sinks = lab.tensor({1}, {0.5f});
    ops::attention_forward(lab.s, out, lse, qkv, 1, 1);
    ops::sinks_forward(lab.s, out, lse, sinks);
    const double a = std::exp(2 / std::sqrt(2.0)), b = std::exp(3 / std::sqrt(2.0)), sink = std::exp(0.5);
    const auto f = [](double x) { return static_cast<float>(x); };
    expect_close(lab.floats(out),
                 {f(4 * a / (a + sink)), f(8 * a / (a + sink)), f((4 * a + 6 * b) / (a + b + sink)),
                  f((8 * a + 2 * b) / (a + b + sink))},
                 1e-5);
    expect_close(lab.floats(lse), {f(std::log(a + sink)), f(std::log(a + b + sink))}, 1e-6);
    const Tensor k = lab.tensor({2, 2}, {2, 0, 3, 0}), v = lab.tensor({2, 2}, {4, 8, 6, 2}),
                 last = lab.empty({1, 2});
    ops::cached_attention(lab.s, last, qkv.rows(1, 2), k, v, 1, 1, 1, 0, sinks);
    expect_close(lab.floats(last), {f((4 * a + 6 * b) / (a + b + sink)), f((8 * a + 2 * b) / (a + b + sink))},
                 1e-5);
  }
}

// Loss of packed heads, all in f64: the sum of dout * out, with a sink in each softmax.
double loss_with_sinks(const std::vector<double>& qkv, const std::vector<double>& dout,
                       const std::vector<double>& sinks, int64_t seq, int64_t dim) {
  const auto heads = static_cast<int64_t>(sinks.size());
  const auto at = [&](int64_t t, int64_t part, int64_t h, int64_t d) {
    return qkv[static_cast<size_t>(((t * 3 + part) * heads + h) * dim + d)];
  };
  double loss = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < seq; ++i) {
      double sum = std::exp(sinks[static_cast<size_t>(h)]), weighted = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double score = 0, value = 0;
        for (int64_t d = 0; d < dim; ++d) {
          score += at(i, 0, h, d) * at(j, 1, h, d);
          value += dout[static_cast<size_t>((i * heads + h) * dim + d)] * at(j, 2, h, d);
        }
        const double e = std::exp(score / std::sqrt(static_cast<double>(dim)));
        sum += e;
        weighted += e * value;
      }
      loss += weighted / sum;
    }
  return loss;
}

// With attention's backward, which gets what the forward of sinks made of out and lse.
TEST(Sinks, GradientsAreThoseOfTheWholeSoftmax) {
  const int64_t seq = 5, heads = 2, dim = 3;
  std::vector<double> qkv = doubles(seq * 3 * heads * dim, 1), dout = doubles(seq * heads * dim, 2);
  std::vector<double> out(dout.size()), dqkv(qkv.size()), sinks{0.25, -0.75};
  std::vector<float> lse(static_cast<size_t>(heads * seq)), narrow{0.25f, -0.75f}, dsinks(2);
  AttentionArgs a{.batch = 1, .seq = seq, .heads = heads, .kv_heads = heads, .head_dim = dim};
  a.qkv = ref(qkv), a.out = ref(out), a.lse = lse.data(), a.dout = ref(dout), a.dqkv = ref(dqkv);
  SinksArgs s{.batch = 1, .seq = seq, .heads = heads, .head_dim = dim, .out = ref(out), .dout = ref(dout)};
  s.lse = lse.data(), s.sinks = narrow.data(), s.dsinks = dsinks.data();
  AttentionKernels::reference()->attention_forward(no_context(), a);
  SinksKernels::reference()->sinks_forward(no_context(), s);
  AttentionKernels::reference()->attention_backward(no_context(), a);
  SinksKernels::reference()->sinks_backward(no_context(), s);
  const auto loss = [&] { return loss_with_sinks(qkv, dout, sinks, seq, dim); };
  expect_gradient(qkv, dqkv, loss, 3e-6);  // lse is kept in fp32
  expect_gradient(sinks, {dsinks.begin(), dsinks.end()}, loss, 3e-6);
}

TEST(Sinks, SayWhatDoesNotFit) {
  Lab lab("reference");
  const Tensor out = lab.empty({6, 8}), lse = lab.empty({1, 2, 6});
  EXPECT_THROW(ops::sinks_forward(lab.s, out, lse, lab.empty({3})), ShapeMismatch);
  EXPECT_THROW(ops::sinks_forward(lab.s, lab.empty({5, 8}), lse, lab.empty({2})), ShapeMismatch);
  EXPECT_THROW(ops::sinks_backward(lab.s, lab.empty({2}), lab.empty({6, 6}), out, lse, lab.empty({2})),
               ShapeMismatch);
}

}  // namespace
}  // namespace sherd::test
