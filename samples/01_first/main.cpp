#include <sherd/sherd.h>

#include <cstdio>
using namespace sherd;

struct Mlp : nn::Module<Mlp> {                                 // only the forward is written
  Parameter up = param("up.weight", {128, 64}, normal(0.1f));  // described, not allocated
  Parameter down = param("down.weight", {64, 128}, normal(0.1f));
  nn::Var forward(const nn::Var& x) { return nn::linear(nn::linear_gelu(x, up), down); }
};

int main() {
  launch(4, [](RankContext& rank) {  // four ranks, here threads of this process
    Mlp model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 4}}));  // allocates: a quarter on each rank
    Optimizer optimizer(model, routing, {});
    Stream& stream = rank.device->compute();
    Tensor x = Tensor::empty(*rank.device, {32, 64}, DType::f32, "data");
    nn::Tape tape;
    for (int step = 0; step <= 200; ++step) {
      ops::random_normal(stream, x, x.numel() * (4 * step + rank.world->rank()), 1, "data", 0, 1);
      nn::Var y = model(tape.input(x));             // unshards the weights, computes, reshards
      nn::Var loss = nn::mean_squared_error(y, x);  // target: the identity
      tape.backward(loss);                          // reduce-scatters the gradients
      clip_grad_norm(model, 1);
      optimizer.step(3e-3);
      const float mine = ops::to_floats(stream, loss.value())[0];  // waits for the stream
      if (step % 50 == 0 && rank.world->rank() == 0) std::printf("step %3d: loss %.2f\n", step, mine);
    }
  });
}
