// Gradients of functions against differences.
#include <gtest/gtest.h>

#include <cmath>

#include "differences.h"
#include "nets.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

TEST(Functions, WithoutParametersHaveTheirDerivative) {
  auto device = make_cpu_device();
  const auto x = [&](Shape shape, uint64_t seed = 1) { return random(*device, std::move(shape), seed); };
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::gelu(v[0])); }, {x({3, 5})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::add(v[0], v[1])); }, {x({3, 5}), x({3, 5}, 2)});
  expect_gradient([](Tape&, const auto& v) { return weighted(-1.5f * v[0]); }, {x({7})});
  expect_gradient([](Tape&, const auto& v) { return nn::mean(nn::gelu(v[0])); }, {x({9})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::sum(nn::gelu(v[0]))); }, {x({9})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::view(nn::gelu(v[0]), {5, 3})); }, {x({3, 5})});
  expect_gradient([](Tape&, const auto& v) { return weighted(nn::causal_attention(v[0], 2, 2)); }, {x({6, 24})});
}

TEST(Functions, CrossEntropyTakesWhatBackwardBrings) {
  auto device = make_cpu_device();
  const Tensor targets = Tensor::empty(*device, {4}, DType::i32, "test");
  const std::vector<int32_t> wanted{2, 0, 5, 5};
  ops::copy_from_host(device->compute(), targets, wanted.data(), targets.nbytes());
  const Tensor logits = random(*device, {4, 6}, 5);
  expect_gradient([&](Tape&, const auto& v) { return nn::cross_entropy(v[0], targets, 0.25f).objective; }, {logits});
  expect_gradient([&](Tape&, const auto& v) { return 3 * nn::cross_entropy(v[0], targets, 0.25f).objective; }, {logits});
  expect_gradient([&](Tape&, const auto& v) { return weighted(nn::cross_entropy(v[0], targets, 0.25f).objective); },
                  {logits});
}

struct Weighted : nn::Module<Weighted> {
  Parameter w = param("weight", {6, 5}, normal(0.5f));
  Parameter bias = param("bias", {6}, normal(0.5f));
  Parameter back = param("back.weight", {5, 6}, normal(0.5f));
  Parameter gain = param("norm.weight", {5}, normal(0.5f));
  std::function<Var(Weighted&, const std::vector<Var>&)> f;
  Var forward(const std::vector<Var>& v) { return f(*this, v); }
};

TEST(Functions, WithParametersHaveTheirDerivativeByTheInput) {
  launch(1, [](RankContext& rank) {
    const Tensor targets = Tensor::empty(*rank.device, {4}, DType::i32, "test");
    const std::vector<int32_t> wanted{2, 0, 4, 5};
    ops::copy_from_host(rank.device->compute(), targets, wanted.data(), targets.nbytes());
    using F = std::function<Var(Weighted&, const std::vector<Var>&)>;
    const std::vector<F> all = {
        [](Weighted& m, const auto& v) { return weighted(nn::linear(v[0], m.w)); },
        [](Weighted& m, const auto& v) { return weighted(nn::linear(v[0], m.w, m.bias)); },
        [](Weighted& m, const auto& v) { return weighted(nn::linear_gelu(v[0], m.w, m.bias)); },
        [](Weighted& m, const auto& v) { return weighted(nn::add_linear(v[0], nn::linear(v[0], m.w), m.back)); },
        [](Weighted& m, const auto& v) { return weighted(nn::rms_norm(v[0], m.gain)); },
        [&](Weighted& m, const auto& v) { return nn::linear_cross_entropy(v[0], m.w, targets, 0.25f).objective; },
        [&](Weighted& m, const auto& v) { return 2 * nn::linear_cross_entropy(v[0], m.w, targets, 0.25f, 3).objective; },
    };
    Weighted model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard, .allow_unused = true});
    ShardRuntime& runtime = runtime_of(model);
    runtime.set_last_microbatch(false);
    for (const F& f : all) {
      model.f = f;
      expect_gradient([&](Tape&, const auto& v) { return model(v); }, {random(*rank.device, {4, 5}, 9)});
    }
  });
}

// The gradient of a weight is that of its elements: moved by hand and put back.
TEST(Functions, WithParametersHaveTheirDerivativeByEachWeight) {
  launch(1, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    const Tensor targets = Tensor::empty(*rank.device, {4}, DType::i32, "test");
    const std::vector<int32_t> wanted{2, 0, 4, 5};
    ops::copy_from_host(s, targets, wanted.data(), targets.nbytes());
    const Tensor in = random(*rank.device, {4, 5}, 9);
    for (const int64_t chunk : {0, 3}) {
      Weighted model;
      model.f = [&](Weighted& m, const std::vector<Var>& v) {
        const Var y = nn::rms_norm(nn::linear(nn::linear_gelu(v[0], m.w, m.bias), m.back), m.gain);
        return nn::linear_cross_entropy(y, m.w, targets, 0.25f, chunk).objective;
      };
      fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard});
      const auto objective = [&] {
        Tape tape;
        nn::NoGrad scope(tape);
        return static_cast<double>(ops::to_floats(s, model(std::vector<Var>{tape.input(in)}).value()).at(0));
      };
      Tape tape;
      tape.backward(model(std::vector<Var>{tape.input(in)}));
      for (Parameter p : model.own_parameters()) {
        const std::vector<float> gradient = ops::to_floats(s, p.grad_shard());
        std::vector<float> w = ops::to_floats(s, p.shard());
        double largest = 0;
        for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
        const auto at = [&](size_t i, float value) {
          const float before = w[i];
          w[i] = value;
          {
            WeightsChange change(runtime_of(model));
            ops::copy_from_host(s, p.shard(), w.data(), p.shard().nbytes());
            change.end();
          }
          const double y = objective();
          w[i] = before;
          return y;
        };
        for (size_t i = 0; i < w.size(); ++i) {
          const auto by = static_cast<float>(kStep);
          const double difference = (at(i, w[i] + by) - at(i, w[i] - by)) / (2 * kStep);
          EXPECT_NEAR(gradient[i], difference, kError * (std::abs(difference) + largest)) << p.name() << " " << i;
        }
        WeightsChange change(runtime_of(model));
        ops::copy_from_host(s, p.shard(), w.data(), p.shard().nbytes());
        change.end();
      }
    }
  });
}

}  // namespace
}  // namespace sherd::test
