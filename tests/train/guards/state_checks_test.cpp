// Checks of the machine, each triggered on one rank alone: a step done twice, weights that several ranks
// hold.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/train/guards/repeat_step.h>
#include <sherd/train/guards/replica_check.h>

#include "support/message_of.h"
#include "support/rig.h"
#include "train/guards/flip_bit.h"

namespace sherd::test {
namespace {

struct Arrangement {
  Strategy strategy;
  int replicas = 1;
  Outer outer = Outer::no_shard;
  DType compute = DType::f32;
};

FullyShardOptions options_of(const Arrangement& a) {
  return {.strategy = a.strategy, .outer = a.outer, .compute_dtype = a.compute};
}

std::string show(const Arrangement& a) {
  return fmt::format("{} replicas {} outer {} {}", name_of(a.strategy), a.replicas, name_of(a.outer),
                     name_of(a.compute));
}

const std::vector<Arrangement>& arrangements() {
  static const std::vector<Arrangement> all = {{Strategy::no_shard},
                                               {Strategy::optim},
                                               {Strategy::optim_grads},
                                               {Strategy::optim_grads_params},
                                               {Strategy::optim_grads_params, 2},
                                               {Strategy::optim_grads_params, 2, Outer::optim},
                                               {Strategy::optim, 2, Outer::optim},
                                               {Strategy::no_shard, 1, Outer::no_shard, DType::bf16},
                                               {Strategy::optim_grads, 1, Outer::no_shard, DType::bf16}};
  return all;
}

/// Everything that a rank has, as text of its bits.
std::string bits_of(Rig& rig) {
  std::string bits;
  Stream& s = rig.rank.device->compute();
  const auto add = [&](const Tensor& t) {
    std::string bytes(static_cast<size_t>(t.nbytes()), '\0');
    ops::copy_to_host(s, bytes.data(), t);
    bits += bytes;
  };
  for (auto& [name, p] : rig.model.named_parameters()) add(p.shard());
  for (auto& t : rig.optimizer->state()) add(t.local);
  for (auto& c : rig.optimizer->counters()) add(c.value);
  return bits + std::to_string(rig.optimizer->steps()) + " " + std::to_string(rig.optimizer->skipped());
}

std::vector<Tensor> weights_of(Rig& rig) {
  std::vector<Tensor> all;
  for (auto& [name, p] : rig.model.named_parameters()) all.push_back(p.shard());
  return all;
}

std::vector<Tensor> states_of(Rig& rig) {
  std::vector<Tensor> all;
  for (const StateTensor& t : rig.optimizer->state()) all.push_back(t.local);
  return all;
}

/// The first of more than three elements: ranks hold nothing of some tensors.
Tensor first_long(const std::vector<Tensor>& all) {
  return *std::find_if(all.begin(), all.end(), [](const Tensor& t) { return t.numel() > 3; });
}

TEST(RepeatStep, GivesTheSameBitsAndLeavesTheRunAsOneStepWould) {
  for (const Arrangement& a : arrangements()) {
    SCOPED_TRACE(show(a));
    launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
      Rig twice(r, options_of(a), a.replicas), once(r, options_of(a), a.replicas);
      for (int step = 0; step < 4; ++step) {
        once.step();
        if (step != 1) {
          twice.step();
          continue;
        }
        int runs = 0;
        const RepeatedStep repeated = repeat_step(twice.model, *twice.optimizer, [&]() -> StepFigures {
          ++runs;
          twice.step();
          return {.loss = 1, .grad_norm = 2};
        });
        EXPECT_TRUE(repeated.same);
        EXPECT_EQ(repeated.difference, "");
        EXPECT_EQ(runs, 2);
        EXPECT_GT(repeated.bytes, 4 << 20);
      }
      EXPECT_EQ(bits_of(twice), bits_of(once));
    });
  }
}

TEST(RepeatStep, ABitThatDiffersOnOneRankIsNamedThereAndKnownToAll) {
  for (const bool state : {false, true}) {
    std::vector<std::string> said(4);
    launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
      Rig rig(r, {});
      const int rank = r.world->rank();
      int runs = 0;
      const RepeatedStep repeated = repeat_step(rig.model, *rig.optimizer, [&]() -> StepFigures {
        rig.step();
        if (++runs == 2 && rank == 2)
          flip_lowest_bit(r.device->compute(), first_long(state ? states_of(rig) : weights_of(rig)), 3);
        return {.loss = 1, .grad_norm = 2};
      });
      EXPECT_FALSE(repeated.same) << "on every rank";
      said[static_cast<size_t>(rank)] = repeated.difference;
    });
    EXPECT_THAT(said[2], AllOf(HasSubstr(state ? "optimizer state 'exp_avg" : "weights of "),
                               HasSubstr("element 3 of"), HasSubstr("and then")));
    said[2].clear();
    EXPECT_THAT(said, ElementsAre("", "", "", "")) << "the others have nothing to name";
  }
}

