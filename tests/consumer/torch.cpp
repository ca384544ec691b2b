// The package's sherd::torch: modules of libtorch's, trained on two ranks by torch's own optimizer (docs/libtorch.md).
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include <sherd/comm/launcher.h>
#include <sherd/torch/call.h>
#include <sherd/torch/fully_shard.h>
#include <sherd/torch/local_shards.h>

struct NetImpl : torch::nn::Module {
  NetImpl() { linear = register_module("linear", torch::nn::Linear(6, 6)); }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x); }
  torch::nn::Linear linear = nullptr;
};
SHERD_TORCH_MODULE(Net);

int main() {
  const torch::Tensor inputs = torch::randn({32, 6}), targets = inputs.roll(1, 1);
  double first = 0, last = 0;
  sherd::launch(2, [&](sherd::RankContext& rank) {
    Net model;
    {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& p : model->parameters()) p.fill_(0.1);
    }
    sherd::torch::fully_shard(*model, sherd::DeviceMesh(rank.world, {{"shard", 2}}));
    sherd::torch::LocalShards shards(*model);
    torch::optim::AdamW optimizer(shards.parameters(), torch::optim::AdamWOptions(0.05));
    const int64_t mine = 16 * rank.world->rank();
    for (int step = 0; step < 200; ++step) {
      const torch::Tensor loss =
          torch::mse_loss(model(inputs.slice(0, mine, mine + 16)), targets.slice(0, mine, mine + 16));
      if (rank.world->rank() == 0) (step == 0 ? first : last) = loss.item<double>();
      loss.backward();
      shards.step([&] { optimizer.step(); });
    }
  });
  std::printf("libtorch: loss %.3f -> %.6f\n", first, last);
  return last < first / 100 && std::isfinite(last) ? 0 : 1;
}
