// Routers, gates and the balancing loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "differences.h"
#include "golden_values.h"
#include "nets.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

constexpr int64_t kRouterExperts = 4, kRouterDim = 3;

struct Router : nn::Module<Router> {
  Parameter w = param("weight", {kRouterExperts, kRouterDim}, normal(0.8f));
  std::function<Var(const nn::RouterLogits&)> f;
  Var forward(const Var& x) { return f(nn::router_logits(x, w)); }
};

TEST(Routing, RouterLogitsHaveTheDerivativeByWhatIsUsedOfThem) {
  launch(1, [](RankContext& rank) {
    Router model;
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.strategy = Strategy::no_shard},
                {.allow_unused = true});
    runtime_of(model).set_last_microbatch(false);
    const std::vector<std::function<Var(const nn::RouterLogits&)>> uses = {
        [](const nn::RouterLogits& r) { return weighted(r.logits); },
        [](const nn::RouterLogits& r) { return weighted(nn::gelu(r.x)); },
        [](const nn::RouterLogits& r) { return weighted(r.logits) + weighted(nn::gelu(r.x)); },
    };
    for (const auto& use : uses) {
      model.f = use;
      expect_gradient([&](Tape&, const auto& v) { return model(v[0]); },
                      {random(*rank.device, {5, kRouterDim}, 4)});
    }
  });
}

TEST(Routing, LogitsAreF32WhateverTheActivations) {
  launch(1, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    Router model;
    model.f = [](const nn::RouterLogits& r) {
      EXPECT_EQ(r.logits.dtype(), DType::f32);
      return r.logits;
    };
    fully_shard(model, DeviceMesh(rank.world, {{"shard", 1}}), {.compute_dtype = DType::bf16});
    const Tensor bf16 = Tensor::empty(*rank.device, {5, kRouterDim}, DType::bf16, "test");
    ops::cast(s, bf16, random(*rank.device, {5, kRouterDim}, 4));
    Tape tape;
    const Var x = tape.leaf(bf16);
    tape.backward(nn::sum(model(x)));
    EXPECT_EQ(tape.gradient(x).dtype(), DType::bf16);
    // The gradient of a sum by x is the same for every row, the sum of the router's rows; by w it is x's sum.
    const std::vector<float> dx = ops::to_floats(s, tape.gradient(x)), w = ops::to_floats(s, model.w.shard()),
                             dw = ops::to_floats(s, model.w.grad_shard()), in = ops::to_floats(s, bf16);
    for (size_t c = 0; c < kRouterDim; ++c) {
      double by_x = 0, by_w = 0;
      for (size_t e = 0; e < kRouterExperts; ++e) by_x += w[e * kRouterDim + c];
      for (size_t r = 0; r < 5; ++r) by_w += in[r * kRouterDim + c];
      // Four weights and their sum, each rounded to 8 bits; x is as it is.
      for (size_t r = 0; r < 5; ++r) EXPECT_NEAR(dx[r * kRouterDim + c], by_x, 5 * 0x1p-8 * 2);
      for (size_t e = 0; e < kRouterExperts; ++e) EXPECT_NEAR(dw[e * kRouterDim + c], by_w, 1e-5);
    }
  });
}

TEST(Routing, GatesDispatchAndCombineHaveTheirDerivative) {
  auto device = make_cpu_device();
  for (const int64_t k : {1, 2}) {
    // Logits far enough apart that no step changes a choice.
    const Tensor logits = random(*device, {6, kRouterExperts}, 11), x = random(*device, {6, kRouterDim}, 12);
    std::vector<float> spread = ops::to_floats(device->compute(), logits);
    for (size_t i = 0; i < spread.size(); ++i)
      spread[i] = 0.05f * spread[i] + 0.5f * static_cast<float>((3 * i + i / 4) % 4);
    ops::copy_from_host(device->compute(), logits, spread.data(), logits.nbytes());
    for (size_t r = 0; r < 6; ++r)
      for (size_t a = 0; a < 4; ++a)
        for (size_t b = 0; b < a; ++b)
          ASSERT_GT(std::abs(spread[r * 4 + a] - spread[r * 4 + b]), 4 * kStep) << "choose another seed";
    expect_gradient([&](Tape&, const auto& v) { return weighted(nn::route_top_k(v[0], k).gates); }, {logits});
    expect_gradient(
        [&](Tape&, const auto& v) {
          const nn::Routes routes = nn::route_top_k(v[1], k);
          const Var rows = nn::dispatch(v[0], routes);
          return weighted(rows) + weighted(nn::combine(nn::gelu(rows), routes));
        },
        {x, logits});
  }
}

std::vector<int32_t> integers(Stream& s, const Tensor& t) {
  const Tensor host = Tensor::host(t.device(), t.shape(), t.dtype(), "test");
  ops::copy(s, host, t);
  s.synchronize();
  return {host.data<int32_t>(), host.data<int32_t>() + host.numel()};
}

