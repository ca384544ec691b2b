// Ranks that end early, exceptions at every verb, errors that are caught, two models at once, files that
// fail.
#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/saver.h>

#include "misuse/training.h"
#include "temporary_folder.h"

namespace sherd::misuse {
namespace {

/// A point of a training program: before a verb, or at a point inside a forward or backward.
struct Point {
  int step = 0;
  std::string where;
};

const std::vector<std::string>& points() {
  static const std::vector<std::string> all = {
      "before forward",  "forward begins",  "forward between blocks",  "forward ends",
      "before backward", "backward begins", "backward between blocks", "before clip",
      "before update",   "after update"};
  return all;
}

/// One step with `f` called at every point.
void step_with_points(Training& t, int number, const std::function<void(const std::string&)>& f) {
  t.stack->at_point = f;
  for (int m = 0; m < t.plan.accumulate; ++m) {
    runtime_of(*t.stack).set_last_microbatch(m + 1 == t.plan.accumulate);
    t.load(number * t.plan.accumulate + m);
    f("before forward");
    t.forward();
    f("before backward");
    t.backward();
  }
  f("before clip");
  t.clip();
  f("before update");
  t.update();
  f("after update");
  t.stack->at_point = nullptr;
}

Case early_return(Dice& dice) {
  const Plan plan = random_plan(dice);
  const Point at{dice.below(plan.steps),
                 dice.of<std::string>(
                     {"before forward", "before backward", "before clip", "before update", "after update"})};
  const int who = dice.below(plan.ranks);
  return {fmt::format("rank {} returns {} of step {}; {}", who, at.where, at.step, plan.describe()),
          [=]() -> std::string {
            const Weights want = reference(plan);
            Results results(plan.ranks);
            const auto start = std::chrono::steady_clock::now();
            const auto too_late = [&] {
              const std::chrono::duration<double> d = std::chrono::steady_clock::now() - start;
              return d.count() > 10 ? fmt::format("the others were told after {} s", d.count()) : "";
            };
            try {
              sherd::launch(plan.ranks, watched(15'000), [&](RankContext& rank) {
                Training t(rank, plan);
                for (int step = 0; step < plan.steps; ++step) {
                  for (int m = 0; m < plan.accumulate; ++m) {
                    const bool here = step == at.step && rank.world->rank() == who;
                    runtime_of(*t.stack).set_last_microbatch(m + 1 == plan.accumulate);
                    t.load(step * plan.accumulate + m);
                    if (here && at.where == "before forward") return;
                    t.forward();
                    if (here && at.where == "before backward") return;
                    t.backward();
                    if (m + 1 < plan.accumulate) continue;
                    if (here && at.where == "before clip") return;
                    t.clip();
                    if (here && at.where == "before update") return;
                    t.update();
                    if (here && at.where == "after update") return;
                  }
                }
                results.put(rank.world->rank(), t.weights());
              });
            } catch (const Error&) {
              if (const std::string late = too_late(); !late.empty()) return late;
              throw;
            }
            return results.compared_with(want);
          }};
}

// One rank's own exception ends the launch, in its own words.
Case exception_of_one(Dice& dice) {
  const Plan plan = random_plan(dice);
  const Point at{dice.below(plan.steps), dice.of(points())};
  const int who = dice.below(plan.ranks);
  return {fmt::format("rank {} throws at '{}' of step {}; {}", who, at.where, at.step, plan.describe()),
          [=]() -> std::string {
            sherd::launch(plan.ranks, watched(15'000), [&](RankContext& rank) {
              Training t(rank, plan);
              for (int step = 0; step < plan.steps; ++step)
                step_with_points(t, step, [&](const std::string& where) {
                  if (rank.world->rank() == who && step == at.step && where == at.where)
                    throw OwnError("the user's own words");
                });
              t.weights();
            });
            return "the exception was lost";
          }};
}

// All ranks throw and catch at the same point: the step is dropped, and made again.
Case exception_of_all(Dice& dice) {
  const Plan plan = random_plan(dice);
  const Point at{dice.below(plan.steps), dice.of(points())};
  const bool skips = dice.chance(50);
  return {fmt::format("all ranks throw at '{}' of step {}, and {} it; {}", at.where, at.step,
                      skips ? "skip" : "repeat", plan.describe()),
          [=]() -> std::string {
            std::vector<int> steps;
            for (int s = 0; s < plan.steps; ++s)
              if (!skips || s != at.step || at.where == "after update") steps.push_back(s);
            const Weights want = reference(plan, steps);
            Results results(plan.ranks);
            sherd::launch(plan.ranks, watched(15'000), [&](RankContext& rank) {
              Training t(rank, plan);
              bool due = true;
              for (int step = 0; step < plan.steps; ++step) {
                try {
                  step_with_points(t, step, [&](const std::string& where) {
                    if (!due || step != at.step || where != at.where) return;
                    due = false;
                    throw OwnError("a bad batch");
                  });
                } catch (const OwnError&) {
                  t.stack->at_point = nullptr;
                  if (at.where == "after update") continue;
                  t.give_up();
                  if (!skips) --step;
                }
              }
              results.put(rank.world->rank(), t.weights());
            });
            return results.compared_with(want);
          }};
}

// An error of one rank that all catch: they agree to continue, and start over.
Case recovery(Dice& dice) {
  const Plan plan = random_plan(dice);
  const Point at{dice.below(plan.steps), dice.of(points())};
  const int who = dice.below(plan.ranks);
  const bool out_of_memory = dice.chance(40);
  const int one_gives_up = dice.chance(20) ? dice.below(plan.ranks) : -1;
  std::string name =
      fmt::format("rank {} {} at '{}' of step {}, all recover; {}", who,
                  out_of_memory ? "runs out of memory" : "throws", at.where, at.step, plan.describe());
  if (one_gives_up >= 0) name += fmt::format("; but rank {} returns", one_gives_up);
  return {name, [=]() -> std::string {
            const Weights want = reference(plan);
            Results results(plan.ranks);
            LaunchOptions options = watched(5'000);
            options.device.memory_limit = int64_t{64} << 20;
            sherd::launch(plan.ranks, options, [&](RankContext& rank) {
              bool due = true;
              const auto train = [&] {
                Training t(rank, plan);
                for (int step = 0; step < plan.steps; ++step)
                  step_with_points(t, step, [&](const std::string& where) {
                    if (!due || rank.world->rank() != who || step != at.step || where != at.where) return;
                    due = false;
                    if (out_of_memory)
                      (void)Tensor::empty(*rank.device, {int64_t{1} << 30}, DType::f32, "too much");
                    throw OwnError("a hiccup");
                  });
                results.put(rank.world->rank(), t.weights());
              };
              for (int attempt = 0; attempt < 2; ++attempt) {
                try {
                  train();
                  // A rank may be done before another's error reaches it: only what all have made counts.
                  rank.world->barrier(rank.device->compute());
                  rank.device->compute().synchronize();
                  return;
                } catch (const std::exception&) {
                  if (attempt > 0) throw;
                }
                if (rank.world->rank() == one_gives_up) return;
                rank.world->recover();
              }
            });
            return results.compared_with(want);
          }};
}

// Two models train in turns on the same ranks, as if alone; their verbs may be mixed up once.
Case two_models(Dice& dice) {
  Plan first = random_plan(dice), second = random_plan(dice);
  second.ranks = first.ranks;
  second.replicas = first.ranks == 4 && dice.chance(50) ? 2 : 1;
  second.blocks = 3;
  first.accumulate = second.accumulate = 1;
  second.root.seed = 7;
  const int mixed = dice.below(5), at_step = dice.below(3);
  static constexpr const char* kMixed[] = {"", "one's output gradient for the other", "clipping the other",
                                           "stepping the other", "an optimizer with the other's routing"};
  return {fmt::format("two models in turns{}; {}; {}",
                      mixed == 0 ? "" : fmt::format(", {} in step {}", kMixed[mixed], at_step),
                      first.describe(), second.describe()),
          [=]() -> std::string {
            const Weights want_first = reference(first), want_second = reference(second);
            Results got_first(first.ranks), got_second(first.ranks);
            sherd::launch(first.ranks, watched(10'000), [&](RankContext& rank) {
              Training a(rank, first), b(rank, second);
              const auto told = [](const std::function<void()>& f) {
                try {
                  f();
                } catch (const Error&) {
                }
              };
              for (int step = 0; step < 3; ++step) {
                const bool now = step == at_step;
                a.load(step);
                b.load(step);
                a.forward();
                if (now && mixed == 1) told([&] { b.backward(); });
                a.backward();
                if (now && mixed == 2) told([&] { clip_grad_norm(*b.stack, 0.5); });
                if (now && mixed == 3) told([&] { b.update(); });
                if (now && mixed == 4) told([&] { Optimizer wrong(*a.stack, b.routing, {}); });
                b.forward();
                b.backward();
                a.clip();
                b.clip();
                b.update();
                a.update();
              }
              got_first.put(rank.world->rank(), a.weights());
              got_second.put(rank.world->rank(), b.weights());
            });
            const std::string wrong = got_first.compared_with(want_first);
            return wrong.empty() ? got_second.compared_with(want_second) : wrong;
          }};
}

// Saves that cannot succeed: all ranks get the error, training continues, and the next save succeeds.
Case failing_save(Dice& dice) {
  const Plan plan = random_plan(dice);
  struct Wrong {
    std::string what;
    std::function<std::filesystem::path(const TemporaryFolder&)> folder;
  };
  const auto wrong = dice.of<Wrong>({
      {"below a file",
       [](const TemporaryFolder& f) { return std::filesystem::path(f.write("file", "x")) / "c"; }},
      {"in a folder that is not there",
       [](const TemporaryFolder& f) { return f.path() / "no" / "where" / "c"; }},
      {"at a file", [](const TemporaryFolder& f) { return std::filesystem::path(f.write("file", "x")); }},
      {"at a name of 300 bytes", [](const TemporaryFolder& f) { return f.path() / std::string(300, 'n'); }},
      {"at an empty path", [](const TemporaryFolder&) { return std::filesystem::path(); }},
  });
  const int at_step = dice.below(plan.steps);
  const bool async = dice.chance(50);
  const int leaves = dice.chance(25) ? dice.below(plan.ranks) : -1;
  std::string name = fmt::format("a save {}{} after step {}; {}", wrong.what,
                                 async ? ", behind training" : "", at_step, plan.describe());
  if (leaves >= 0) name += fmt::format("; rank {} does not save and returns", leaves);
  return {name, [=]() -> std::string {
            const Weights want = reference(plan);
            Results results(plan.ranks);
            const TemporaryFolder folder;
            const std::filesystem::path bad = wrong.folder(folder);
            std::vector<int> refused(static_cast<size_t>(plan.ranks));
            sherd::launch(plan.ranks, watched(5'000), [&](RankContext& rank) {
              Training t(rank, plan);
              const auto save = [&](const std::filesystem::path& where, int64_t step) {
                SaverOptions options;
                options.folder = where;
                options.async = async;
                CheckpointSaver saver(rank.world, checkpoint_tensors(*t.stack, &*t.optimizer), options);
                TrainingState state;
                state.step = step;
                saver.save(state);
                saver.wait();
              };
              for (int step = 0; step < plan.steps; ++step) {
                t.step(step);
                if (step != at_step) continue;
                if (rank.world->rank() == leaves) return;
                try {
                  save(bad, step + 1);
                } catch (const IoError&) {
                  refused[static_cast<size_t>(rank.world->rank())] = 1;
                } catch (const InvalidArgument&) {
                  refused[static_cast<size_t>(rank.world->rank())] = 1;
                }
                save(folder.path() / "good", step + 1);
              }
              results.put(rank.world->rank(), t.weights());
            });
            const bool told = std::all_of(refused.begin(), refused.end(), [](int r) { return r == 1; });
            std::error_code none;
            const bool saved = std::filesystem::exists(bad / "latest", none);  // missing folders may be made
            if (told == saved)
              return told ? "an error, and a checkpoint" : "neither all ranks told nor a checkpoint";
            if (!std::filesystem::exists(folder.path() / "good" / "latest"))
              return "the second save is not there";
            return results.compared_with(want);
          }};
}

// Parts used after the destruction of their owner.
Case gone(Dice& dice) {
  const Plan plan = random_plan(dice);
  const int what = dice.below(4);
  static constexpr const char* kWhat[] = {"a block is called", "a block's backward is called",
                                          "a block's weights are read", "a unit is unsharded"};
  const bool in_the_middle = dice.chance(50);
  return {fmt::format("{} when its root is gone{}; {}", kWhat[what], in_the_middle ? " after a forward" : "",
                      plan.describe()),
          [=]() -> std::string {
            sherd::launch(plan.ranks, watched(5'000), [&](RankContext& rank) {
              Training t(rank, plan);
              t.step(0);
              if (in_the_middle) t.forward();
              const auto block = t.stack->shared_block(0);
              const auto unit = block->unit();
              t.stream().synchronize();
              t.optimizer.reset();
              t.routing = {};
              t.stack.reset();
              switch (what) {
                case 0:
                  (*block)(t.in);
                  break;
                case 1:
                  unit->pre_backward();
                  break;
                case 2:
                  block->up_.data();
                  break;
                default:
                  unit->unshard();
              }
            });
            return "it was allowed";
          }};
}

}  // namespace

std::vector<Case> ending_cases(uint64_t seed, int count) {
  using Make = Case (*)(Dice&);
  const std::vector<Make> kinds = {early_return,     early_return, exception_of_one, exception_of_all,
                                   exception_of_all, recovery,     recovery,         two_models,
                                   failing_save,     gone};
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Dice dice(seed + static_cast<uint64_t>(i));
    cases.push_back(kinds[static_cast<size_t>(i) % kinds.size()](dice));
  }
  return cases;
}

}  // namespace sherd::misuse
