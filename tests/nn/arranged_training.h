// A few steps of training on any arrangement of ranks, and what came of them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "golden_model.h"

namespace sherd::test {

inline constexpr Strategy kAllStrategies[] = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                              Strategy::optim_grads_params};

struct Outcome {
  std::vector<float> losses, norms;
  std::vector<float> next_losses;  // of multi-token prediction, by step
  std::vector<int64_t> zeros;
  std::map<std::string, std::vector<float>> weights;  // whole
  std::vector<float> logits;                          // rank 0's
};

using Look = std::function<void(RankContext&, ArrangedModel&, int rank)>;

struct TrainingPlan {
  int64_t batch = 4, seq = 9;  // of all data-parallel ranks together
  int64_t steps = 3;
  int64_t first_step = 0;              // of these
  std::filesystem::path from{}, to{};  // checkpoints of the state before and after them
  float next_weight = 0;               // of the loss of multi-token prediction
  /// Documents of a step's sequences [rows, seq], from number `first` on.
  std::function<nn::Documents(Device&, const Shape&, int64_t first)> documents{};
  int64_t ignored_every = 0;  // each such target is kIgnoredTarget
  Algorithm optimizer = Algorithm::adamw;
  double eps = 1e-4;  // of AdamW
  double tau = 100;   // of QkClip, with Arrangement::logit_maxima
  /// Losses of this rank's rows and the objective, of its slices of the targets; default: the model's own.
  std::function<nn::CrossEntropy(nn::CausalModel&, const nn::Var& tokens, const Tensor& targets, float scale)>
      objective{};
  /// On every rank: before the model is sharded, and behind the last step.
  std::function<void(nn::CausalModel&)> prepare{};
  Look look{};
};

/// i32 [shape], sequences from the one of number `first` on; every so many-th is kIgnoredTarget.
inline Tensor tokens(Device& device, const nn::ModelDescription& m, const Shape& shape, int64_t first,
                     int64_t salt, int64_t ignored_every = 0) {
  std::vector<int32_t> all;
  for (int64_t i = first * shape[1]; i < (first + shape[0]) * shape[1]; ++i)
    all.push_back(ignored_every > 0 && i % ignored_every == 0
                      ? kIgnoredTarget
                      : static_cast<int32_t>((i * i * 7 + 31 * salt + i) % m.vocab));
  const Tensor t = Tensor::empty(device, shape, DType::i32, "data");
  ops::copy_from_host(device.compute(), t, all.data(), t.nbytes());
  return t;
}

/// The largest difference, relative to the largest value.
inline double distance(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double most = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(double{got[i]} - double{want[i]});
    most = std::isfinite(d) ? std::max(most, d) : INFINITY;
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return most / largest;
}

