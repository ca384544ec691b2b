// train_gpt's model cut over tensor-parallel ranks: the same losses, logits and gradients as whole.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "support/toy_model.h"
#include "train_gpt/model/model.h"

namespace train_gpt {
namespace {

using sherd::DType;
using sherd::RankContext;
using sherd::Stream;
namespace ops = sherd::ops;

constexpr GptShape kShape{.dim = 24, .layers = 2, .heads = 4, .seq = 10};
constexpr int64_t kBatch = 3;

struct Passes {
  std::vector<float> losses, logits;
  std::map<std::string, std::vector<float>> gradients;  // of the whole parameters
};

Tensor tokens(RankContext& r, int first) {
  std::vector<int32_t> values;
  for (int i = 0; i < kBatch * kShape.seq; ++i) values.push_back((first + 37 * i) % 256);
  Tensor t = Tensor::empty(*r.device, {kBatch, kShape.seq}, DType::i32, "test");
  ops::copy_from_host(r.device->compute(), t, values.data(), t.nbytes());
  return t;
}

// Asserts that what is whole on every rank has the same bits there.
Passes run(int tp, DType dtype) {
  Passes all;
  std::mutex mutex;
  sherd::test::launch(tp, [&](RankContext& r) {
    const sherd::DeviceMesh mesh(r.world, {{"shard", 1}, {"tp", tp}});
    Gpt model(kShape, TensorParallel::of(mesh));
    sherd::FullyShardOptions options;
    options.compute_dtype = dtype;
    options.seed = 11;
    for (size_t i = 0; i < model.blocks(); ++i) fully_shard(model.block(i), mesh, options);
    fully_shard(model, mesh, options);
    Stream& s = r.device->compute();
    model.set_training(false);
    const std::vector<float> logits = ops::to_floats(s, model(tokens(r, 5)));
    model.set_training(true);
    sherd::nn::Tape tape;
    const sherd::nn::CrossEntropy loss = model(tape.input(tokens(r, 5)), tokens(r, 6), 0.125f);
    const std::vector<float> losses = ops::to_floats(s, loss.losses);
    tape.backward(loss.objective);
    sherd::runtime_of(model).wait_gradients();

    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    for (auto& [name, p] : model.named_parameters()) {
      const std::vector<float> mine = ops::to_floats(s, p.grad_shard());
      const std::lock_guard lock(mutex);
      auto& whole = all.gradients[name];
      const bool first = whole.empty();
      whole.resize(static_cast<size_t>(sherd::numel_of(p.global_shape())));
      if (!first && !p.tensor_shard()) {
        EXPECT_TRUE(same(mine, whole)) << name << " differs between tensor-parallel ranks";
      }
      for (auto& part : p.global_runs(p.shard_range()))
        for (int64_t i = 0; i < part.count; ++i)
          whole[static_cast<size_t>(part.global.value + i)] = mine[static_cast<size_t>(part.local.value + i)];
    }
    const std::lock_guard lock(mutex);
    if (all.losses.empty()) {
      all.losses = losses;
      all.logits = logits;
    }
    EXPECT_TRUE(same(losses, all.losses));
    EXPECT_TRUE(same(logits, all.logits));
  });
  return all;
}

// Largest difference, relative to the largest value.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0, scale = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  EXPECT_GT(scale, 0);
  return most / scale;
}

TEST(TensorParallelGpt, GivesWhatTheWholeModelGives) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Passes want = run(1, dtype);
    const double tolerance = dtype == DType::f32 ? 2e-5 : 0.03;
    EXPECT_EQ(want.logits.size(), static_cast<size_t>(kBatch * kShape.seq * 256));
    for (const int tp : {2, 4}) {
      const Passes got = run(tp, dtype);
      EXPECT_LT(distance(got.losses, want.losses), tolerance) << tp;
      EXPECT_LT(distance(got.logits, want.logits), tolerance) << tp;
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (auto& [name, g] : want.gradients)
        EXPECT_LT(distance(got.gradients.at(name), g), tolerance) << name << ", tp " << tp;
    }
  }
}

TEST(TensorParallelGpt, CutsMatricesAndKeepsEmbeddingsAndNormsWhole) {
  sherd::test::launch(2, [](RankContext& r) {
    const sherd::DeviceMesh mesh(r.world, {{"tp", 2}});
    Gpt model(kShape, TensorParallel::of(mesh));
    for (auto& [name, p] : model.named_parameters()) {
      const bool whole = name == "tok.weight" || name == "pos.weight" || name.find("norm") != name.npos;
      EXPECT_EQ(p.tensor_shard().has_value(), !whole) << name;
      if (!whole) {
        EXPECT_EQ(p.numel() * 2, sherd::numel_of(p.global_shape())) << name;
      }
    }
  });
}

}  // namespace
}  // namespace train_gpt
