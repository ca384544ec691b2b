#include <sherd/sherd.h>

#include <cstdio>
using namespace sherd;

struct Linear : Module {                                  // y = x W^T
  Parameter w = param("weight", {64, 64}, normal(0.1f));  // described, not allocated
  Tensor x;                                               // kept for backward
  Tensor forward(const Tensor& in) override {
    x = in;
    Tensor y = Tensor::empty(x.device(), x.shape(), DType::f32, "activations");
    ops::gemm(x.device().compute(), y, x, false, w.data(), true);
    return y;
  }
  Tensor backward(const Tensor& dy) override {
    ops::gemm(x.device().compute(), w.grad(), dy, true, x, false, 1, 1);  // dW += dy^T x
    return {};                                                            // nobody wants dx
  }
};

int main() {
  launch(4, [](RankContext& rank) {  // four ranks, here threads of this process
    Linear model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 4}}));  // allocates: 16 rows on each rank
    Optimizer optimizer(model, routing, {});
    Stream& stream = rank.device->compute();
    Tensor x = Tensor::empty(*rank.device, {32, 64}, DType::f32, "data");
    for (int step = 0; step <= 200; ++step) {
      ops::random_normal(stream, x, x.numel() * (4 * step + rank.world->rank()), 1, "data", 0, 1);
      Tensor y = model(x);                // gathers W, computes, gives W back
      ops::scaled_add(stream, y, -1, x);  // the gradient of |y - x|^2 / 2: W shall become the identity
      model.run_backward(y);              // adds dW up over the ranks; each keeps that of its rows
      const auto gradients = clip_grad_norm(model, 100);
      optimizer.step(1e-2);
      stream.synchronize();
      if (step % 50 == 0 && rank.world->rank() == 0)
        std::printf("step %3d: gradient norm %.1f\n", step, gradients->norm);
    }
  });
}
