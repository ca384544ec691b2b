// Attention, rotary embedding and QK norm: gradients against differences, and all three against PyTorch's
// figures in tests/golden/attention.json (its README says how they were made).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "golden_folder.h"
#include "golden_values.h"
#include "nets.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using nn::Tape;
using nn::Var;
using Floats = std::vector<float>;

Tensor tensor(Device& device, Shape shape, const Floats& values) {
  Tensor t = Tensor::empty(device, std::move(shape), DType::f32, "test");
  ops::copy_from_host(device.compute(), t, values.data(), t.nbytes());
  device.compute().synchronize();
  return t;
}

Tensor random(Device& device, Shape shape, uint64_t seed) {
  Tensor x = Tensor::empty(device, std::move(shape), DType::f32, "test");
  ops::random_normal(device.compute(), x, 0, seed, "x", 0, 1);
  return x;
}

/// An objective in which every element counts otherwise.
Var weighted(const Var& y) { return nn::mean_squared_error(y, random(y.device(), y.shape(), 3)); }

// Tolerance as in functions_test.cpp: differences of objectives near 1 in f32 err by about 4e-6 of a gradient
// near 0.1.
void expect_gradient(const std::function<Var(Tape&, const std::vector<Var>&)>& f,
                     std::vector<Tensor> inputs) {
  const nn::GradientError worst = nn::check_gradient(f, std::move(inputs), 1.0 / 64);
  EXPECT_LT(worst.error, 2e-3) << worst.describe();
}

TEST(Attention, HasItsDerivativeWhateverTheGroups) {
  auto device = make_cpu_device();
  for (const int64_t kv_heads : {0, 4, 2, 1}) {
    const int64_t columns = (4 + 2 * (kv_heads == 0 ? 4 : kv_heads)) * 3;
    const nn::AttentionOptions options{.batch = 2, .heads = 4, .kv_heads = kv_heads, .head_dim = 3};
    expect_gradient([&](Tape&, const auto& v) { return weighted(nn::attention(v[0], options)); },
                    {random(*device, {6, columns}, 1)});
  }
}

TEST(Attention, IsTheCausalAttentionOfAsManyKeyHeads) {
  auto device = make_cpu_device();
  const Var qkv(random(*device, {10, 24}, 1));
  const auto bits = [&](const Var& y) { return ops::to_floats(device->compute(), y.value()); };
  EXPECT_EQ(bits(nn::attention(qkv, {.batch = 2, .heads = 4, .kv_heads = 4})),
            bits(nn::causal_attention(qkv, 2, 4)));
}

TEST(Attention, RaisesTheLargestLogitOverMicrobatches) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto largest = [&](std::initializer_list<uint64_t> seeds) {
    const Tensor most = tensor(*device, {2}, {-infinity, -infinity});
    Tape tape;
    for (const uint64_t seed : seeds)
      nn::attention(tape.input(random(*device, {6, 16}, seed)),
                    {.batch = 1, .heads = 2, .kv_heads = 1, .max_logits = most});
    return ops::to_floats(s, most);
  };
  const Floats one = largest({1}), two = largest({2}), both = largest({1, 2});
  for (size_t h = 0; h < 2; ++h) EXPECT_EQ(both[h], std::max(one[h], two[h]));
}

TEST(Attention, SaysWhatDoesNotFit) {
  auto device = make_cpu_device();
  const Var qkv(random(*device, {6, 16}, 1));
  EXPECT_THROW(nn::attention(qkv, {.batch = 4, .heads = 2, .kv_heads = 1}), ShapeMismatch);
  EXPECT_THROW(nn::attention(qkv, {.batch = 2, .heads = 3}), ShapeMismatch);
  EXPECT_THROW(nn::attention(qkv, {.batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 5}), ShapeMismatch);
  EXPECT_THROW(nn::attention(qkv, {.batch = 2, .heads = 4, .kv_heads = 3}), InvalidArgument);
  EXPECT_THROW(nn::attention(qkv, {.batch = 0, .heads = 4}), InvalidArgument);
  Tape tape;
  EXPECT_THROW(nn::attention(tape.input(random(*device, {6, 16}, 1)),
                             {.heads = 2, .kv_heads = 1, .max_logits = random(*device, {3}, 1)}),
               ShapeMismatch);
  const Tensor frequencies = nn::rope_table(*device, ops::rope_frequencies(4));
  EXPECT_THROW(nn::rope(qkv, frequencies, {.batch = 4, .heads = 2}), ShapeMismatch);
  EXPECT_THROW(nn::rope(qkv, frequencies, {.batch = 2, .heads = 5}), ShapeMismatch);
}

