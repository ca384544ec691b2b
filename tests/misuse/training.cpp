#include "misuse/training.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

namespace sherd::misuse {
namespace {

std::vector<int> all_steps(const Plan& plan) {
  std::vector<int> steps(static_cast<size_t>(plan.steps));
  std::iota(steps.begin(), steps.end(), 0);
  return steps;
}

DeviceMesh mesh_of(RankContext& rank, const Plan& plan) {
  const int shard = plan.ranks / plan.replicas;
  if (plan.replicas == 1) return DeviceMesh(rank.world, {{"shard", shard}});
  return DeviceMesh(rank.world, {{"replicate", plan.replicas}, {"shard", shard}});
}

}  // namespace

std::string Plan::describe() const {
  return fmt::format("{} ranks, {} replicas, {}, {}, {} microbatches, {}, {}", ranks, replicas,
                     sherd::name_of(options.strategy), sherd::name_of(options.layout), accumulate,
                     sherd::name_of(algorithm), clip > 0 ? "clipped" : "not clipped");
}

Plan random_plan(Dice& dice) {
  Plan plan;
  plan.ranks = dice.of<int>({2, 2, 3, 4});
  plan.replicas = plan.ranks == 4 && dice.chance(40) ? 2 : 1;
  plan.accumulate = dice.of<int>({1, 1, 2});
  plan.options.strategy = dice.of<Strategy>(
      {Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params});
  plan.options.layout =
      dice.of<LayoutPolicy>({LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param});
  plan.root.overlap_reduce = dice.chance(70);
  plan.algorithm = dice.of<Algorithm>({Algorithm::adamw, Algorithm::muon});
  plan.clip = dice.of<double>({0, 0.5});
  plan.optimizer.weight_decay = 0.1;
  return plan;
}

LaunchOptions watched(int milliseconds) {
  LaunchOptions o;
  o.device.kernels = parse_cpu_kernels(TEST_KERNELS);
  o.device.threads = 1;
  o.timeout = std::chrono::milliseconds(milliseconds);
  return o;
}

Stack::Stack(int blocks) {
  for (int i = 0; i < blocks; ++i) {
    blocks_.push_back(std::make_shared<test::ToyBlock>(kWidth, 12));
    child("blocks." + std::to_string(i), *blocks_.back());
    order.push_back(static_cast<size_t>(i));
  }
  gain = param("gain.weight", {kWidth}, constant(1));
}

nn::Var Stack::forward(const nn::Var& in) {
  point("forward begins");
  nn::Var x = in;
  for (size_t i : order) {
    x = (*blocks_[i])(backward_point(x, "backward between blocks"));
    point("forward between blocks");
  }
  x = nn::rms_norm(x, gain);
  point("forward ends");
  return backward_point(x, "backward begins");
}

Training::Training(RankContext& r, const Plan& p) : Training(r, p, mesh_of(r, p), p.options) {}

Training::Training(RankContext& r, const Plan& p, const DeviceMesh& mesh, const FullyShardOptions& options,
                   const DeviceMesh* of_last_block)
    : rank(r), plan(p), stack(std::make_unique<Stack>(p.blocks)) {
  routing = route(*stack, {.optimizer = plan.algorithm});
  for (size_t i = 0; i < stack->blocks(); ++i)
    fully_shard(stack->block(i), of_last_block && i + 1 == stack->blocks() ? *of_last_block : mesh, options);
  fully_shard(*stack, mesh, options, plan.root);
  optimizer.emplace(*stack, routing, plan.optimizer);
  in = Tensor::empty(*rank.device, {Stack::kRows, Stack::kWidth}, DType::f32, "test");
  dy = Tensor::empty(*rank.device, {Stack::kRows, Stack::kWidth}, DType::f32, "test");
}

void Training::load(int batch) {
  const int64_t at = (int64_t{batch} * rank.world->size() + rank.world->rank()) * in.numel();
  ops::random_normal(stream(), in, at, 1, "in", 0, 1);
  ops::random_normal(stream(), dy, at, 1, "dy", 0, 1);
}

void Training::clip() {
  if (plan.clip != 0) clip_grad_norm(*stack, plan.clip);
}

void Training::step(int number) {
  for (int m = 0; m < plan.accumulate; ++m) {
    runtime_of(*stack).set_last_microbatch(m + 1 == plan.accumulate);
    load(number * plan.accumulate + m);
    forward();
    backward();
  }
  clip();
  update();
}

void Training::give_up() {
  taped.tape.clear();
  reset_step(*stack);
}

Weights Training::weights() {
  Weights all;
  for (auto& [name, p] : stack->named_parameters())
    all.push_back(ops::to_floats(stream(), p.dtensor().full_tensor(stream())));
  stream().synchronize();
  return all;
}

std::string Results::compared_with(const Weights& want) const {
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    const Weights& got = all_[rank];
    if (got.size() != want.size()) return fmt::format("rank {} has no weights", rank);
    for (size_t p = 0; p < got.size(); ++p) {
      if (got[p].size() != want[p].size())
        return fmt::format("rank {}, parameter {}: {} elements instead of {}", rank, p, got[p].size(),
                           want[p].size());
      for (size_t i = 0; i < got[p].size(); ++i)
        if (std::memcmp(&got[p][i], &want[p][i], sizeof(float)) != 0)
          return fmt::format("rank {}, parameter {}, element {}: {} instead of {}", rank, p, i, got[p][i],
                             want[p][i]);
    }
  }
  return "";
}

Weights reference(const Plan& plan, const std::vector<int>& steps) {
  Results results(plan.ranks);
  sherd::launch(plan.ranks, watched(60'000), [&](RankContext& rank) {
    Training training(rank, plan);
    for (int step : steps) training.step(step);
    results.put(rank.world->rank(), training.weights());
  });
  if (const std::string wrong = results.compared_with(results.of(0)); !wrong.empty())
    throw std::logic_error("the reference differs from rank to rank: " + wrong);
  return results.of(0);
}

Weights reference(const Plan& plan) { return reference(plan, all_steps(plan)); }

bool finite(const Weights& weights) {
  for (auto& p : weights)
    for (float v : p)
      if (!std::isfinite(v)) return false;
  return true;
}

}  // namespace sherd::misuse
