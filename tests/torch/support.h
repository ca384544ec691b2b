// Shared parts of the adapter's tests: a model of libtorch modules on one rank and sharded over several, on
// the same data.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/torch/call.h>
#include <sherd/torch/fully_shard.h>

namespace torch_test {

using sherd::FullyShardOptions;
using sherd::RankContext;
using sherd::Strategy;

inline const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all{Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                         Strategy::optim_grads_params};
  return all;
}

/// Values by parameter name.
using Values = std::map<std::string, torch::Tensor>;

/// libtorch has one random generator for all threads: models of ranks are made equal, not random alike.
inline void copy_weights(const torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  const auto params = from.named_parameters(), buffers = from.named_buffers();
  for (auto& p : to.named_parameters()) p.value().copy_(params[p.key()]);
  for (auto& b : to.named_buffers()) b.value().copy_(buffers[b.key()]);
}

inline torch::Tensor random(torch::IntArrayRef sizes, int seed) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return torch::randn(sizes, generator);
}

inline Values gradients(torch::nn::Module& model) {
  Values all;
  for (auto& p : model.named_parameters())
    if (p.value().requires_grad() && p.value().grad().defined()) all[p.key()] = p.value().grad().clone();
  return all;
}

/// The sum over ranks as collectives make it, neighbours first.
inline torch::Tensor tree_sum(std::vector<torch::Tensor> terms) {
  while (terms.size() > 1) {
    std::vector<torch::Tensor> sums;
    for (size_t i = 0; i < terms.size(); i += 2)
      sums.push_back(i + 1 < terms.size() ? terms[i] + terms[i + 1] : terms[i]);
    terms = std::move(sums);
  }
  return terms.front();
}

inline Values mean(const std::vector<Values>& ranks) {
  Values all;
  for (auto& [name, value] : ranks.front()) {
    std::vector<torch::Tensor> terms;
    for (auto& r : ranks) terms.push_back(r.at(name));
    all[name] = tree_sum(terms);
    if (ranks.size() > 1) all[name] = all[name] * (1.0f / static_cast<float>(ranks.size()));
  }
  return all;
}

inline std::vector<float> part_of(const torch::Tensor& whole, sherd::ParamRange range) {
  const torch::Tensor flat = whole.detach().contiguous().reshape({-1});
  return {flat.data_ptr<float>() + range.begin.value, flat.data_ptr<float>() + range.end.value};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return a.size() == b.size();  // memcmp() takes no null pointer
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// This rank's pieces of the gradients (or weights) are, bit for bit, those of `want`.
inline void expect_shards(torch::nn::Module& model, const Values& want, bool of_gradients,
                          const std::string& where) {
  sherd::ModuleBase& root = sherd::torch::root_of(model);
  sherd::Stream& compute = sherd::runtime_of(root).device().compute();
  for (auto& [name, p] : root.named_parameters()) {
    if (of_gradients && !p.trainable()) continue;
    ASSERT_TRUE(want.contains(name)) << name;
    const auto have = sherd::ops::to_floats(compute, of_gradients ? p.grad_shard() : p.shard());
    EXPECT_TRUE(same_bits(have, part_of(want.at(name), p.shard_range()))) << name << ", " << where;
  }
}
inline void expect_gradients(torch::nn::Module& model, const Values& want, const std::string& where) {
  expect_shards(model, want, true, where);
}
inline void expect_weights(torch::nn::Module& model, const Values& want, const std::string& where) {
  expect_shards(model, want, false, where);
}

inline sherd::DeviceMesh mesh_of(const RankContext& rank) {
  return sherd::DeviceMesh(rank.world, {{"shard", rank.world->size()}});
}

inline std::string where(const RankContext& rank, Strategy strategy) {
  return fmt::format("{}, rank {} of {}", sherd::name_of(strategy), rank.world->rank(), rank.world->size());
}

/// One thread for each rank's kernels: libtorch's sums depend on their number.
inline void launch(int ranks, const std::function<void(RankContext&)>& body) {
  at::set_num_threads(1);
  sherd::LaunchOptions options;
  options.device.threads = 1;
  sherd::launch(ranks, options, [&](RankContext& rank) {
    at::set_num_threads(1);
    body(rank);
  });
}

/// The message of the exception that f ends with; "" when it ends with none.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

/// For models that SHERD_TORCH_MODULE wraps, and their data: what one rank would do with each rank's batch,
/// and what the sharded model does.
template <class Net>
struct Comparison {
  using Loss = std::function<torch::Tensor(Net&, int rank)>;
  using Wrap = std::function<void(Net&, const sherd::DeviceMesh&, const FullyShardOptions&)>;
  Loss loss;
  Wrap wrap;
  bool allow_unused = false;
  std::vector<int> worlds = {1, 3, 4};

  void run() const {
    torch::manual_seed(7);
    Net first;
    for (const int ranks : worlds) {
      std::vector<Values> each, buffers;
      at::set_num_threads(1);
      for (int r = 0; r < ranks; ++r) {
        Net plain;
        copy_weights(*first, *plain);
        loss(plain, r).backward();
        Values g = gradients(*plain);
        for (auto& p : plain->named_parameters())  // what is unused has zeros
          if (p.value().requires_grad() && !g.contains(p.key())) g[p.key()] = torch::zeros_like(p.value());
        each.push_back(std::move(g));
        buffers.emplace_back();
        for (auto& b : plain->named_buffers()) buffers.back()[b.key()] = b.value().clone();
      }
      const Values want = mean(each);
      for (const Strategy strategy : strategies()) {
        launch(ranks, [&](RankContext& rank) {
          Net model;
          copy_weights(*first, *model);
          FullyShardOptions options;
          options.strategy = strategy;
          wrap(model, mesh_of(rank), options);
          sherd::torch::fully_shard(*model, mesh_of(rank), options, {.allow_unused = allow_unused});
          loss(model, rank.world->rank()).backward();
          expect_gradients(*model, want, where(rank, strategy));
          for (auto& b : model->named_buffers())
            EXPECT_TRUE(torch::equal(b.value(), buffers[static_cast<size_t>(rank.world->rank())].at(b.key())))
                << b.key() << ", " << where(rank, strategy);
        });
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
};

}  // namespace torch_test