TEST(Rope, TheHostDoesNotWaitForItsTable) {
  auto device = make_cpu_device();
  const int64_t waits = device->host_syncs();
  const Tensor table = nn::rope_table(*device, ops::rope_frequencies(8));
  EXPECT_EQ(device->host_syncs(), waits);
  EXPECT_EQ(ops::to_floats(device->compute(), table), ops::rope_frequencies(8));
}

TEST(Rope, HasItsDerivative) {
  auto device = make_cpu_device();
  const Tensor frequencies = nn::rope_table(*device, ops::rope_frequencies(4, 100));
  const nn::RopeOptions options{.batch = 2, .heads = 3, .first_position = 5};
  const Tensor x = random(*device, {6, 16}, 1);
  expect_gradient([&](Tape&, const auto& v) { return weighted(nn::rope(v[0], frequencies, options)); }, {x});
  // The gradient of a sum is one number: it is written out.
  expect_gradient([&](Tape&, const auto& v) { return nn::mean(nn::rope(v[0], frequencies, options)); }, {x});
  expect_gradient(
      [&](Tape&, const auto& v) {
        return weighted(
            nn::attention(nn::rope(v[0], frequencies, options), {.batch = 2, .heads = 2, .kv_heads = 1}));
      },
      {x});
}

// In place are values that were moved in, and gradients that no other value shares.
TEST(Rope, OverwritesWhatNothingElseHolds) {
  auto device = make_cpu_device();
  const Tensor frequencies = nn::rope_table(*device, ops::rope_frequencies(4, 100));
  const nn::RopeOptions options{.batch = 2, .heads = 3};
  const auto memory = [](const Var& v) { return v.value().raw(); };
  Tape tape;
  const Var leaf = tape.leaf(random(*device, {6, 16}, 1));
  EXPECT_NE(memory(nn::rope(leaf, frequencies, options)), memory(leaf));
  Var x = 2 * leaf;
  const Var other = x;
  EXPECT_NE(memory(nn::rope(std::move(x), frequencies, options)), memory(other));

  const void *given = nullptr, *received = nullptr;
  Var before = nn::function(
      {leaf},
      [&](Stream&) {
        return random(*device, {6, 16}, 2);
      },
      [&](Stream&, const nn::BackwardCall& call) -> std::vector<nn::Gradient> {
        received = call.output().tensor().raw();
        return {call.output()};
      });
  const void* const place = memory(before);
  const Var turned = nn::rope(std::move(before), frequencies, options);
  EXPECT_EQ(memory(turned), place);
  tape.backward(nn::function(
      {turned}, [&](Stream&) { return random(*device, {1}, 3); },
      [&](Stream&, const nn::BackwardCall&) -> std::vector<nn::Gradient> {
        const Tensor gradient = random(*device, {6, 16}, 4);
        given = gradient.raw();
        return {gradient};
      }));
  EXPECT_EQ(received, given);
  expect_gradient([&](Tape&, const auto& v) { return weighted(nn::rope(2 * v[0], frequencies, options)); },
                  {random(*device, {6, 16}, 1)});
}

/// Weights of QK norm and a forward that a test writes.
struct NormedNet : nn::Module<NormedNet> {
  explicit NormedNet(int64_t head_dim)
      : q(param("q_norm.weight", {head_dim}, normal(0.5f))),
        k(param("k_norm.weight", {head_dim}, normal(0.5f))) {}
  Parameter q, k;
  std::function<Var(NormedNet&, const Var&)> f;
  Var forward(const Var& x) { return f(*this, x); }
};

TEST(QkNorm, HasItsDerivativeByTheInput) {
  launch(1, [](RankContext& rank) {
    NormedNet model(4);
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                {.allow_unused = true});
    runtime_of(model).set_last_microbatch(false);
    for (const int64_t heads : {1, 2, 4}) {
      model.f = [&](NormedNet& m, const Var& x) { return weighted(nn::qk_norm(x, m.q, m.k, heads)); };
      expect_gradient([&](Tape&, const auto& v) { return model(v[0]); },
                      {random(*rank.device, {3, (heads + 4) * 4}, 1)});
    }
  });
}

TEST(QkNorm, LeavesValuesAndTakesNoRows) {
  launch(1, [](RankContext& rank) {
    NormedNet model(4);
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                {.allow_unused = true});
    model.f = [](NormedNet& m, const Var& x) { return nn::qk_norm(x, m.q, m.k, 3); };
    Stream& s = rank.device->compute();
    Tape tape;
    nn::NoGrad evaluation(tape);
    const Tensor x = random(*rank.device, {5, 20}, 1);
    const Floats before = ops::to_floats(s, x), after = ops::to_floats(s, model(tape.input(x)).value());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i] == after[i], i % 20 >= 16) << i;
    EXPECT_EQ(model(tape.input(random(*rank.device, {0, 20}, 1))).numel(), 0);
    EXPECT_THROW(model(tape.input(random(*rank.device, {5, 16}, 1))), ShapeMismatch);  // no v
    EXPECT_THROW(model(tape.input(random(*rank.device, {5, 24}, 1))), ShapeMismatch);  // an odd head
    EXPECT_THROW(model(tape.input(random(*rank.device, {5, 22}, 1))), ShapeMismatch);  // half a head
    EXPECT_THROW(model(tape.input(random(*rank.device, {5, 8}, 1))), ShapeMismatch);
  });
}

