// One thread and two give the same bits. Sizes are large enough for two threads to be used.
#include <sherd/nn/ops.h>

#include "kernels/threads.h"

namespace sherd::test {
namespace {

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
        Tensor lse = lab.empty({batch, heads, seq}), dqkv = lab.empty(qkv.shape(), t),
               most = lab.full({heads}, -1e9);
        ops::attention_forward(lab.s, out, lse, qkv, batch, heads, kv_heads, most);
        ops::attention_backward(lab.s, dqkv, lab.random(out.shape(), 2, t), out, lse, qkv, batch, heads,
                                kv_heads);
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

TEST_F(Threads, StridedAndReduction) {
  for (DType t : kTypes) {
    expect_same_bits([t](Lab& lab) {
      const Tensor x = lab.random({7, 83, 301}, 1, t), row = lab.random({301}, 2, t);
      const Tensor turned = lab.empty({301, 7, 83}, t), sum = lab.empty(x.shape(), t);
      ops::map(lab.s, MapFunction::tanh, ops::dense(turned), {ops::permuted(ops::dense(x), {2, 0, 1})});
      ops::map(lab.s, MapFunction::divide, ops::dense(sum), {x, ops::broadcast(ops::dense(row), x.shape())});
      const Tensor all = lab.empty({1}), columns = lab.empty({83, 301});
      ops::reduce_dim(lab.s, Reduction::sum, all, x, 1, x.numel(), 1);
      ops::reduce_dim(lab.s, Reduction::sum, columns, x, 1, 7, 83 * 301);
      lab.s.synchronize();  // before the temporaries' memory is reused
      return Outputs{turned, sum, all, columns};
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

}  // namespace
}  // namespace sherd::test
