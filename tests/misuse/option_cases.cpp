// Options: negative, not numbers, huge, of another rank; names and patterns that match nothing.
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <sherd/comm/backend.h>

#include "misuse/training.h"

namespace sherd::misuse {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Odd {
  std::string what;
  std::function<void(Plan&)> set;
};

double odd_number(Dice& dice) {
  return dice.of<double>({-1, -1e-3, kNan, kInf, -kInf, 1e30, 1e300, 1, 2, 0});
}
int odd_integer(Dice& dice) {
  return dice.of<int>({-1, -7, 1000, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()});
}

Odd wrap_option(Dice& dice) {
  const int n = odd_integer(dice);
  const double x = odd_number(dice);
  switch (dice.below(8)) {
    case 0:
      return {fmt::format("prefetch {}", n), [=](Plan& p) { p.root.prefetch = n; }};
    case 1:
      return {fmt::format("padding budget {}", x), [=](Plan& p) { p.options.padding_budget = x; }};
    case 2:
      return {fmt::format("gradient ranks {}", n), [=](Plan& p) { p.options.gradient_ranks = n; }};
    case 3: {
      const DType t = dice.of<DType>({DType::f16, DType::i32, DType::f64});
      return {fmt::format("compute in {}", sherd::name_of(t)), [=](Plan& p) { p.options.compute_dtype = t; }};
    }
    case 4: {
      const DType t = dice.of<DType>({DType::f16, DType::i64, DType::f64});
      return {fmt::format("reduce in {}", sherd::name_of(t)), [=](Plan& p) { p.options.reduce_dtype = t; }};
    }
    case 5: {
      const auto name = dice.of<std::string>({"", "gain", "blocks.0", "blocks.9.up.weight", "nothing"});
      return {fmt::format("'{}' ignored", name), [=](Plan& p) { p.root.ignored = {name}; }};
    }
    case 6:
      return {"another seed", [](Plan& p) { p.root.seed = 99; }};
    default:
      return {"another strategy", [](Plan& p) {
                p.options.strategy =
                    p.options.strategy == Strategy::optim ? Strategy::optim_grads_params : Strategy::optim;
              }};
  }
}

Odd optimizer_option(Dice& dice) {
  const double x = odd_number(dice);
  const auto f = static_cast<float>(x);
  switch (dice.below(9)) {
    case 0:
      return {fmt::format("lr {}", x), [=](Plan& p) { p.lr = x; }};
    case 1:
      return {fmt::format("weight decay {}", x), [=](Plan& p) { p.optimizer.weight_decay = x; }};
    case 2:
      return {fmt::format("beta1 {}", x), [=](Plan& p) { p.optimizer.adamw.beta1 = x; }};
    case 3:
      return {fmt::format("beta2 {}", x), [=](Plan& p) { p.optimizer.adamw.beta2 = x; }};
    case 4:
      return {fmt::format("eps {}", x), [=](Plan& p) { p.optimizer.adamw.eps = x; }};
    case 5:
      return {fmt::format("momentum {}", f), [=](Plan& p) {
                p.algorithm = Algorithm::muon;
                p.optimizer.muon.whole.momentum = f;
              }};
    case 6:
      return {fmt::format("scale factor {}", x), [=](Plan& p) {
                p.algorithm = Algorithm::muon;
                p.optimizer.muon.scale_factor = x;
              }};
    case 7: {
      const auto bytes = dice.of<int64_t>({-1, 0, 1, std::numeric_limits<int64_t>::max()});
      return {fmt::format("transient bytes {}", bytes), [=](Plan& p) {
                p.algorithm = Algorithm::muon;
                p.optimizer.muon.whole.transient_bytes = bytes;
              }};
    }
    default:
      return {fmt::format("clipped to {}", x), [=](Plan& p) { p.clip = x; }};
  }
}

Weights trained(const Plan& plan, const Plan& odd, int odd_rank, bool* skipped, std::string* wrong) {
  Results results(plan.ranks);
  sherd::launch(plan.ranks, watched(), [&](RankContext& rank) {
    const bool is_odd = odd_rank < 0 || rank.world->rank() == odd_rank;
    Training training(rank, is_odd ? odd : plan);
    for (int step = 0; step < plan.steps; ++step) training.step(step);
    results.put(rank.world->rank(), training.weights());
    if (rank.world->rank() == 0) *skipped = training.optimizer->skipped() > 0;
  });
  *wrong = results.compared_with(results.of(0));
  return results.of(0);
}

// Training with the odd value against the same under no_shard, or against that without it where one rank
// alone has it.
Case training_case(Dice& dice) {
  const Plan plan = [&] {
    Plan p = random_plan(dice);
    p.replicas = p.accumulate = 1;
    return p;
  }();
  const bool of_wrap = dice.chance(50);
  const Odd odd = of_wrap ? wrap_option(dice) : optimizer_option(dice);
  const int odd_rank = of_wrap && dice.chance(35) ? dice.below(plan.ranks) : -1;
  std::string name = fmt::format("{}; {}", odd.what, plan.describe());
  if (odd_rank >= 0) name += fmt::format("; on rank {} alone", odd_rank);
  return {name, [=]() -> std::string {
            Plan changed = plan;
            odd.set(changed);
            bool skipped = false;
            std::string differing;
            const Weights got = trained(plan, changed, odd_rank, &skipped, &differing);
            if (!differing.empty()) return "ranks differ: " + differing;
            Plan flat = odd_rank < 0 ? changed : plan;
            flat.options.strategy = Strategy::no_shard;
            flat.options.layout = LayoutPolicy::ragged;
            Results all(1);
            all.put(0, got);
            if (const std::string wrong = all.compared_with(reference(flat)); !wrong.empty()) return wrong;
            return finite(got) || skipped ? "" : "weights that are not finite, and no step was skipped";
          }};
}

Case launch_case(Dice& dice) {
  struct Wrong {
    std::string what;
    int ranks;
    std::function<void(LaunchOptions&)> set;
  };
  const auto wrong = dice.of<Wrong>({
      {"0 ranks", 0, [](LaunchOptions&) {}},
      {"-3 ranks", -3, [](LaunchOptions&) {}},
      {"device 'tpu'", 2, [](LaunchOptions& o) { o.device.kind = parse_device_kind("tpu"); }},
      {"device ''", 2, [](LaunchOptions& o) { o.device.kind = parse_device_kind(""); }},
      {"backend 'smoke'", 2, [](LaunchOptions& o) { o.backend = parse_backend("smoke"); }},
      {"kernels 'fast'", 2, [](LaunchOptions& o) { o.device.kernels = parse_cpu_kernels("fast"); }},
      {"bootstrap 'magic'", 2, [](LaunchOptions& o) { o.job.bootstrap = parse_bootstrap("magic"); }},
      {"device 7", 2, [](LaunchOptions& o) { o.device.kind = static_cast<DeviceKind>(7); }},
      {"backend 7", 2, [](LaunchOptions& o) { o.backend = static_cast<BackendKind>(7); }},
      {"bootstrap 7", 2, [](LaunchOptions& o) { o.job.bootstrap = static_cast<Bootstrap>(7); }},
      {"-5 threads", 2, [](LaunchOptions& o) { o.device.threads = -5; }},
      {"a limit of 1000 bytes", 2, [](LaunchOptions& o) { o.device.memory_limit = 1000; }},
      {"a limit of -1 byte", 2, [](LaunchOptions& o) { o.device.memory_limit = -1; }},
      {"a timeout of -1 ms", 2, [](LaunchOptions& o) { o.timeout = std::chrono::milliseconds(-1); }},
      {"a timeout of 0 ms", 2, [](LaunchOptions& o) { o.timeout = std::chrono::milliseconds(0); }},
  });
  return {"launch with " + wrong.what, [=]() -> std::string {
            Plan plan;
            const Weights want = reference(plan);
            LaunchOptions options = watched();
            wrong.set(options);
            Results results(2);
            sherd::launch(wrong.ranks, options, [&](RankContext& rank) {
              Training training(rank, plan);
              for (int step = 0; step < plan.steps; ++step) training.step(step);
              results.put(rank.world->rank(), training.weights());
            });
            return results.compared_with(want);
          }};
}

// Descriptions of a model and of its routing that cannot be; each must be refused.
Case description_case(Dice& dice) {
  struct Wrong {
    std::string what;
    std::function<void(Stack&)> set;
  };
  struct Loose : Stack {
    Loose() : Stack(1) {}
    using ModuleBase::child;
    using ModuleBase::param;
  };
  const auto on = [](std::function<void(Loose&)> f) {
    return [f = std::move(f)](Stack& s) { f(static_cast<Loose&>(s)); };
  };
  constexpr int64_t kLong = int64_t{1} << 40;
  const auto wrong = dice.of<Wrong>({
      {"a negative size", on([](Loose& s) {
         s.param("p", {4, -4}, constant(0));
       })},
      {"2^80 elements", on([](Loose& s) {
         s.param("p", {kLong, kLong}, constant(0));
       })},
      {"a name twice", on([](Loose& s) { s.param("gain.weight", {4}, constant(0)); })},
      {"a name that is empty", on([](Loose& s) { s.param("", {4}, constant(0)); })},
      {"a name that is no UTF-8", on([](Loose& s) { s.param("\xff\xfe", {4}, constant(0)); })},
      {"a child twice", on([](Loose& s) { s.child("again", s.block(0)); })},
      {"row blocks of 3 of 8 rows", on([](Loose& s) { s.gain.set_row_blocks(std::vector<int64_t>{3}); })},
      {"row blocks of negative rows", on([](Loose& s) {
         s.gain.set_row_blocks({-1, 9});
       })},
      {"piece 2 of 2", on([](Loose& s) {
         s.gain.set_tensor_shard({"tp", 0, 2, 2});
       })},
      {"a piece along dimension 5", on([](Loose& s) {
         s.gain.set_tensor_shard({"tp", 5, 2, 0});
       })},
      {"a pattern that is none", on([](Loose& s) {
         (void)route(s, {.rules = {{"(", Algorithm::muon}}});
       })},
      {"a rule for nothing", on([](Loose& s) {
         (void)route(s, {.rules = {{"^absent$", Algorithm::muon}}});
       })},
      {"a vector for Muon", on([](Loose& s) {
         (void)route(s, {.rules = {{"gain", Algorithm::muon}}});
       })},
      {"an optimizer before the wrap", on([](Loose& s) { Optimizer(s, route(s), {}); })},
  });
  return {"a model with " + wrong.what, [=]() -> std::string {
            sherd::launch(2, watched(), [&](RankContext& rank) {
              Loose stack;
              wrong.set(stack);
              fully_shard(stack, DeviceMesh(rank.world, {{"shard", 2}}));
            });
            return "it was taken";
          }};
}

}  // namespace

std::vector<Case> option_cases(uint64_t seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Dice dice(seed + static_cast<uint64_t>(i));
    const int kind = dice.below(10);
    cases.push_back(kind < 6 ? training_case(dice) : kind < 8 ? launch_case(dice) : description_case(dice));
  }
  return cases;
}

}  // namespace sherd::misuse