const json& golden_attention() {
  static const json file = json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + "/attention.json"));
  return file;
}

Floats weight_values(int64_t count, int64_t salt) {
  Floats v = golden_values(count, salt);
  for (float& x : v) x = 1 + x / 4;
  return v;
}

// Sums of a few products of values up to 2 in fp32, norms of small heads among them: some 10 roundings of
// 6e-8 each, relative to values up to 10. A wrong head, position or scale changes the first digit.
void expect_golden(const Floats& got, const json& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto w = want[i].get<double>();
    EXPECT_NEAR(got[i], w, 1e-5 * (1 + std::abs(w))) << what << " " << i;
  }
}

TEST(AttentionGolden, MatchesPyTorchWithGradients) {
  launch(1, [](RankContext& rank) {
    Device& device = *rank.device;
    Stream& s = device.compute();
    for (const json& c : golden_attention()["cases"]) {
      const auto at = [&](const char* key) { return c.at(key).get<int64_t>(); };
      const int64_t batch = at("batch"), heads = at("heads"), kv_heads = at("kv_heads"),
                    width = at("head_dim");
      const int64_t rows = batch * at("seq"), columns = (heads + 2 * kv_heads) * width;
      const bool normed = c.at("qk_norm").get<bool>();
      const Tensor frequencies =
          nn::rope_table(device, ops::rope_frequencies(width, c.at("theta").get<double>()));
      const Tensor most = tensor(device, {heads}, Floats(static_cast<size_t>(heads), -1e30f));

      NormedNet model(width);
      Var turned;
      model.f = [&](NormedNet& m, const Var& x) {
        const Var y = normed ? nn::qk_norm(x, m.q, m.k, heads, c.at("eps").get<float>()) : x;
        turned =
            nn::rope(y, frequencies,
                     {.batch = batch, .heads = heads + kv_heads, .first_position = at("first_position")});
        return nn::attention(
            turned,
            {.batch = batch, .heads = heads, .kv_heads = kv_heads, .head_dim = width, .max_logits = most});
      };
      fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                  {.allow_unused = true});
      {
        WeightsChange change(runtime_of(model));
        int64_t salt = 2;
        for (Parameter p : {model.q, model.k}) {
          const Floats w = weight_values(width, salt++);
          ops::copy_from_host(s, p.shard(), w.data(), p.shard().nbytes());
        }
        change.end();
      }
      Tape tape;
      const Var qkv = tape.leaf(tensor(device, {rows, columns}, golden_values(rows * columns, 1)));
      const Var out = model(qkv);
      const std::string what = c.dump().substr(0, 100);
      expect_golden(ops::to_floats(s, turned.value()), c.at("turned"), "turned, " + what);
      expect_golden(ops::to_floats(s, out.value()), c.at("out"), "out, " + what);
      expect_golden(ops::to_floats(s, most), c.at("max_logits"), "max_logits, " + what);
      tape.backward(out, tensor(device, out.shape(), golden_values(out.numel(), 4)));
      expect_golden(ops::to_floats(s, tape.gradient(qkv)), c.at("dqkv"), "dqkv, " + what);
      if (!normed) continue;
      expect_golden(ops::to_floats(s, model.q.grad_shard()), c.at("dq_weight"), "dq_weight, " + what);
      expect_golden(ops::to_floats(s, model.k.grad_shard()), c.at("dk_weight"), "dk_weight, " + what);
    }
  });
}

// Some roundings apart at most: the power function of another library, and for scalings another order of products.
TEST(AttentionGolden, FrequenciesAreThoseOfHuggingFace) {
  for (const json& c : golden_attention()["frequencies"]) {
    const auto head_dim = c.at("head_dim").get<int64_t>();
    const nn::RopeDescription rope = rope_of(c);
    const double theta = rope.theta;
    const Floats got = ops::rope_frequencies(head_dim, theta, rope.scaling, c.at("positions"));
    EXPECT_NEAR(rope.scaling.rotation_scale(), c.at("rotation_scale").get<double>(), 1e-14);
    const json& want = c.at("values");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i].get<double>(), 2.4e-7 * got[i]) << head_dim << " " << theta << " " << i;
  }
}

}  // namespace
}  // namespace sherd::test
