// Low-rank adaptation: the matrices of a model stay as they are (frozen), and beside each a pair of small ones learns.
// Frozen and trainable parameters live in one unit; gradients, optimizer states and checkpoints have the pairs alone.
// (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.)
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <sherd/sherd.h>
using namespace sherd;

constexpr int64_t kWidth = 32, kRank = 8;

// y = x w^T + (x a^T) b^T. b begins at zero, so that the model begins as it was.
struct Adapted : nn::Module<Adapted> {
  Parameter w = param("weight", {kWidth, kWidth}, normal(0.15f)).freeze();
  Parameter a = param("lora_a.weight", {kRank, kWidth}, normal(0.2f));
  Parameter b = param("lora_b.weight", {kWidth, kRank}, constant(0));
  nn::Var forward(const nn::Var& x) { return nn::add_linear(nn::linear(x, w), nn::linear(x, a), b); }
};

struct Net : nn::Module<Net> {
  std::vector<std::unique_ptr<Adapted>> layers;
  Net() {
    for (int i = 0; i < 2; ++i) {
      layers.push_back(std::make_unique<Adapted>());
      child("layers." + std::to_string(i), *layers.back());
    }
  }
  nn::Var forward(const nn::Var& x) { return (*layers[1])(nn::gelu((*layers[0])(x))); }
};

int main() {
  launch(2, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    Net net;
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh(rank.world, {{"shard", 2}});
    fully_shard(net.layers, mesh);  // each a unit
    fully_shard(net, mesh);
    Optimizer optimizer(net, routing, {});
    int64_t all = 0, trained = 0;
    for (auto& [name, p] : net.named_parameters()) {
      all += p.numel();
      if (p.trainable()) trained += p.numel();
    }
    const bool prints = rank.world->rank() == 0;
    if (prints)
      std::printf("%lld of %lld parameters learn\n", static_cast<long long>(trained),
                  static_cast<long long>(all));

    Tensor x = Tensor::empty(*rank.device, {64, kWidth}, DType::f32, "data");
    Tensor target = Tensor::empty(*rank.device, {64, kWidth}, DType::f32, "data");
    nn::Tape tape;
    for (int step = 0; step <= 200; ++step) {
      ops::random_normal(s, x, x.numel() * (2 * step + rank.world->rank()), 1, "data", 0, 1);
      ops::fill(s, target, 0.5);  // what the pairs shall make of anything
      const nn::Var loss = nn::mean_squared_error(net(tape.input(x)), target);
      tape.backward(loss);
      clip_grad_norm(net, 1);
      optimizer.step(1e-2);
      const float mine = ops::to_floats(s, loss.value())[0];
      if (step % 50 == 0 && prints) std::printf("step %3d: loss %.2f\n", step, mine);
    }
  });
}
