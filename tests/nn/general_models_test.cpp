// Models that are not decoders learn in the same bits under every strategy.
#include "general_models.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "training.h"

namespace sherd::test {
namespace {

struct Lesson {
  Weights weights;
  std::vector<float> losses;  // rank 0's
};

template <class Model>
Lesson lesson(const FullyShardOptions& options, int ranks, bool units) {
  Lesson learned;
  launch(ranks, [&](RankContext& rank) {
    Model model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    const DeviceMesh mesh = mesh_of(rank);
    int children = 0;
    model.visit([&](const std::string& name, ModuleBase&) { children += name.empty() ? 0 : 1; });
    const auto each = [](const std::string& name, ModuleBase&) { return !name.empty(); };
    if (units && children > 0) fully_shard_all(model, each, mesh, options);
    fully_shard(model, mesh, options);
    Optimizer optimizer(model, routing, {});
    Stream& s = rank.device->compute();
    const Tensor x = Tensor::empty(*rank.device, Model::kInput, DType::f32, "data");
    ops::random_normal(s, x, rank.world->rank() * 4096, 7, "data", 0, 1);
    nn::Tape tape;
    std::vector<float> losses;
    for (int step = 0; step < 12; ++step) {
      const nn::Var loss = model(tape.input(x));
      losses.push_back(ops::to_floats(s, loss.value())[0]);
      tape.backward(loss);
      clip_grad_norm(model, 1);
      optimizer.step(0.01);
    }
    const Weights weights = whole_weights(model, rank);
    if (rank.world->rank() == 0) learned = {weights, losses};
  });
  return learned;
}

template <class Model>
class GeneralModels : public testing::Test {};
using Models = testing::Types<VisionTransformer, VariationalAutoencoder, UNet, EncoderDecoder>;
TYPED_TEST_SUITE(GeneralModels, Models);

TYPED_TEST(GeneralModels, LearnInTheBitsOfOneStrategyUnderAll) {
  for (const int ranks : {1, 3}) {
    const Lesson want = lesson<TypeParam>({.strategy = Strategy::no_shard}, ranks, true);
    EXPECT_LT(want.losses.back(), 0.9f * want.losses.front());
    for (const Strategy strategy : kStrategies)
      for (const bool units : {true, false}) {
        const Lesson got = lesson<TypeParam>({.strategy = strategy}, ranks, units);
        EXPECT_EQ(got.losses, want.losses) << name_of(strategy) << units << ranks;
        EXPECT_EQ(got.weights, want.weights) << name_of(strategy) << units << ranks;
      }
  }
}

const char* name_in_file(const VisionTransformer&) { return "VisionTransformer"; }
const char* name_in_file(const VariationalAutoencoder&) { return "VariationalAutoencoder"; }
const char* name_in_file(const UNet&) { return "UNet"; }
const char* name_in_file(const EncoderDecoder&) { return "EncoderDecoder"; }

// Weights given by name: the objective is PyTorch's (tests/golden/general.json), computed there in f64.
TYPED_TEST(GeneralModels, HaveTheObjectiveOfPyTorch) {
  launch(1, [](RankContext& rank) {
    TypeParam model;
    fully_shard(model, mesh_of(rank), {.strategy = Strategy::no_shard});
    Stream& s = rank.device->compute();
    {
      WeightsChange change(runtime_of(model));
      for (auto& [name, p] : model.named_parameters()) {
        const std::vector<float> values = general_values(name, p.numel());
        ops::copy_from_host(s, p.shard(), values.data(), p.shard().nbytes());
      }
      s.synchronize();
      change.end();
    }
    const Tensor x =
        nn::constants(*rank.device, TypeParam::kInput, general_values("input", numel_of(TypeParam::kInput)))
            .value();
    nn::Tape tape;
    const float got = ops::to_floats(s, model(tape.input(x)).value())[0];
    tape.clear();
    const nlohmann::json file =
        nlohmann::json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + "/general.json"));
    const double want = file.at(name_in_file(model));
    EXPECT_NEAR(got, want, 1e-6 * (1 + want));
  });
}

}  // namespace
}  // namespace sherd::test
