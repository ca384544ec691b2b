#include "lab.h"

namespace sherd::test {
namespace {

struct Case {
  int64_t batch, seq, heads, dim;
  DType dtype = DType::f32;
  float spread = 1;  // of qkv
};

std::string name(const Case& c) {
  return "batch " + std::to_string(c.batch) + " seq " + std::to_string(c.seq) + " heads " +
         std::to_string(c.heads) + " dim " + std::to_string(c.dim) + " " + name_of(c.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType t : {DType::f32, DType::bf16}) {
    for (auto [b, s, h, d] : std::initializer_list<std::array<int64_t, 4>>{{1, 1, 1, 1},
                                                                           {1, 2, 1, 3},
                                                                           {2, 7, 3, 5},
                                                                           {1, 63, 2, 8},
                                                                           {1, 64, 1, 16},
                                                                           {2, 65, 2, 12},
                                                                           {1, 150, 2, 48}})
      all.push_back({b, s, h, d, t});
  }
  all.push_back({1, 0, 2, 4});
  all.push_back({1, 70, 1, 8, DType::f32, 30});  // scores in the hundreds: softmax saturates
  return all;
}

TEST(Attention, FirstRowCopiesItsValueAndEqualKeysAverage) {
  for (const char* kernels : {kFast, "reference"}) {
    Lab lab(kernels);
    // Two positions, one head of width 2; both keys are zero, so row 1 averages the values.
    Tensor qkv = lab.tensor({2, 6}, {1, 2, 0, 0, 10, 20, 3, 4, 0, 0, 30, 60});
    Tensor out = lab.empty({2, 2}), lse = lab.empty({1, 1, 2});
    ops::attention_forward(lab.s, out, lse, qkv, 1, 1);
    expect_close(lab.floats(out), {10, 20, 20, 40}, 1e-6);
    expect_close(lab.floats(lse), {0, std::log(2.0f)}, 1e-6);
  }
}

TEST(Attention, ForwardMatchesReference) {
  for (const Case& c : cases()) {
    expect_same_as_reference(
        [&](Lab& lab) {
          Tensor qkv = lab.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread);
          Tensor out = lab.empty({c.batch * c.seq, c.heads * c.dim}, c.dtype),
                 lse = lab.empty({c.batch, c.heads, c.seq});
          ops::attention_forward(lab.s, out, lse, qkv, c.batch, c.heads);
          Floats result = lab.floats(out), sums = lab.floats(lse);
          result.insert(result.end(), sums.begin(), sums.end());
          return result;
        },
        (c.dtype == DType::f32 ? 1e-5 : epsilon(c.dtype)) * c.spread, name(c));
  }
}

TEST(Attention, BackwardMatchesReference) {
  for (const Case& c : cases()) {
    // The same forward results for both, so that only backward is compared.
    Lab lab("reference");
    Tensor out = lab.empty({c.batch * c.seq, c.heads * c.dim}, c.dtype),
           lse = lab.empty({c.batch, c.heads, c.seq});
    ops::attention_forward(lab.s, out, lse,
                           lab.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread), c.batch,
                           c.heads);
    const Floats out_values = lab.floats(out), lse_values = lab.floats(lse);
    expect_same_as_reference(
        [&](Lab& x) {
          Tensor qkv = x.random({c.batch * c.seq, 3 * c.heads * c.dim}, 1, c.dtype, c.spread);
          Tensor dqkv = x.empty(qkv.shape(), c.dtype);
          ops::attention_backward(x.s, dqkv, x.random(out.shape(), 2, c.dtype),
                                  x.tensor(out.shape(), out_values, c.dtype),
                                  x.tensor(lse.shape(), lse_values), qkv, c.batch, c.heads);
          return x.floats(dqkv);
        },
        (c.dtype == DType::f32 ? 2e-5 : epsilon(c.dtype)) * c.spread * c.spread, name(c));
  }
}

TEST(Attention, ReferenceBackwardIsTheGradient) {
  const int64_t batch = 2, seq = 4, heads = 2, dim = 3;
  std::vector<double> qkv = doubles(batch * seq * 3 * heads * dim, 1),
                      dout = doubles(batch * seq * heads * dim, 2);
  std::vector<double> out(dout.size()), dqkv(qkv.size());
  std::vector<float> lse(static_cast<size_t>(batch * heads * seq));
  AttentionArgs a{
      .batch = batch, .seq = seq, .heads = heads, .head_dim = dim, .qkv = ref(qkv), .out = ref(out)};
  a.lse = lse.data();
  a.dout = ref(dout);
  a.dqkv = ref(dqkv);
  auto loss = [&] {
    reference_kernels().attention_forward(no_context(), a);
    return dot(out, dout);
  };
  loss();
  reference_kernels().attention_backward(no_context(), a);
  expect_gradient(qkv, dqkv, loss, 3e-6);  // lse is kept in fp32
}

TEST(Attention, IsCausal) {
  Lab lab;
  const int64_t seq = 130, cut = 70;
  Floats values = normal(seq * 3 * 8, 1);
  auto outputs = [&] {
    Tensor out = lab.empty({seq, 8}), lse = lab.empty({1, 2, seq});
    ops::attention_forward(lab.s, out, lse, lab.tensor({seq, 24}, values), 1, 2);
    Floats o = lab.floats(out);
    o.resize(cut * 8);
    return bits(o);
  };
  const auto before = outputs();
  for (size_t i = cut * 24; i < values.size(); ++i) values[i] += 5;
  EXPECT_EQ(outputs(), before);
}

}  // namespace
}  // namespace sherd::test
