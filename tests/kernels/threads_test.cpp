// One thread and two give the same bits for every operation but gemm (whose product the library may split
// otherwise). Sizes are large enough for two threads to be used.
#include <sherd/kernels/squares/exact_sum.h>

#include "lab.h"

namespace sherd::test {
namespace {

class Threads : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the OpenMP runtime is not instrumented, so its barriers look like races";
#endif
  }

  template <class F>
  void expect_same_bits(F experiment) {
    Lab one("cpu", 1), two("cpu", 2);
    const std::vector<Tensor> a = experiment(one), b = experiment(two);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      auto bytes = [&](Lab& lab, const Tensor& t) {
        std::vector<char> v(static_cast<size_t>(t.nbytes()));
        ops::copy_to_host(lab.s, v.data(), t);
        return v;
      };
      EXPECT_TRUE(bytes(one, a[i]) == bytes(two, b[i])) << "output " << i;
    }
  }
};

using Outputs = std::vector<Tensor>;
constexpr DType kTypes[] = {DType::f32, DType::bf16};

TEST_F(Threads, Elementwise) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const int64_t n = 50003;
      Tensor x = lab.random({n}, 1, t), y = lab.random({n}, 2, t), f = lab.random({n}, 3),
             h = lab.empty({n}, DType::f16);
      ops::gelu_backward(lab.s, x, x, y);
      ops::gelu_forward(lab.s, y, y);
      ops::add(lab.s, x, x, y);
      ops::scale(lab.s, x, 0.7f);
      ops::scaled_add(lab.s, f, 0.3f, x);
      ops::scale_and_add(lab.s, f, 0.3f, 0.9f, f);
      ops::cast(lab.s, h, x);
      return Outputs{x, y, f, h, lab.full({n}, 0.1, t)};
    });
  }
}

TEST_F(Threads, Norm) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const int64_t rows = 301, cols = 203;
      Tensor x = lab.random({rows, cols}, 1, t), w = lab.random({cols}, 2, t),
             dy = lab.random({rows, cols}, 3, t);
      Tensor y = lab.empty({rows, cols}, t), rstd = lab.empty({rows}), dw = lab.random({cols}, 4);
      ops::rms_norm_forward(lab.s, y, rstd, x, w, 1e-5f);
      ops::rms_norm_backward(lab.s, x, dw, dy, x, w, rstd);
      return Outputs{y, rstd, x, dw};
    });
  }
}

TEST_F(Threads, Attention) {
  for (DType t : kTypes) {
    for (int64_t kv_heads : {6, 3, 1}) {
      expect_same_bits([&](Lab& lab) {
        const int64_t batch = 3, seq = 75, heads = 6, dim = 20;
        Tensor qkv = lab.random({batch * seq, (heads + 2 * kv_heads) * dim}, 1, t),
               out = lab.empty({batch * seq, heads * dim}, t);
        Tensor lse = lab.empty({batch, heads, seq}), dqkv = lab.empty(qkv.shape(), t), most = lab.full({heads}, -1e9);
        ops::attention_forward(lab.s, out, lse, qkv, batch, heads, kv_heads, most);
        ops::attention_backward(lab.s, dqkv, lab.random(out.shape(), 2, t), out, lse, qkv, batch, heads, kv_heads);
        lab.s.synchronize();  // before the temporary's memory is reused
        return Outputs{out, lse, dqkv, most};
      });
    }
  }
}

TEST_F(Threads, Rope) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const int64_t batch = 2, seq = 300, heads = 3, dim = 32;
      Tensor x = lab.random({batch * seq, heads * dim + 7}, 1, t), y = lab.empty(x.shape(), t);
      ops::rope(lab.s, y, x, lab.tensor({dim / 2}, ops::rope_frequencies(dim)), batch, heads);
      lab.s.synchronize();  // before the temporary's memory is reused
      return Outputs{y};
    });
  }
}

TEST_F(Threads, EmbeddingAndLoss) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const int64_t seq = 150, width = 200, vocab = 400;
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < 2 * seq; ++i) ids.push_back(static_cast<int32_t>(i * i % vocab));
      Tensor tokens = lab.ints({2, seq}, ids), out = lab.empty({2 * seq, width}, t),
             table = lab.random({vocab, width}, 1, t);
      Tensor positions = lab.random({seq, width}, 2, t), dtable = lab.random({vocab, width}, 3);
      Tensor dpositions = lab.random({seq, width}, 4);
      ops::embedding_forward(lab.s, out, tokens, table, positions);
      ops::embedding_backward(lab.s, dtable, dpositions, out, tokens);
      Tensor logits = lab.random({2 * seq, vocab}, 5, t), losses = lab.empty({2 * seq});
      ops::cross_entropy_forward(lab.s, losses, logits, tokens);
      Tensor gradient = lab.empty({2 * seq, vocab}, t), losses2 = lab.empty({2 * seq});
      ops::cross_entropy_forward_backward(lab.s, losses2, gradient, logits, tokens, 0.01f);
      ops::cross_entropy_backward(lab.s, logits, logits, tokens, 0.01f);
      return Outputs{out, dtable, dpositions, losses, logits, losses2, gradient};
    });
  }
}

TEST_F(Threads, Optimizers) {
  expect_same_bits([](Lab& lab) {
    const int64_t n = 70001;
    Tensor w = lab.random({n}, 1), m = lab.random({n}, 2), v = lab.full({n}, 0.5), g = lab.random({n}, 3);
    Tensor random = lab.empty({n});
    ops::adamw(lab.s, w, m, v, g, {});
    ops::random_normal(lab.s, random, 5, 1, "w", 0, 1);
    Tensor squares = lab.full({ExactSum::kWords}, 0, DType::i64), sum = lab.full({1}, 0, DType::f64);
    for (int i = 0; i < 3; ++i) ops::accumulate_squares(lab.s, squares, w);
    ops::accumulate_squares(lab.s, squares, lab.random({200001}, 4, DType::f32, 1e10f));
    ops::accumulate_sum(lab.s, sum, w);
    lab.s.synchronize();
    return Outputs{w, m, v, random, squares, sum};
  });
}

TEST_F(Threads, ProductsAgreeToRounding) {
  Lab one("cpu", 1), two("cpu", 2);
  auto run = [](Lab& lab) {
    Tensor x = lab.random({96, 130}, 1), gram = lab.empty({96, 96});
    ops::gemm(lab.s, gram, x, false, x, true);
    return lab.floats(gram);
  };
  expect_close(run(two), run(one), 1e-4);
}

}  // namespace
}  // namespace sherd::test
