// A project of its own: wraps and trains a module of its own with the installed package.
#include <cmath>
#include <cstdio>
#include <vector>

#include <sherd/optim/schedule.h>
#include <sherd/sherd.h>
#include <sherd/train/settings/command_line.h>

using namespace sherd;

// Fits y = W x to a fixed rotation: forward gives the mean squared error.
struct Regression : nn::Module<Regression> {
  static constexpr int64_t kRows = 32, kWidth = 6;
  Parameter w = param("w.weight", {kWidth, kWidth}, xavier_uniform(0.3f));
  Buffer steps = buffer("steps", {}, DType::f32, constant(0));
  nn::Var forward(const nn::Var& x) {
    // target: coordinates shifted by one
    const std::vector<float> values = ops::to_floats(x.stream(), x.value());
    std::vector<float> shifted(values.size());
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kWidth; ++c)
        shifted[static_cast<size_t>(r * kWidth + c)] =
            values[static_cast<size_t>(r * kWidth + (c + 1) % kWidth)];
    const Tensor target = Tensor::empty(x.device(), x.shape(), DType::f32, "activations");
    ops::copy_from_host(x.stream(), target, shifted.data(), target.nbytes());
    return nn::mean_squared_error(nn::linear(x, w), target);
  }
};

// Every option struct with some members named; the compiler must not warn of the others.
struct Chosen {
  RoutingOptions routing{.optimizer = Algorithm::adamw};
  RoutingRule rule{.algorithm = Algorithm::muon};
  FullyShardOptions shard{.padding_budget = 0.1};
  RootOptions root{.prefetch = 1};
  MuonOptions muon{.whole = {.momentum = 0.9f}};
  OptimizerOptions optimizer{.adamw = {.beta2 = 0.95}, .muon = {.scale = MuonScale::original}};
  SaverOptions saver{.async = true};
  LoadOptions load{.optimizer = false, .allow_missing = true};
  Init init{.mean = 1, .kind = InitKind::uniform};
  TrainingState training{.step = 1};
  ExportOptions weights{.dtype = DType::bf16};
};

int main(int argc, char** argv) {
  const Chosen chosen;
  int64_t steps = 200;
  const std::vector<FieldGroup> settings = {{"Training", {{"steps", &steps, "N", "of training", 1, 1e6}}}};
  std::vector<std::string> problems;
  set_given(read_flags(argc, argv, settings, problems), problems);
  throw_problems(problems);
  double first = 0, last = 0;
  launch(3, [&](RankContext& rank) {
    Regression model;
    const DeviceMesh mesh(rank.world, {{"shard", 3}});
    const Routing routing = route(model, chosen.routing);
    fully_shard(model, mesh, chosen.shard, chosen.root);
    Optimizer optimizer(model, routing, chosen.optimizer);
    Stream& s = rank.device->compute();
    nn::Tape tape;
    for (int64_t step = 0; step < steps; ++step) {
      Tensor x = Tensor::empty(*rank.device, {Regression::kRows, Regression::kWidth}, DType::f32, "data");
      ops::random_normal(s, x, 1000 * step, 1, "data " + std::to_string(rank.world->rank()), 0, 1);
      const nn::Var error = model(tape.input(x));
      const float loss = ops::to_floats(s, error.value())[0];
      tape.backward(error);
      clip_grad_norm(model, 1.0);
      optimizer.step(learning_rate({.lr = 0.02}, step));
      if (rank.world->rank() == 0) (step == 0 ? first : last) = loss;
    }
    ops::fill(s, model.steps.data(), static_cast<double>(steps));
    // Saving, in memory and on other libraries' behalf.
    const StateDict dict = state_dict(model, &optimizer, DictKind::on_all);
    if (dict.model.at("steps").values<float>()[0] != static_cast<float>(steps))
      throw Error("a buffer is lost");
    load_state_dict(model, &optimizer, dict, DictKind::on_all);
    (void)from_dlpack(to_dlpack(s, model.steps.data()), *rank.device);
    (void)checkpoint_tensors(model, &optimizer);
    s.synchronize();
  });
  std::printf("consumer: loss %.4f -> %.6f\n", first, last);
  return std::isfinite(last) && last < 0.01 * first ? 0 : 1;
}
