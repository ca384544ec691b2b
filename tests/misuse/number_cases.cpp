// Numbers that are not finite, in data and in gradients, on one rank or all: all ranks skip a step with them,
// and everything else continues.
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "misuse/training.h"

namespace sherd::misuse {
namespace {

enum class Where { input, output_gradient, reduced_gradient, ignored_gradient };
constexpr const char* kWhere[] = {"the input", "the output's gradient", "a reduced gradient",
                                  "an ignored parameter's gradient"};

void put(Stream& s, const Tensor& t, int64_t at, float value) {
  ops::copy_from_host(s, t.flat(at, at + 1), &value, sizeof value);
  s.synchronize();
}

Case number_case(uint64_t seed) {
  Dice dice(seed);
  Plan plan = random_plan(dice);
  const float bad =
      dice.of<float>({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity(), 3e38f});
  const auto where = static_cast<Where>(dice.below(4));
  int who = dice.chance(25) ? -1 : dice.below(plan.ranks);  // -1: all
  // Copies of one reduced gradient are equal: no computation makes one of them alone other than it should be.
  const bool copies = plan.options.strategy == Strategy::no_shard || plan.replicas > 1;
  if (where == Where::reduced_gradient && copies) who = -1;
  const int at_step = dice.below(plan.steps), at_batch = dice.below(plan.accumulate);
  const int element = dice.below(8);
  if (where == Where::ignored_gradient) plan.root.ignored = {"gain.weight"};
  return {fmt::format("{} in {} of {}, step {}, microbatch {}; {}", bad, kWhere[int(where)],
                      who < 0 ? std::string("all ranks") : fmt::format("rank {}", who), at_step, at_batch,
                      plan.describe()),
          [=]() -> std::string {
            // Expected: the step left out where it cannot be finite, else the same numbers under no_shard.
            Results got(plan.ranks), all_steps(plan.ranks), without(plan.ranks);
            std::vector<int64_t> skipped(static_cast<size_t>(plan.ranks));
            const auto train = [&](Results& into, bool poisoned, bool leaves_out) {
              sherd::launch(plan.ranks, watched(10'000), [&](RankContext& rank) {
                const int me = rank.world->rank();
                Training t(rank, plan);
                for (int step = 0; step < plan.steps; ++step) {
                  if (leaves_out && step == at_step) continue;
                  for (int m = 0; m < plan.accumulate; ++m) {
                    const bool now = poisoned && step == at_step && (who < 0 || who == me) && m == at_batch;
                    runtime_of(*t.stack).set_last_microbatch(m + 1 == plan.accumulate);
                    t.load(step * plan.accumulate + m);
                    if (now && where == Where::input) put(t.stream(), t.in, element, bad);
                    if (now && where == Where::output_gradient) put(t.stream(), t.dy, element, bad);
                    t.forward();
                    t.backward();
                  }
                  const bool now = poisoned && step == at_step && (who < 0 || who == me);
                  if (now && (where == Where::reduced_gradient || where == Where::ignored_gradient)) {
                    const Parameter& p =
                        where == Where::ignored_gradient ? t.stack->gain : t.stack->block(0).up_;
                    const Tensor g = p.grad_shard();
                    if (g.numel() > 0) put(t.stream(), g, element % g.numel(), bad);
                  }
                  t.clip();
                  t.update();
                }
                into.put(me, t.weights());
                if (poisoned) skipped[static_cast<size_t>(me)] = t.optimizer->skipped();
              });
            };
            train(got, true, false);
            train(without, false, true);
            train(all_steps, false, false);
            for (int64_t n : skipped)
              if (n != skipped[0]) return "ranks skipped different numbers of steps";
            for (int r = 0; r < plan.ranks; ++r) {
              if (!finite(got.of(r))) return fmt::format("rank {} has weights that are not finite", r);
              Results one(1);
              one.put(0, got.of(r));
              const Results& right = skipped[0] > 0 ? without : all_steps;
              const std::string wrong = one.compared_with(right.of(r));
              // A large number that is finite may go into the weights; a number that is none never.
              if (!wrong.empty() && (skipped[0] > 0 || !std::isfinite(bad)))
                return fmt::format("{} skipped; rank {}: {}", skipped[0], r, wrong);
            }
            return "";
          }};
}

}  // namespace

std::vector<Case> number_cases(uint64_t seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) cases.push_back(number_case(seed + static_cast<uint64_t>(i)));
  return cases;
}

}  // namespace sherd::misuse
