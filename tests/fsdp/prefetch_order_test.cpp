// The order of units as a state machine: which gathers begin when, and what is due, without ranks or devices.

#include <sherd/fsdp/prefetch_order.h>

#include <utility>
#include <vector>

#include "support/message_of.h"

namespace sherd {
namespace {

using Units = std::vector<int>;

/// Units that each begin_ of one pass prefetches, the root's first.
struct Ahead {
  std::vector<Units> forward, backward;
};

void forward(PrefetchOrder& order, const Units& units, std::vector<Units>* ahead = nullptr,
             ForwardKind kind = ForwardKind::recorded) {
  const auto note = [&](Units u) {
    if (ahead != nullptr) ahead->push_back(std::move(u));
  };
  note(order.begin_forward(order.root(), kind));
  for (const int u : units) {
    note(order.begin_forward(u, kind));
    order.end_forward(u);
  }
  order.end_forward(order.root());
}

void backward(PrefetchOrder& order, const Units& units, std::vector<Units>* ahead = nullptr) {
  const auto note = [&](Units u) {
    if (ahead != nullptr) ahead->push_back(std::move(u));
  };
  note(order.begin_backward(order.root()));
  for (const int u : units) {
    note(order.begin_backward(u));
    order.end_backward(u);
  }
  order.end_backward(order.root());
}

Ahead pass(PrefetchOrder& order, const Units& units) {
  Ahead ahead;
  forward(order, units, &ahead.forward);
  backward(order, {units.rbegin(), units.rend()}, &ahead.backward);
  return ahead;
}

TEST(PrefetchOrder, TheFirstForwardPredictsNothingAndItsBackwardEverything) {
  PrefetchOrder order(3, 1);
  const Ahead first = pass(order, {0, 1, 2});
  EXPECT_THAT(first.forward, ElementsAre(Units{}, Units{}, Units{}, Units{}));
  EXPECT_THAT(first.backward, ElementsAre(Units{2}, Units{1}, Units{0}, Units{}));
}

TEST(PrefetchOrder, FromTheSecondOnForwardIsPredictedByTheOneBefore) {
  PrefetchOrder order(3, 1);
  pass(order, {2, 0, 1});
  EXPECT_THAT(pass(order, {2, 0, 1}).forward, ElementsAre(Units{2}, Units{0}, Units{1}, Units{}));
}

TEST(PrefetchOrder, GathersAsFarAheadAsAsked) {
  PrefetchOrder none(3, 0), two(3, 2), many(3, 9);
  for (PrefetchOrder* order : {&none, &two, &many}) pass(*order, {0, 1, 2});
  const Ahead a = pass(none, {0, 1, 2});
  EXPECT_THAT(a.forward, ElementsAre(Units{}, Units{}, Units{}, Units{}));
  EXPECT_THAT(a.backward, ElementsAre(Units{}, Units{}, Units{}, Units{}));
  const Ahead b = pass(two, {0, 1, 2});
  EXPECT_THAT(b.forward, ElementsAre(Units{0, 1}, Units{1, 2}, Units{2}, Units{}));
  EXPECT_THAT(b.backward, ElementsAre(Units{2, 1}, Units{1, 0}, Units{0}, Units{}));
  const Ahead c = pass(many, {0, 1, 2});
  EXPECT_THAT(c.forward, ElementsAre(Units{0, 1, 2}, Units{1, 2}, Units{2}, Units{}));
  EXPECT_THAT(c.backward, ElementsAre(Units{2, 1, 0}, Units{1, 0}, Units{0}, Units{}));
}

TEST(PrefetchOrder, AChangedOrderEndsThePredictionAndIsTheNextOne) {
  PrefetchOrder order(4, 1);
  pass(order, {0, 1, 2, 3});
  const Ahead changed = pass(order, {0, 2, 1, 3});
  EXPECT_THAT(changed.forward, ElementsAre(Units{0}, Units{1}, Units{}, Units{}, Units{}));
  EXPECT_THAT(changed.backward, ElementsAre(Units{3}, Units{1}, Units{2}, Units{0}, Units{}));
  EXPECT_THAT(pass(order, {0, 2, 1, 3}).forward,
              ElementsAre(Units{0}, Units{2}, Units{1}, Units{3}, Units{}));
}

TEST(PrefetchOrder, AUnitThatIsUsedTwiceIsInTheOrderTwice) {
  PrefetchOrder order(2, 1);
  pass(order, {0, 1, 0});
  const Ahead again = pass(order, {0, 1, 0});
  EXPECT_THAT(again.forward, ElementsAre(Units{0}, Units{1}, Units{0}, Units{}));
  EXPECT_THAT(again.backward, ElementsAre(Units{0}, Units{1}, Units{0}, Units{}));
}

TEST(PrefetchOrder, NestedUnitsGoForwardByTheirBeginAndBackwardByTheirEnd) {
  PrefetchOrder order(2, 1);  // 1 calls 0
  const auto run = [&] {
    std::vector<Units> ahead;
    ahead.push_back(order.begin_forward(order.root(), ForwardKind::recorded));
    ahead.push_back(order.begin_forward(1, ForwardKind::recorded));
    ahead.push_back(order.begin_forward(0, ForwardKind::recorded));
    for (const int u : {0, 1, order.root()}) order.end_forward(u);
    for (const int u : {order.root(), 1, 0}) ahead.push_back(order.begin_backward(u));
    for (const int u : {0, 1, order.root()}) order.end_backward(u);
    return ahead;
  };
  EXPECT_THAT(run(), ElementsAre(Units{}, Units{}, Units{}, Units{1}, Units{0}, Units{}));
  EXPECT_THAT(run(), ElementsAre(Units{1}, Units{0}, Units{}, Units{1}, Units{0}, Units{}));
}

TEST(PrefetchOrder, ABackwardContinuesBehindSkippedUnitsAndPredictsNothingForUnknownOnes) {
  PrefetchOrder order(4, 1);
  forward(order, {0, 1, 2});
  order.begin_backward(order.root());
  EXPECT_THAT(order.begin_backward(1), ElementsAre(0));  // 2 was skipped
  order.end_backward(1);
  order.owe_backward(3);
  EXPECT_THAT(order.begin_backward(3), IsEmpty());
  order.end_backward(3);
  EXPECT_THAT(order.begin_backward(0), IsEmpty());
  EXPECT_EQ(order.due(2), 1);
  EXPECT_EQ(order.due(3), 0);
}

TEST(PrefetchOrder, AForwardOutsideOfTheRootsIsNotInTheOrder) {
  PrefetchOrder order(2, 1);
  pass(order, {0, 1});
  EXPECT_THAT(order.begin_forward(1, ForwardKind::recorded), IsEmpty());
  order.end_forward(1);
  EXPECT_THAT(pass(order, {0, 1}).forward, ElementsAre(Units{0}, Units{1}, Units{}));
}

TEST(PrefetchOrder, AForwardInsideABackwardIsARecomputation) {
  PrefetchOrder order(3, 1);
  pass(order, {0, 1, 2});
  forward(order, {0, 1, 2});
  order.begin_backward(order.root());
  for (const int u : {2, 1, 0}) {
    EXPECT_THAT(order.begin_forward(u, ForwardKind::recorded), IsEmpty());
    EXPECT_TRUE(order.innermost(u)->recomputes);
    EXPECT_EQ(order.due(u), 1) << "no backward more";
    order.end_forward(u);
    EXPECT_EQ(order.begin_backward(u), u > 0 ? Units{u - 1} : Units{}) << "as without it";
    order.end_backward(u);
    EXPECT_EQ(order.due(u), 0);
  }
  order.end_backward(order.root());
  EXPECT_THAT(pass(order, {0, 1, 2}).forward, ElementsAre(Units{0}, Units{1}, Units{2}, Units{}));
}

TEST(PrefetchOrder, EachForwardInTrainingMakesOneBackwardDue) {
  PrefetchOrder order(2, 1);
  forward(order, {0, 1, 0});
  EXPECT_EQ(order.due(0), 2);
  EXPECT_EQ(order.due(1), 1);
  EXPECT_EQ(order.due(order.root()), 1);
  forward(order, {1}, nullptr, ForwardKind::evaluation);
  EXPECT_EQ(order.due(0), 2) << "an evaluation changes nothing";
  EXPECT_EQ(order.due(1), 1);
  forward(order, {1});
  EXPECT_EQ(order.due(0), 2) << "those of an earlier forward are due, too";
  EXPECT_EQ(order.due(1), 2);
  EXPECT_EQ(order.due(order.root()), 2);
  order.drop_backward(1);
  EXPECT_EQ(order.due(1), 1);
}

TEST(PrefetchOrder, KnowsWhatIsOpen) {
  PrefetchOrder order(1, 1);
  order.begin_forward(order.root(), ForwardKind::recorded);
  order.begin_forward(0, ForwardKind::recorded);
  order.begin_forward(0, ForwardKind::recorded);  // it calls itself
  EXPECT_EQ(order.open(), 3);
  EXPECT_EQ(order.open(0), 2);
  EXPECT_FALSE(order.innermost(0)->backward);
  for (const int u : {0, 0, order.root()}) order.end_forward(u);
  EXPECT_EQ(order.open(), 0);
  EXPECT_EQ(order.innermost(0), nullptr);
  order.begin_backward(order.root());
  order.begin_backward(0);
  order.begin_forward(0, ForwardKind::recorded);
  EXPECT_EQ(order.open_backwards(0), 1);
  EXPECT_EQ(order.open(0), 2);
}

TEST(PrefetchOrder, AnExceptionInABackwardBreaksTheStep) {
  PrefetchOrder order(2, 1);
  forward(order, {0, 1});
  order.begin_backward(order.root());
  order.begin_backward(1);
  order.cancel(1);
  ASSERT_TRUE(order.broken());
  EXPECT_EQ(order.broken()->unit, 1);
  EXPECT_TRUE(order.broken()->backward);
  order.cancel(order.root());
  EXPECT_EQ(order.broken()->unit, 1) << "the first use that it ended tells where it came from";
  order.reset();
  EXPECT_FALSE(order.broken());
  EXPECT_EQ(order.due(0) + order.due(1) + order.due(order.root()), 0);
}

TEST(PrefetchOrder, AnExceptionInAForwardBreaksTheStepOnceItHasLeftTheModel) {
  PrefetchOrder order(2, 1);
  order.begin_forward(order.root(), ForwardKind::recorded);
  order.begin_forward(0, ForwardKind::recorded);
  order.cancel(0);
  EXPECT_FALSE(order.broken()) << "the module around it may catch it and try again";
  EXPECT_EQ(order.due(0), 0);
  order.cancel(order.root());
  ASSERT_TRUE(order.broken());
  EXPECT_EQ(order.broken()->unit, 0);
  EXPECT_FALSE(order.broken()->backward);
}

TEST(PrefetchOrder, AnExceptionThatWasCaughtInsideLeavesNoTrace) {
  PrefetchOrder order(2, 1);
  order.begin_forward(order.root(), ForwardKind::recorded);
  order.begin_forward(0, ForwardKind::recorded);
  order.cancel(0);
  order.begin_forward(0, ForwardKind::recorded);
  order.end_forward(0);
  order.begin_forward(1, ForwardKind::recorded);
  order.cancel(1);
  order.cancel(order.root());
  EXPECT_EQ(order.broken()->unit, 1) << "another exception ended the step";
}

TEST(PrefetchOrder, AnExceptionInAnEvaluationBreaksNothing) {
  PrefetchOrder order(1, 1);
  forward(order, {0});
  order.begin_forward(order.root(), ForwardKind::evaluation);
  order.begin_forward(0, ForwardKind::evaluation);
  order.cancel(0);
  order.cancel(order.root());
  EXPECT_FALSE(order.broken());
  EXPECT_EQ(order.due(0), 1);
}

TEST(PrefetchOrder, AUseThatCouldNotBeginLeavesNoTrace) {
  PrefetchOrder order(1, 1);
  order.begin_forward(order.root(), ForwardKind::recorded);
  order.begin_forward(0, ForwardKind::recorded);
  order.take_back(0);
  EXPECT_EQ(order.open(0), 0);
  EXPECT_EQ(order.due(0), 0);
  EXPECT_FALSE(order.broken());
  order.take_back(order.root());
  EXPECT_EQ(order.open(), 0);
  EXPECT_FALSE(order.broken());
}

TEST(PrefetchOrder, AUseThatCouldNotBeginAtFirstIsInTheOrderOnce) {
  PrefetchOrder order(3, 1);
  pass(order, {0, 1, 2});
  const auto retried = [&](int unit, bool backward) {
    const auto begin = [&] {
      return backward ? order.begin_backward(unit) : order.begin_forward(unit, ForwardKind::recorded);
    };
    begin();
    order.take_back(unit);
    return begin();
  };
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(retried(order.root(), false), ElementsAre(0));
    for (const int u : {0, 1, 2}) {
      EXPECT_EQ(retried(u, false), u < 2 ? Units{u + 1} : Units{});
      order.end_forward(u);
    }
    order.end_forward(order.root());
    EXPECT_THAT(order.recorded(), ElementsAre(0, 1, 2));
    EXPECT_THAT(retried(order.root(), true), ElementsAre(2));
    for (const int u : {2, 1, 0}) {
      EXPECT_EQ(retried(u, true), u > 0 ? Units{u - 1} : Units{});
      order.end_backward(u);
    }
    order.end_backward(order.root());
  }
}

TEST(PrefetchOrder, AResetKeepsTheOrderOfTheLatestWholeForward) {
  PrefetchOrder order(3, 1);
  pass(order, {0, 1, 2});
  order.begin_forward(order.root(), ForwardKind::recorded);
  order.begin_forward(2, ForwardKind::recorded);
  order.cancel(2);
  order.cancel(order.root());
  order.reset();
  EXPECT_THAT(pass(order, {0, 1, 2}).forward, ElementsAre(Units{0}, Units{1}, Units{2}, Units{}));
  order.forget();
  EXPECT_THAT(pass(order, {0, 1, 2}).forward, ElementsAre(Units{}, Units{}, Units{}, Units{}));
}

}  // namespace
}  // namespace sherd
