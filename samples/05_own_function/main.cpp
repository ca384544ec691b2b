// A user's operation on the tape: y = x^2 by elements, with kernels, a forward and a backward of its own. Its gradient is
// checked by differences, and a sharded model trains with it.
#include <cstdio>
#include <vector>

#include <sherd/sherd.h>
using namespace sherd;

// The kernels of the operation, by kind of device. The library's operations have such a table, too.
struct SquareKernels {
  static constexpr const char* kName = "square";
  static const SquareKernels* reference();
  static const SquareKernels* cpu() { return reference(); }
  static const SquareKernels* cuda() {
    return nullptr;
  }  // a GPU's would launch on context.native; null: NotSupported

  // out[i] = factor * a[i] * b[i]
  void (*multiply)(ExecutionContext& context, float* out, float factor, const float* a, const float* b,
                   int64_t count);
};

void multiply_on_host(ExecutionContext&, float* out, float factor, const float* a, const float* b,
                      int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = factor * a[i] * b[i];
}

const SquareKernels* SquareKernels::reference() {
  static constexpr SquareKernels table{.multiply = multiply_on_host};
  return &table;
}

// Queues the device's kernel. What runs on the stream must outlive the call, so tensors are captured.
void multiply(Stream& s, const Tensor& out, float factor, const Tensor& a, const Tensor& b) {
  s.submit("multiply", [=, kernel = s.device().kernels<SquareKernels>().multiply](ExecutionContext& context) {
    kernel(context, out.data<float>(), factor, a.data<float>(), b.data<float>(), out.numel());
  });
}

Tensor like(const Tensor& x) { return Tensor::empty(x.device(), x.shape(), DType::f32, "activations"); }

// function() takes the inputs, the forward, and the backward: from dy to one gradient for each input.
nn::Var square(const nn::Var& x) {
  return nn::function(
      {x},
      [&](Stream& s) {
        Tensor y = like(x.value());
        multiply(s, y, 1, x.value(), x.value());
        return y;
      },
      [in = x.value()](Stream& s, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        Tensor dx = like(in);
        multiply(s, dx, 2, in, call.output().tensor(in));  // d(x^2) = 2 x dy
        return {dx};
      });
}

// relu^2 would be usual in a transformer; the square alone is enough to learn products.
struct Net : nn::Module<Net> {
  Parameter in = param("in.weight", {32, 8}, normal(0.3f));
  Parameter out = param("out.weight", {1, 32}, normal(0.3f));
  nn::Var forward(const nn::Var& x) { return nn::linear(square(nn::linear(x, in)), out); }
};

int main() {
  launch(2, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    const bool prints = rank.world->rank() == 0;
    Tensor x = Tensor::empty(*rank.device, {64, 8}, DType::f32, "data");
    ops::random_normal(s, x, 0, 1, "check", 0, 1);
    const nn::GradientError worst = nn::check_gradient(
        [](nn::Tape&, const std::vector<nn::Var>& v) { return nn::mean(square(v[0])); }, {x.rows(0, 2)});
    if (prints)
      std::printf("gradient of square(): %s\n", worst.error < 1e-2 ? "as the differences say" : "WRONG");

    Net net;
    const Routing routing = route(net, {.optimizer = Algorithm::adamw});
    fully_shard(net, DeviceMesh(rank.world, {{"shard", 2}}));
    Optimizer optimizer(net, routing, {});
    Tensor target = Tensor::empty(*rank.device, {64, 1}, DType::f32, "data");
    nn::Tape tape;
    for (int step = 0; step <= 120; ++step) {
      ops::random_normal(s, x, x.numel() * (2 * step + rank.world->rank()), 1, "data", 0, 1);
      s.submit("target", [=](ExecutionContext&) {  // the product of the first two numbers of each row
        for (int64_t i = 0; i < 64; ++i)
          target.data<float>()[i] = x.data<float>()[8 * i] * x.data<float>()[8 * i + 1];
      });
      const nn::Var loss = nn::mean_squared_error(net(tape.input(x)), target);
      tape.backward(loss);
      clip_grad_norm(net, 1);
      optimizer.step(1e-2);
      const float mine = ops::to_floats(s, loss.value())[0];
      if (step % 30 == 0 && prints) std::printf("step %3d: loss %.2f\n", step, mine);
    }
  });
}