TEST(Routing, EveryRowIsDispatchedToItsExpertsInOrder) {
  auto device = make_cpu_device();
  Stream& s = device->compute();
  const Tensor logits = Tensor::empty(*device, {3, kRouterExperts}, DType::f32, "test");
  const std::vector<float> values{0, 5, 1, 4, /**/ 9, 8, 7, 6, /**/ 2, 2, 2, 2};
  ops::copy_from_host(s, logits, values.data(), logits.nbytes());
  const nn::Routes routes = nn::route_top_k(Var(logits), 2);
  EXPECT_EQ(integers(s, routes.indices), (std::vector<int32_t>{1, 3, 0, 1, 0, 1}));
  EXPECT_EQ(integers(s, routes.counts), (std::vector<int32_t>{2, 3, 0, 1}));
  EXPECT_EQ(integers(s, routes.order), (std::vector<int32_t>{2, 4, 0, 3, 5, 1}))
      << "row * 2 + slot, by expert";
  EXPECT_EQ(integers(s, routes.position), (std::vector<int32_t>{2, 5, 0, 3, 1, 4})) << "its inverse";
  const Tensor x = Tensor::empty(*device, {3, 1}, DType::f32, "test");
  const std::vector<float> rows{10, 20, 30};
  ops::copy_from_host(s, x, rows.data(), x.nbytes());
  const Var sent = nn::dispatch(Var(x), routes);
  EXPECT_EQ(ops::to_floats(s, sent.value()), (std::vector<float>{20, 30, 10, 20, 30, 10}));
  // Both gates of a row sum to 1.
  const std::vector<float> back = ops::to_floats(s, nn::combine(sent, routes).value());
  for (size_t r = 0; r < 3; ++r) EXPECT_NEAR(back[r], rows[r], 1e-5);
  EXPECT_FALSE(nn::combine(sent, routes).requires_grad());
}

TEST(Routing, RefusesOtherNumbersOfExperts) {
  auto device = make_cpu_device();
  EXPECT_THROW(nn::route_top_k(Var(random(*device, {2, 4}, 1)), 5), InvalidArgument);
  EXPECT_THROW(nn::route_top_k(Var(random(*device, {2, 1}, 1)), 2), InvalidArgument);
}

// With k = 2 the gates of a row sum to 1, whatever the logits: the gradient of their sum is that of the balancing loss.
TEST(Routing, TheBalancingLossCountsTheChoicesOfAllRanks) {
  constexpr int kRanks = 3;
  constexpr size_t kRows = 5;
  constexpr double kWeight = 0.5, kScale = 0.25;
  std::vector<std::vector<float>> logits(kRanks), gradients(kRanks);
  for (const bool everywhere : {true, false}) {
    launch(kRanks, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      const auto me = static_cast<size_t>(rank.world->rank());
      const Tensor in = random(*rank.device, {kRows, kRouterExperts}, 40 + me);
      std::shared_ptr<Communicator> ranks;
      if (everywhere) ranks = rank.world->clone();
      Tape tape;
      const auto gates = [&](const Var& x) {
        return nn::route_top_k(x, 2, {static_cast<float>(kWeight), static_cast<float>(kScale), ranks}).gates;
      };
      {
        const nn::NoGrad scope(tape);
        gates(tape.input(in));
        EXPECT_EQ(rank.world->counts()["all_reduce"].calls, 0) << "for a gradient that nobody wants";
      }
      const Var x = tape.leaf(in);
      tape.backward(nn::sum(gates(x)));
      EXPECT_EQ(rank.world->counts()["all_reduce"].calls, everywhere ? 1 : 0);
      logits[me] = ops::to_floats(s, in);
      gradients[me] = ops::to_floats(s, tape.gradient(x));
    });
    for (size_t me = 0; me < kRanks; ++me) {
      std::vector<double> share(kRouterExperts);
      for (size_t other = 0; other < kRanks; ++other)
        for (size_t r = 0; r < kRows && (everywhere || other == me); ++r) {
          const float* row = &logits[other][r * kRouterExperts];
          for (size_t e = 0; e < kRouterExperts; ++e)  // among the two best
            if (std::count_if(row, row + kRouterExperts, [&](float v) { return v > row[e]; }) < 2)
              share[e] += 1 / static_cast<double>(kRows * (everywhere ? kRanks : 1));
        }
      for (size_t r = 0; r < kRows; ++r) {
        const float* row = &logits[me][r * kRouterExperts];
        double total = 0, mean = 0;
        for (size_t e = 0; e < kRouterExperts; ++e) total += std::exp(static_cast<double>(row[e]));
        for (size_t e = 0; e < kRouterExperts; ++e)
          mean += std::exp(static_cast<double>(row[e])) / total * share[e];
        for (size_t e = 0; e < kRouterExperts; ++e) {
          const double p = std::exp(static_cast<double>(row[e])) / total;
          // n / n rows: the mean over rows is weighted by their number.
          EXPECT_NEAR(gradients[me][r * kRouterExperts + e],
                      kScale * kWeight * kRouterExperts * p * (share[e] - mean), 1e-6);
        }
      }
    }
  }
}