TEST(RepeatStep, FiguresAreComparedByTheirBitsAndSkippedStepsCountOnce) {
  launch(2, {.device = {.threads = 1}}, [&](RankContext& r) {
    Rig rig(r, {});
    int runs = 0;
    const auto with = [&](double first, double second) {
      runs = 0;
      return repeat_step(rig.model, *rig.optimizer, [&]() -> StepFigures {
        rig.forward();
        rig.backward();
        clip_grad_norm(rig.model, 1.0);
        // The step is skipped: its loss is NaN.
        const Tensor loss = Tensor::empty(*r.device, {1}, DType::f64, "test");
        ops::fill(r.device->compute(), loss, std::nan(""));
        skip_unless_finite(rig.model, loss);
        rig.optimizer->step(0.01);
        return {.loss = runs++ == 0 ? first : second, .grad_norm = 1};
      });
    };
    EXPECT_TRUE(with(std::nan(""), std::nan("")).same);
    EXPECT_EQ(rig.optimizer->skipped(), 1);
    EXPECT_EQ(rig.optimizer->steps(), 1);
    const RepeatedStep zero = with(0.0, -0.0);
    EXPECT_FALSE(zero.same);
    EXPECT_THAT(zero.difference, HasSubstr("the loss: 0 and then -0"));
  });
}

TEST(ReplicaCheck, RanksThatHoldTheSameAgreeWhileTheyTrain) {
  for (const Arrangement& a : arrangements()) {
    SCOPED_TRACE(show(a));
    launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
      Rig checked(r, options_of(a), a.replicas), left_alone(r, options_of(a), a.replicas);
      const bool alone = a.strategy == Strategy::optim_grads_params && a.replicas == 1;
      for (int step = 0; step < 3; ++step) {
        checked.step();
        left_alone.step();
        const ReplicaCheck check = check_replicas(checked.model);
        EXPECT_THAT(check.differences, IsEmpty());
        EXPECT_EQ(check.describe(), "");
        EXPECT_EQ(check.compared == 0, alone) << check.compared;
        EXPECT_GT(check_replicas(checked.model, &*checked.optimizer).compared, check.compared);
      }
      EXPECT_EQ(bits_of(checked), bits_of(left_alone)) << "looking changes nothing";
    });
  }
}

/// Returns the check's result on every rank after a bit of a parameter's weights was flipped on rank `on`.
std::vector<ReplicaCheck> flipped(const Arrangement& a, int on, const char* name) {
  std::vector<ReplicaCheck> said(4);
  launch(4, {.device = {.threads = 1}}, [&](RankContext& r) {
    Rig rig(r, options_of(a), a.replicas);
    rig.step();
    (void)check_replicas(rig.model);  // brings weights that rest whole up to date
    const int rank = r.world->rank();
    for (auto& [full_name, p] : rig.model.named_parameters()) {
      if (full_name != name || rank != on) continue;
      const Tensor shard = p.shard();
      flip_lowest_bit(r.device->compute(), shard, shard.numel() / 2);
    }
    said[static_cast<size_t>(rank)] = check_replicas(rig.model);
  });
  return said;
}

TEST(ReplicaCheck, OneFlippedBitIsFoundByMajorityAmongThreeOrMore) {
  // Four ranks hold it unsharded.
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const ReplicaCheck& check :
         flipped({Strategy::no_shard, 1, Outer::no_shard, compute}, 2, "blocks.1.up.weight")) {
      ASSERT_EQ(check.differences.size(), 1u) << name_of(compute);
      EXPECT_EQ(check.differences[0].parameter, "blocks.1.up.weight");
      EXPECT_EQ(check.differences[0].unit, "blocks.1");
      EXPECT_THAT(check.differences[0].ranks, ElementsAre(2));
      EXPECT_THAT(check.differences[0].majority, ElementsAre(0, 1, 3));
      EXPECT_EQ(check.describe(),
                fmt::format("{} of blocks.1.up.weight (unit 'blocks.1'): rank 2 differs from ranks 0, 1, 3",
                            compute == DType::f32 ? "weights" : "fp32 master weights"));
    }
  }
}

TEST(ReplicaCheck, OfTwoReplicasBothAreNamed) {
  // Ranks 1 and 3 hold the second part in replicas 0 and 1.
  for (const ReplicaCheck& check : flipped({Strategy::optim_grads_params, 2}, 3, "blocks.0.down.weight")) {
    ASSERT_EQ(check.differences.size(), 1u);
    EXPECT_THAT(check.differences[0].ranks, ElementsAre(1, 3));
    EXPECT_THAT(check.differences[0].majority, IsEmpty());
    EXPECT_THAT(check.describe(), HasSubstr("ranks 1, 3 differ, and no majority tells which is right"));
  }
}

TEST(ReplicaCheck, WeightsThatRestWholeAreComparedWhole) {
  // Under optim the masters are cut, but in f32 they are a part of the weights that rest here: this rank's
  // copy alone is wrong until the next gather.
  for (const ReplicaCheck& check : flipped({Strategy::optim}, 1, "blocks.0.up.weight")) {
    ASSERT_EQ(check.differences.size(), 1u);
    EXPECT_THAT(check.differences[0].ranks, ElementsAre(1));
    EXPECT_THAT(check.differences[0].majority, ElementsAre(0, 2, 3));
  }
}

TEST(ReplicaCheck, LongListsAreCut) {
  ReplicaCheck check;
  for (int i = 0; i < 7; ++i)
    check.differences.push_back(
        {.parameter = fmt::format("p{}", i), .unit = "root", .ranks = {1}, .majority = {0, 2}});
  EXPECT_THAT(check.describe(), AllOf(HasSubstr("p3 "), HasSubstr("and 3 more tensors")));
}

}  // namespace
}  // namespace sherd::test
