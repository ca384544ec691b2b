// The verbs of a unit by hand, as another module system would call them, in a training loop of its own with
// gradient accumulation and clipping. Nothing here calls a module: modules only describe parameters.
#include <cstdio>
#include <string>
#include <vector>

#include <sherd/sherd.h>

using namespace sherd;

constexpr int64_t kWidth = 64, kRows = 16;
constexpr int kLayers = 4, kMicrobatches = 3, kRanks = 4;

// Describe parameters, under the full names that checkpoints and messages use, and compute nothing.
struct Layer : ModuleBase {
  Parameter w = param("weight", {kWidth, kWidth}, normal(0.1f));
};
struct Net : ModuleBase {
  Layer layers[kLayers];
  Net() {
    for (int i = 0; i < kLayers; ++i) child("layers." + std::to_string(i), layers[i]);
  }
};

// y = x + x W^T and its gradients. Both read w.data(), which is there while the layer's unit is unsharded.
Tensor apply(const Parameter& w, const Tensor& x) {
  Tensor y = Tensor::empty(x.device(), x.shape(), DType::f32, "activations");
  ops::gemm_add(x.device().compute(), y, x, false, w.data(), true, x);
  return y;
}
Tensor apply_backward(const Parameter& w, const Tensor& x, const Tensor& dy) {
  Stream& s = x.device().compute();
  ops::gemm(s, w.grad(), dy, true, x, false, 1, 1);  // adds to what is there, at first zeros
  Tensor dx = Tensor::empty(x.device(), x.shape(), DType::f32, "activations");
  ops::gemm_add(s, dx, dy, false, w.data(), false, dy);
  return dx;
}

// Leaves in x what the layers make of it. Without gradients the single verbs do, and the prefetch is ours.
void evaluate(Net& net, Tensor& x) {
  net.layers[0].unit()->unshard();  // queues the gather on a stream of its own
  for (int i = 0; i < kLayers; ++i) {
    if (i + 1 < kLayers) net.layers[i + 1].unit()->unshard();  // beside the arithmetic of this one
    Unit& unit = *net.layers[i].unit();
    unit.wait();  // the compute stream waits for the gather, the host for nothing
    x = apply(net.layers[i].w, x);
    unit.reshard();  // the memory is free when the arithmetic queued so far is done
  }
}

// One microbatch. After an exception between pre_ and post_ the cancel_ verb takes the place of post_.
void train(Net& net, const Tensor& input) {
  Unit& root = *net.unit();
  Stream& s = input.device().compute();
  std::vector<Tensor> x{input};             // the input of each layer, and the last one's output
  root.pre_forward(ForwardKind::recorded);  // a backward will come
  for (Layer& layer : net.layers) {
    // Unshards and waits; prefetches the unit after it, if that is known.
    layer.unit()->pre_forward(ForwardKind::recorded);
    x.push_back(apply(layer.w, x.back()));
    layer.unit()->post_forward();  // reshard
  }
  root.post_forward();

  Tensor dy = x.back();
  ops::scaled_add(s, dy, -0.5f, input);  // loss |y - x/2|^2 / 2
  ops::scale(s, dy, 1.0f / (kRows * kMicrobatches));
  root.pre_backward();
  for (int i = kLayers; i-- > 0;) {
    Layer& layer = net.layers[i];
    layer.unit()->pre_backward();  // unshards again, and opens the gradient
    dy = apply_backward(layer.w, x[static_cast<size_t>(i)], dy);
    layer.unit()->post_backward();  // reduces it on the reduce stream, beside the next layer's backward
  }
  root.post_backward();  // after the last microbatch the compute stream waits for all reductions
}

int main() {
  launch(kRanks, [](RankContext& rank) {
    Net net;
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh(rank.world, {{"shard", kRanks}});
    for (Layer& layer : net.layers) fully_shard(layer, mesh);
    fully_shard(net, mesh);
    Optimizer optimizer(net, routing, {});

    Stream& s = rank.device->compute();
    Tensor x = Tensor::empty(*rank.device, {kRows, kWidth}, DType::f32, "data");
    for (int64_t step = 0; step <= 100; ++step) {
      for (int64_t micro = 0; micro < kMicrobatches; ++micro) {
        const int64_t batch = (step * kMicrobatches + micro) * kRanks + rank.world->rank();
        ops::random_normal(s, x, batch * x.numel(), 1, "data", 0, 1);
        runtime_of(net).set_last_microbatch(micro + 1 == kMicrobatches);  // only then are gradients final
        train(net, x);
      }
      const auto gradients = clip_grad_norm(net, 1);
      optimizer.step(3e-3);

      Tensor y = x;
      evaluate(net, y);
      ops::scaled_add(s, y, -0.5f, x);
      double loss = 0;
      for (const float e : ops::to_floats(s, y)) loss += e * e / (2 * kRows);  // waits for the compute stream
      if (step % 20 == 0 && rank.world->rank() == 0)
        std::printf("step %3d: gradient norm %.1f, loss on rank 0 afterwards %.3g\n", static_cast<int>(step),
                    gradients->norm, loss);
    }
  });
}