/// Steps of AdamW from random weights that the seed alone decides, clipped at a norm that matters. Gradients are some 3e-3.
/// With AdamW's usual eps of 1e-8, an element whose gradient is only rounding moves by up to the whole rate. With 1e-4 it
/// moves by about 1e-4 of the rate.
inline Outcome train(const nn::ModelDescription& m, const Arrangement& a, const TrainingPlan& plan = {}) {
  Outcome all;
  std::vector<std::vector<float>> others;
  std::mutex mutex;
  launch(a.ranks, [&](RankContext& rank) {
    ArrangedModel arranged(rank, m, a, 5);
    nn::CausalModel& model = *arranged.model;
    // gpt2's key bias adds the same to a query's scores for all keys. Its gradient is rounding alone: an
    // element is exactly 0 now and then, and would be counted.
    for (auto& [name, p] : model.named_parameters())
      if (name.ends_with("k_attn.bias")) Parameter(p).freeze();
    if (plan.prepare) plan.prepare(model);
    if (a.layout == LayoutPolicy::whole_param)
      for (auto& [name, p] : model.named_parameters())
        if (p.shape().size() == 2) Parameter(p).set_cut(CutClass::row);
    const Routing routing = route(model, {.optimizer = plan.optimizer});
    arranged.shard();
    Optimizer optimizer(model, routing, {.adamw = {.eps = plan.eps}, .weight_decay = 0.1});
    if (a.logit_maxima)
      optimizer.after_update(
          std::make_shared<QkClip>(model, model.logit_maxima(), QkClipOptions{.tau = plan.tau}));
    if (!plan.from.empty()) resume(plan.from, model, &optimizer);
    nn::Tape tape;
    std::vector<float> losses, norms, next_losses;
    std::vector<int64_t> zeros;
    const int64_t rows = plan.batch / a.data_ranks(), first = arranged.data_rank * rows;
    const Shape shape{rows, plan.seq};
    for (int64_t step = plan.first_step; step < plan.first_step + plan.steps; ++step) {
      const float scale = static_cast<float>(a.context) / static_cast<float>(numel_of(shape));
      nn::NextTokens next;
      if (plan.next_weight > 0) {
        next = {.tokens = tokens(*rank.device, m, shape, first, step + 1),
                .targets = tokens(*rank.device, m, shape, first, step + 2),
                .scale = plan.next_weight * scale,
                .loss_sum = Tensor::empty(*rank.device, {1}, DType::f64, "loss")};
        ops::fill(rank.device->compute(), next.loss_sum, 0);
      }
      const nn::Var in = tape.input(tokens(*rank.device, m, shape, first, step));
      const Tensor targets = tokens(*rank.device, m, shape, first, step + 1, plan.ignored_every);
      const nn::Documents documents =
          plan.documents ? plan.documents(*rank.device, shape, first) : nn::Documents();
      const nn::CrossEntropy loss = plan.objective
                                        ? plan.objective(model, in, arranged.context.slice(targets), scale)
                                        : model(in, targets, scale, documents, next);
      if (plan.next_weight > 0) {
        double sum = 0;
        ops::copy_to_host(rank.device->compute(), &sum, next.loss_sum);
        next_losses.push_back(static_cast<float>(mean_over_ranks(model, sum * double{scale})));
      }
      losses.push_back(static_cast<float>(read_loss(model, loss.losses)));
      tape.backward(loss.objective);
      const GradientStats stats = read_stats(model, clip_grad_norm(model, 0.5));
      norms.push_back(stats.norm);
      zeros.push_back(stats.zeros);
      optimizer.step(0.01);
      model.update_selection_bias();
    }
    if (!plan.to.empty())
      CheckpointSaver(rank.world, checkpoint_tensors(model, &optimizer),
                      {.folder = plan.to, .overwrite = true})
          .save({.step = optimizer.steps(), .sequences = 0});
    model.set_training(false);
    const std::vector<float> logits =
        ops::to_floats(rank.device->compute(), model(tokens(*rank.device, m, {2, plan.seq}, 0, 9)));
    if (plan.look) plan.look(rank, arranged, rank.world->rank());
    const std::lock_guard lock(mutex);
    for (auto& [name, p] : model.named_parameters()) {
      auto& whole = all.weights[name];
      whole.resize(static_cast<size_t>(numel_of(p.global_shape())));
      const std::vector<float> mine = ops::to_floats(rank.device->compute(), p.shard());
      size_t at = 0;
      for (const GlobalRun& run : p.global_runs(p.shard_range()))
        for (int64_t i = 0; i < run.count; ++i) whole[static_cast<size_t>(run.global.value + i)] = mine[at++];
    }
    if (all.losses.empty())
      all.losses = losses, all.norms = norms, all.zeros = zeros, all.next_losses = next_losses;
    EXPECT_EQ(next_losses, all.next_losses) << "ranks differ";
    if (rank.world->rank() == 0) all.logits = logits;
    EXPECT_EQ(losses, all.losses) << "ranks differ";
    EXPECT_EQ(norms, all.norms) << "ranks differ";
    others.push_back(logits);
  });
  // Expert parallel ranks compute the rows of all of them in one product, where a row's rounding may depend on its place
  // (oneDNN's AVX2 kernels): their logits for equal tokens are equal to rounding, those of other ranks in bits.
  for (const std::vector<float>& logits : others) {
    if (a.ep == 1)
      EXPECT_EQ(logits, all.logits) << "ranks differ";
    else
      EXPECT_LT(distance(logits, all.logits), 1e-5) << "ranks differ";
  }
  return all;
}

inline void expect_same_bits(const Outcome& got, const Outcome& want, const char* what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  EXPECT_EQ(got.next_losses, want.next_losses) << what;
  EXPECT_EQ(got.norms, want.norms) << what;
  EXPECT_EQ(got.logits, want.logits) << what;
  EXPECT_EQ(got.weights, want.weights) << what;
}

/// Over eight to twelve seeds of ten families on 2 and 4 ranks, losses differ by up to 4e-7, norms by 3e-5, logits by 7e-5.
/// A sum of few terms may be exactly zero in one order and not in another.
inline void expect_near(const Outcome& got, const Outcome& want, const char* what) {
  EXPECT_LT(distance(got.losses, want.losses), 2e-6) << what;
  if (!want.next_losses.empty()) {
    EXPECT_LT(distance(got.next_losses, want.next_losses), 2e-6) << what;
  }
  EXPECT_LT(distance(got.norms, want.norms), 1e-4) << what;
  ASSERT_EQ(got.zeros.size(), want.zeros.size()) << what;
  for (size_t i = 0; i < got.zeros.size(); ++i) EXPECT_LE(std::abs(got.zeros[i] - want.zeros[i]), 2) << what;
  EXPECT_LT(distance(got.logits, want.logits), 2e-4) << what;
}

}  // namespace sherd::test
