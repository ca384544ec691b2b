// Calls in an invalid order: by all ranks, which get an error and continue to the right end, or by one.
#include <fmt/format.h>

#include "misuse/training.h"

namespace sherd::misuse {
namespace {

/// A call where it has no business.
struct Stray {
  std::string what;
  std::function<void(Training&)> call;
  /// The call is legal anywhere; refusing it is an error.
  bool legal = false;
  /// It has an effect of its own from clipping on, where gradients are final.
  bool acts_late = false;
};

std::vector<Stray> strays() {
  const auto set = [](std::function<void(Parameter&)> f) {
    return [f = std::move(f)](Training& t) { f(t.stack->gain); };
  };
  return {
      {"a step", [](Training& t) { t.update(); }, false, true},
      {"a backward", [](Training& t) { t.backward(); }},
      {"a backward of a block",
       [](Training& t) {
         t.stack->block(0).unit()->pre_backward();
         t.stack->block(0).unit()->post_backward();
       }},
      {"clipping", [](Training& t) { clip_grad_norm(*t.stack, 0.5); }, false, true},
      {"clipping to -1", [](Training& t) { clip_grad_norm(*t.stack, -1); }},
      {"reading whole weights", [](Training& t) { t.stack->block(0).up_.data(); }},
      {"reading a whole gradient", [](Training& t) { t.stack->gain.grad(); }},
      {"set_cut()", set([](Parameter& p) { p.set_cut(CutClass::row); })},
      {"freeze()", set([](Parameter& p) { p.freeze(); })},
      {"set_row_blocks()", set([](Parameter& p) {
         p.set_row_blocks({4, 4});
       })},
      {"set_tensor_shard()", set([](Parameter& p) {
         p.set_tensor_shard({"tp", 0, 2, 0});
       })},
      {"wrapping the root again", [](Training& t) { fully_shard(*t.stack, runtime_of(*t.stack).mesh()); }},
      {"wrapping a block again",
       [](Training& t) { fully_shard(t.stack->block(1), runtime_of(*t.stack).mesh()); }},
      {"routing again", [](Training& t) { (void)route(*t.stack); }},
      {"the runtime of a block", [](Training& t) { runtime_of(t.stack->block(0)); }},
      {"an optimizer with another model's routing",
       [](Training& t) {
         Stack other(1);
         Optimizer wrong(*t.stack, route(other), {});
       }},
      {"an optimizer without routing", [](Training& t) { Optimizer wrong(*t.stack, Routing(), {}); }},
      {"ending a unit's forward", [](Training& t) { t.stack->block(0).unit()->post_forward(); }},
      {"ending a unit's backward", [](Training& t) { t.stack->block(0).unit()->post_backward(); }},
      {"beginning a unit's forward",
       [](Training& t) { t.stack->block(1).unit()->pre_forward(ForwardKind::recorded); }},
      {"beginning a unit's backward", [](Training& t) { t.stack->block(1).unit()->pre_backward(); }},
      {"a step of a rate below 0", [](Training& t) { t.optimizer->step(-0.5); }},
      {"unsharding a block",
       [](Training& t) {
         t.stack->block(0).unit()->unshard();
         t.stack->block(0).unit()->wait();
       },
       true},
      {"an evaluation",
       [](Training& t) {
         t.stack->set_training(false);
         (*t.stack)(t.in);
         t.stack->set_training(true);
       },
       true},
      {"a reset", [](Training& t) { reset_step(*t.stack); }, true},
  };
}

/// Before which verb of a step the stray call comes.
enum class Before { forward, backward, clip, update };
constexpr const char* kBefore[] = {"forward", "backward", "clipping", "the update"};

// All ranks make the stray call, with or without an error, and continue; a step that was spoilt is dropped
// and made again.
Case symmetric_case(Dice& dice) {
  Plan plan = random_plan(dice);
  plan.accumulate = 1;
  const Stray stray = dice.of(strays());
  const auto before = static_cast<Before>(dice.below(stray.acts_late ? 2 : 4));
  const int at_step = dice.below(plan.steps);
  return {
      fmt::format("{} before {} of step {}; {}", stray.what, kBefore[int(before)], at_step, plan.describe()),
      [=]() -> std::string {
        const Weights want = reference(plan);
        Results results(plan.ranks);
        sherd::launch(plan.ranks, watched(), [&](RankContext& rank) {
          Training t(rank, plan);
          bool due = true;
          const auto maybe = [&](int step, Before now) {
            if (!due || step != at_step || now != before) return;
            due = false;
            try {
              stray.call(t);
            } catch (const Error& e) {
              if (stray.legal)
                throw std::logic_error(fmt::format("refused although it is legal: {}", e.what()));
            }
          };
          for (int step = 0; step < plan.steps; ++step) {
            for (bool again = true; again;) {
              again = false;
              try {
                t.load(step);
                maybe(step, Before::forward);
                t.forward();
                maybe(step, Before::backward);
                t.backward();
                maybe(step, Before::clip);
                t.clip();
                maybe(step, Before::update);
                t.update();
              } catch (const Error&) {
                if (due) throw;  // nothing was wrong yet
                t.give_up();
                again = true;
              }
            }
          }
          results.put(rank.world->rank(), t.weights());
        });
        return results.compared_with(want);
      }};
}

/// Deviation of one rank from the others, in one step.
enum class Alone {
  blocks_swapped,
  block_left_out,
  no_backward,
  no_clip,
  no_update,
  step_twice,
  not_last,
  a_microbatch_more,
  an_all_reduce,
  an_unshard,
  a_reset,
  evaluates,
};
constexpr const char* kAlone[] = {"runs its blocks in another order",
                                  "leaves a block out",
                                  "makes no backward",
                                  "does not clip",
                                  "makes no update",
                                  "makes the step twice",
                                  "calls the microbatch not the last",
                                  "has a microbatch more",
                                  "makes an all-reduce of its own",
                                  "unshards a block",
                                  "resets the step",
                                  "evaluates instead"};

void step_alone(Training& t, int number, Alone alone) {
  ShardRuntime& runtime = runtime_of(*t.stack);
  t.load(number);
  if (alone == Alone::blocks_swapped) std::swap(t.stack->order.front(), t.stack->order.back());
  if (alone == Alone::block_left_out) t.stack->order.pop_back();
  if (alone == Alone::evaluates) t.stack->set_training(false);
  if (alone == Alone::not_last) runtime.set_last_microbatch(false);
  if (alone == Alone::a_microbatch_more) {
    runtime.set_last_microbatch(false);
    t.forward();
    t.backward();
    runtime.set_last_microbatch(true);
  }
  if (alone == Alone::an_unshard) t.stack->block(1).unit()->unshard();
  t.forward();
  if (alone == Alone::an_all_reduce)
    t.rank.world->all_reduce(t.stream(), Tensor::empty(*t.rank.device, {4}, DType::f32, "test"));
  if (alone == Alone::a_reset) return reset_step(*t.stack);
  if (alone != Alone::no_backward && alone != Alone::evaluates) t.backward();
  if (alone != Alone::no_clip) t.clip();
  if (alone != Alone::no_update) t.update();
  if (alone == Alone::step_twice) t.step(number);
}

Case alone_case(Dice& dice) {
  Plan plan = random_plan(dice);
  plan.accumulate = 1;
  const auto alone = static_cast<Alone>(dice.below(12));
  if (alone == Alone::block_left_out) plan.root.allow_unused = dice.chance(50);
  // Under no_shard ranks say nothing to each other before the next step's gradients.
  const int steps = alone == Alone::no_update ? plan.steps - 1 : plan.steps;
  const int who = dice.below(plan.ranks), at_step = dice.below(steps);
  return {fmt::format("rank {} {} in step {}{}; {}", who, kAlone[int(alone)], at_step,
                      plan.root.allow_unused ? " (unused allowed)" : "", plan.describe()),
          [=]() -> std::string {
            Weights want;
            const auto run = [=](const Plan& p, Results& results) {
              sherd::launch(p.ranks, watched(700), [&](RankContext& rank) {
                Training t(rank, p);
                for (int step = 0; step < p.steps; ++step) {
                  if (step == at_step && rank.world->rank() == who) {
                    step_alone(t, step, alone);
                  } else {
                    t.step(step);
                  }
                }
                results.put(rank.world->rank(), t.weights());
              });
            };
            if (alone == Alone::a_microbatch_more) {
              // A rank may have more microbatches if none communicates: gradients are sums of those it has.
              Plan flat = plan;
              flat.options.strategy = Strategy::no_shard;
              flat.options.layout = LayoutPolicy::ragged;
              Results sums(plan.ranks);
              run(flat, sums);
              want = sums.of(0);
            } else {
              want = reference(plan);
            }
            Results results(plan.ranks);
            run(plan, results);
            return results.compared_with(want);
          }};
}

}  // namespace

std::vector<Case> order_cases(uint64_t seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Dice dice(seed + static_cast<uint64_t>(i));
    cases.push_back(dice.chance(60) ? symmetric_case(dice) : alone_case(dice));
  }
  return cases;
}

}  // namespace sherd::misuse
