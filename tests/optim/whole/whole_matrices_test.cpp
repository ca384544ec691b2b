// A rule of the program's own over shards: the bits of one rank on any ranks, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/weights_change.h>
#include <sherd/optim/whole_matrices.h>

#include "optim/whole_tensors.h"

#include "support/message_of.h"
#include "support/toy_model.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

/// x / (1 + (largest element + sum of all)^2): every element of the result depends on the whole matrix.
struct WholeRule : MatrixRule {
  explicit WholeRule(std::string words = "by the largest") : words_(std::move(words)) {}
  std::string name() const override { return "Whole"; }
  std::string settings() const override { return words_; }
  double matrix_flops(int64_t rows, int64_t cols) const override {
    return static_cast<double>(3 * rows * cols);
  }
  double scale(int64_t rows, int64_t) const override { return 1.0 / static_cast<double>(rows); }
  void compute(Stream& s, const Tensor& out, const Tensor& in, const Tensor&) override {
    s.submit("whole", [=](ExecutionContext&) {
      const int64_t n = in.size(1) * in.size(2);
      for (int64_t at = 0; at < in.numel(); at += n) {
        const float *x = in.data<float>() + at, sum = std::accumulate(x, x + n, 0.0f);
        const float largest = *std::max_element(x, x + n) + sum;
        for (int64_t i = 0; i < n; ++i) out.data<float>()[at + i] = x[i] / (1 + largest * largest);
      }
    });
  }
  std::string words_;
};

struct WholeModel : MadeGradients {
  WholeModel() {
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"tall", {11, 3}},
                                      {"wide", {2, 9}},
                                      {"fused", {8, 5}},
                                      {"stack", {3, 4, 4}},
                                      {"row", {1, 6}}})
      param(name, shape, normal(0.1f)).set_cut(CutClass::row);
    own_parameters()[2].set_row_blocks({5, 3});
  }
  int step = 0;
  void put_gradients() override {
    for (auto& p : own_parameters()) {
      std::vector<float> g(static_cast<size_t>(p.numel()));
      for (size_t i = 0; i < g.size(); ++i)
        g[i] = std::sin(0.37f * static_cast<float>(i * i % 101) + static_cast<float>(step));
      const Tensor grad = p.grad();
      Stream& stream = grad.device().compute();
      const Tensor mine = Tensor::empty(grad.device(), grad.shape(), DType::f32, "test");
      ops::copy_from_host(stream, mine, g.data(), grad.nbytes());
      ops::scaled_add(stream, grad, 1, mine);
    }
  }
};

std::vector<UpdateItem> items_of(WholeModel& model) {
  std::vector<UpdateItem> items;
  for (auto& p : model.own_parameters()) items.push_back({p, 0.1});
  return items;
}

// Averages over 1, 2 and 4 ranks of equal gradients are these gradients.
std::vector<std::vector<float>> trained(int ranks, const FullyShardOptions& shard, MatrixMode mode,
                                        DType payload) {
  std::vector<std::vector<float>> weights;
  launch(ranks, [&](RankContext& r) {
    WholeModel model;
    fully_shard(model, DeviceMesh(r.world, {{"shard", ranks}}), shard);
    WholeMatrices rule(*r.device, items_of(model), std::make_shared<WholeRule>(),
                       {.mode = mode, .payload = payload, .transient_bytes = 4096});
    const Tensor x = Tensor::empty(*r.device, {1}, DType::f32, "test");
    Stream& s = r.device->compute();
    for (model.step = 0; model.step < 5; ++model.step) {
      run_pass(model, x);
      WeightsChange change(runtime_of(model));
      rule.step(s, 0.02);
      change.end();
    }
    std::vector<std::vector<float>> mine;
    for (auto& p : model.own_parameters()) mine.push_back(whole(p, p.shard(), s));
    for (auto& state : rule.state()) mine.push_back(whole(state.param, state.local, s));
    if (r.world->rank() == 0) weights = std::move(mine);
  });
  return weights;
}

TEST(WholeMatrices, HaveTheBitsOfOneRank) {
  for (const DType payload : {DType::f32, DType::bf16}) {
    const auto one = trained(1, {}, MatrixMode::automatic, payload);
    for (const int ranks : {2, 4})
      for (const Strategy strategy : {Strategy::no_shard, Strategy::optim, Strategy::optim_grads_params})
        for (const LayoutPolicy layout :
             {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
          for (const MatrixMode mode : {MatrixMode::automatic, MatrixMode::owner, MatrixMode::gather})
            EXPECT_TRUE(
                same_bits(trained(ranks, {.strategy = strategy, .layout = layout}, mode, payload), one))
                << ranks << " ranks, " << name_of(strategy) << ", " << name_of(layout) << ", "
                << name_of(mode);
  }
}

// The error of the constructor on two ranks; `words`: settings of each rank's rule.
std::string refused(const MomentumOptions& options,
                    const std::array<const char*, 2>& words = {"same", "same"}) {
  return message_of<std::exception>([&] {
    launch(2, [&](RankContext& r) {
      WholeModel model;
      fully_shard(model, DeviceMesh(r.world, {{"shard", 2}}));
      const char* mine = words[static_cast<size_t>(r.world->rank())];
      WholeMatrices(*r.device, items_of(model), std::make_shared<WholeRule>(mine), options);
    });
  });
}

TEST(WholeMatrices, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refused({}, {"one", "another"}), HasSubstr("the ranks made different Whole plans"));
  EXPECT_THAT(refused({.mode = MatrixMode::gram}), HasSubstr("Whole mode gram"));
  EXPECT_THAT(refused({.momentum = 2, .transient_bytes = -1}),
              HasSubstr("Whole: momentum 2 must lie in [0, 1); transient_bytes -1"));
}

}  // namespace
}  // namespace sherd::test
