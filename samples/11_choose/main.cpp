// The sharding of a run by the memory of a rank: the fastest that fits, found by dry runs of the program's own step.
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include <sherd/sherd.h>
#include <sherd/train/plan/choose.h>
using namespace sherd;

struct Block : nn::Module<Block> {
  Parameter up = param("up.weight", {1024, 256}, normal(0.05f));
  Parameter down = param("down.weight", {256, 1024}, normal(0.05f));
  nn::Var forward(const nn::Var& x) { return nn::add_linear(x, nn::linear_gelu(x, up), down); }
};

struct Mlp : nn::Module<Mlp> {
  std::array<Block, 4> blocks;
  Parameter head = param("head.weight", {256, 256}, normal(0.05f));
  Mlp() {
    for (size_t i = 0; i < blocks.size(); ++i) child("blocks." + std::to_string(i), blocks[i]);
  }
  nn::Var forward(nn::Var x) {
    for (Block& b : blocks) x = b(x);
    return nn::linear(x, head);
  }
};

struct Training {  // of a rank
  Training(RankContext& rank, const DeviceMesh& mesh, const Sharding& s) : stream(rank.device->compute()) {
    for (Block& b : model.blocks) b.set_recompute(s.variant == 1);
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model.blocks, mesh, s.unit);
    fully_shard(model, mesh, s.unit, s.root);
    optimizer.emplace(model, routing, OptimizerOptions{});
    x = Tensor::empty(*rank.device, {512, 256}, DType::f32, "data");
    ops::random_normal(stream, x, x.numel() * rank.world->rank(), 1, "data", 0, 1);
  }
  float step() {
    const nn::Var loss = nn::mean_squared_error(model(tape.input(x)), x);
    tape.backward(loss);
    optimizer->step(1e-3);
    return ops::to_floats(stream, loss.value())[0];
  }
  Stream& stream;
  Mlp model;
  std::optional<Optimizer> optimizer;
  Tensor x;
  nn::Tape tape;
};

int main() {
  const std::vector<MeshDim> mesh = {{"shard", 4}};
  for (const int64_t mib : {100, 40, 28}) {
    const ChoiceLimits limits{.hardware = hardware_profile("h100"), .memory_bytes = mib << 20, .variants = 2};
    const ChosenSharding chosen = choose(
        [](RankContext& rank, const DeviceMesh& m, const Sharding& s) {
          return [training = std::make_shared<Training>(rank, m, s)] { training->step(); };
        },
        mesh, limits);
    launch(4, [&](RankContext& rank) {
      Training training(rank, DeviceMesh(rank.world, mesh), chosen);
      float loss = 0;
      for (int step = 0; step < 5; ++step) loss = training.step();
      if (rank.world->rank() == 0)
        std::printf("%lld MiB: %s, %s recomputation: loss %.2f\n", static_cast<long long>(mib),
                    name_of(chosen.unit.strategy), chosen.variant == 1 ? "with" : "without", loss);
    });
  }
}
