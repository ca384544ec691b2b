// A model of its own, whose blocks have a hand-written backward: Muon updates the hidden matrices, AdamW the
// embedding and the head. It learns to add modulo 16. Each block is a unit, gathered and reduced by itself.
//
//   sample_02_own_model_muon [zero0, zero1, zero2 or zero3]     prints the same whatever the strategy
#include <array>
#include <cstdio>
#include <vector>

#include <sherd/sherd.h>
using namespace sherd;

constexpr int kVocab = 16, kTable = 32, kWidth = 2 * kTable, kHidden = 128, kBatch = 32;

Tensor make(const Tensor& like, Shape shape) {
  return Tensor::empty(like.device(), std::move(shape), DType::f32, "activations");
}

// dW += dy^T x, where y = x W^T. The first product of a step replaces what the memory holds (beta is 0 then).
void weight_backward(Stream& s, const Parameter& w, const Tensor& dy, const Tensor& x) {
  const GradTarget dw = w.grad_for_overwrite();
  ops::gemm(s, dw.grad, dy, true, x, false, 1, dw.beta);
}

// y = x + gelu(x up^T) down^T, one operation on the tape. Its backward owns what it reads: the input, and what
// is before and after gelu.
struct Block : nn::Module<Block> {
  Parameter up = param("up.weight", {kHidden, kWidth}, normal(0.1f));
  Parameter down = param("down.weight", {kWidth, kHidden}, normal(0.1f));
  nn::Var forward(const nn::Var& in) {
    const Tensor x = in.value(), before = make(x, {kBatch, kHidden}), after = make(x, {kBatch, kHidden});
    return nn::function(
        {in},
        [&](Stream& s) {
          ops::gemm_gelu(s, after, before, x, false, up.data(), true);
          Tensor y = make(x, {kBatch, kWidth});
          ops::gemm_add(s, y, after, false, down.data(), true, x);
          return y;
        },
        [=, this](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
          const Tensor dy = call.output().tensor(x);
          weight_backward(s, down, dy, after);
          const Tensor dbefore = make(x, {kBatch, kHidden}), dx = make(x, {kBatch, kWidth});
          ops::gemm_gelu_backward(s, dbefore, dy, false, down.data(), false, before);
          weight_backward(s, up, dbefore, x);
          ops::gemm_add(s, dx, dbefore, false, up.data(), false, dy);
          return {dx};
        },
        {up, down});  // the parameters that it trains
  }
};

// Two tokens -> the losses of predicting their sum. The functions of nn/ have their derivatives with them.
struct Adder : nn::Module<Adder> {
  Parameter token = param("tok.weight", {kVocab, kTable}, normal(0.5f));
  std::array<Block, 2> blocks;
  Parameter head = param("head.weight", {kVocab, kWidth}, normal(0.1f));
  Adder() {
    child("blocks.0", blocks[0]);  // full names: blocks.0.up.weight and so on
    child("blocks.1", blocks[1]);
  }
  nn::CrossEntropy forward(const nn::Var& tokens, const Tensor& targets) {  // i32 [batch, 2], i32 [batch]
    nn::Var x = nn::view(nn::embedding(tokens, token), {kBatch, kWidth});
    for (Block& b : blocks) x = b(x);  // called, not b.forward(x): the call unshards the unit around it
    return nn::linear_cross_entropy(x, head, targets, 1.0f / kBatch);
  }
};

int main(int argc, char** argv) {
  const Strategy strategy = parse_strategy(argc > 1 ? argv[1] : "zero3");
  launch(4, [&](RankContext& rank) {
    Adder model;
    const Routing routing = route(model);  // by names and shapes; rules override it
    if (rank.world->rank() == 0) std::printf("%s\n", routing.format().c_str());
    const DeviceMesh mesh(rank.world, {{"shard", 4}});
    fully_shard(model.blocks, mesh, {.strategy = strategy});  // each a unit
    fully_shard(model, mesh, {.strategy = strategy});         // the root comes last
    Optimizer optimizer(model, routing, {.weight_decay = 0.01});
    Stream& s = rank.device->compute();
    nn::Tape tape;
    for (int step = 0; step <= 60; ++step) {
      std::vector<int> pairs, sums;
      for (int i = 0; i < kBatch; ++i) {  // a step has half of the 256 pairs, each rank a quarter of these
        const int at = (4 * step + rank.world->rank()) * kBatch + i, a = at * 77 % 256 / 16, b = at * 77 % 16;
        pairs.insert(pairs.end(), {a, b});
        sums.push_back((a + b) % 16);
      }
      const Tensor tokens = Tensor::empty(*rank.device, {kBatch, 2}, DType::i32, "data");
      ops::copy_from_host(s, tokens, pairs.data(), tokens.nbytes());
      const Tensor targets = Tensor::empty(*rank.device, {kBatch}, DType::i32, "data");
      ops::copy_from_host(s, targets, sums.data(), targets.nbytes());
      const auto [objective, losses] = model(tape.input(tokens), targets);
      tape.backward(objective);
      clip_grad_norm(model, 1);
      optimizer.step(1e-2);
      rank.world->all_reduce(s, losses);
      double loss = 0;
      for (const float l : ops::to_floats(s, losses)) loss += l / (4 * kBatch);
      if (rank.world->rank() == 0 && step % 10 == 0) std::printf("step %2d: loss %.2f\n", step, loss);
    }
  });
}