// Normalised gates sum to 1: the gradient of their sum is that of the balancing loss. 1e-6: sums of a few products in f32
// of values up to 3.
TEST(Routing, TheBalancingLossOfSeveralLayersIsThatOfTransformers) {
  const auto golden = nlohmann::json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + "/balancing.json"));
  const int64_t rows = golden["rows"], experts = golden["experts"];
  for (const auto& c : golden["cases"])
    for (const int ranks : {1, 3})
      for (const bool recomputed : {false, true})
        launch(ranks, [&](RankContext& rank) {
          const auto lengths = c["lengths"].get<std::vector<int32_t>>();
          SCOPED_TRACE(fmt::format("{} layers, k {}, {} of {} rows in {} sequences, {} ranks, recomputed {}",
                                   c["layers"].get<int>(), c["k"].get<int>(),
                                   std::accumulate(lengths.begin(), lengths.end(), 0), rows, lengths.size(),
                                   ranks, recomputed));
          const auto counted = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), 0));
          Stream& s = rank.device->compute();
          const int layers = c["layers"];
          const int64_t mine = rows / ranks * experts, first = rank.world->rank() * mine;
          ops::RowsOfSequences places{first / experts, rows / std::ssize(lengths), {}};
          if (counted < static_cast<double>(rows)) {
            places.lengths = Tensor::empty(*rank.device, {std::ssize(lengths)}, DType::i32, "test");
            ops::copy_from_host(s, places.lengths, lengths.data(), places.lengths.nbytes());
          }
          const auto loads = std::make_shared<nn::LayerLoads>(layers);
          const auto everywhere = rank.world->clone();
          Tape tape;
          std::vector<Var> logits, sums;
          std::vector<double> load(static_cast<size_t>(experts)), mean(load.size());
          for (int l = 0; l < layers; ++l) {
            const std::vector<float> all = golden_values(rows * experts, l);
            const Tensor in = Tensor::empty(*rank.device, {rows / ranks, experts}, DType::f32, "test");
            ops::copy_from_host(s, in, all.data() + first, in.nbytes());
            logits.push_back(tape.leaf(in));
            const auto gates = [=, k = c["k"].get<int64_t>()](const Var& x) {
              return nn::route_top_k(x, k,
                                     {.weight = 1,
                                      .scale = static_cast<float>(1 / counted),
                                      .ranks = everywhere,
                                      .loads = loads,
                                      .layer = l,
                                      .rows = places},
                                     true)
                  .gates;
            };
            sums.push_back(nn::sum(recomputed ? nn::recompute(gates, logits.back()) : gates(logits.back())));
            // The loss, of the rows of all ranks.
            const nn::Routes routes = nn::route_top_k(Var(in), c["k"].get<int64_t>());
            std::vector<int32_t> counts(load.size());
            ops::fill(s, routes.counts, 0);
            ops::count_choices(s, routes.counts, routes.indices, places);
            rank.world->all_reduce(s, routes.counts);
            ops::copy_to_host(s, counts.data(), routes.counts);
            for (size_t e = 0; e < load.size(); ++e) load[e] += counts[e] / (counted * layers);
            for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
              const auto of_sequence = static_cast<size_t>(places.seq);
              if (r % of_sequence >= static_cast<size_t>(lengths[r / of_sequence])) continue;
              const float* const row = &all[r * load.size()];
              double total = 0;
              for (size_t e = 0; e < load.size(); ++e) total += std::exp(static_cast<double>(row[e]));
              for (size_t e = 0; e < load.size(); ++e)
                mean[e] += std::exp(static_cast<double>(row[e])) / total / (counted * layers);
            }
          }
          Var sum = sums[0];
          for (size_t l = 1; l < sums.size(); ++l) sum = sum + sums[l];
          tape.backward(sum);
          double loss = 0;
          for (size_t e = 0; e < load.size(); ++e) loss += static_cast<double>(experts) * load[e] * mean[e];
          EXPECT_NEAR(loss, c["loss"].get<double>(), 1e-6);
          for (size_t l = 0; l < logits.size(); ++l) {
            const std::vector<float> got = ops::to_floats(s, tape.gradient(logits[l]));
            for (size_t i = 0; i < got.size(); ++i)
              EXPECT_NEAR(got[i], c["gradients"][l][static_cast<size_t>(first) + i].get<double>(), 1e-6)
                  << "layer " << l << ", element " << i;
          }
        });
}

}  // namespace
}  // namespace sherd::test
