// Plans of buckets: the bucket of each matrix, and the slots of gradients; planned without devices and ranks.
#include <sherd/fsdp/bucket_plan.h>

#include <string>
#include <vector>

#include <sherd/dtensor/layer_wise.h>
#include <sherd/fsdp/layout_param.h>
#include <sherd/fsdp/model_plan.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

PlanUnit unit(const std::string& name, int position, std::vector<PlanParam> params, int world,
              const FullyShardOptions& o) {
  return {.name = name,
          .params = std::move(params),
          .mesh = {{"shard", world}},
          .options = o,
          .position = position,
          .root = name == "root",
          .height = name == "root" ? 1 : 0};
}

PlanParam matrix(const std::string& name, Shape shape) {
  return {.name = name, .shape = std::move(shape), .cut = CutClass::row};
}

FullyShardOptions whole(int64_t bucket_elements, Strategy strategy = Strategy::optim_grads) {
  return {.strategy = strategy, .layout = LayoutPolicy::whole_param, .bucket_elements = bucket_elements};
}

// Blocks of a norm and three matrices, of growing width, and an embedding in the root.
std::vector<PlanUnit> blocks(int count, int world, const FullyShardOptions& o) {
  std::vector<PlanUnit> all;
  for (int i = 0; i < count; ++i) {
    const int64_t d = 8 + 4 * i;
    all.push_back(unit("b" + std::to_string(i), i,
                       {{.name = "norm", .shape = {d}},
                        matrix("up", {3 * d, d}),
                        matrix("o", {d, d}),
                        matrix("down", {d, 3 * d})},
                       world, o));
  }
  all.push_back(unit("root", count, {{.name = "embed", .shape = {97, 8}}}, world, o));
  return all;
}

std::vector<std::string> names(const std::vector<BucketPlan>& buckets) {
  std::vector<std::string> all;
  for (auto& b : buckets) all.push_back(b.group.unit);
  return all;
}

TEST(BucketPlan, IsTheLayerWiseLayoutOfAllUnitsMatrices) {
  for (const int world : {1, 2, 3, 5, 16}) {
    for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{2000}, int64_t{40'000'000}}) {
      for (const Packing packing : {Packing::lpt, Packing::size_match, Packing::ping_pong}) {
        FullyShardOptions o = whole(size);
        o.packing = packing;
        const std::vector<PlanUnit> units = blocks(6, world, o);
        std::vector<LayerWiseParam> matrices;
        for (auto& u : units)
          for (auto& p : u.params)
            if (p.cut == CutClass::row) matrices.push_back({layout_param(p.name, p.shape, p.cut, {}), false});
        const auto want =
            LayerWiseLayout::make(matrices, world, {.packing = packing, .bucket_elements = size});
        const std::vector<BucketPlan> got = plan_buckets(units);
        ASSERT_EQ(got.size(), want.buckets.size());
        for (size_t k = 0; k < got.size(); ++k) {
          EXPECT_EQ(got[k].group.layout->fingerprint(), want.buckets[k].layout.fingerprint());
          EXPECT_EQ(got[k].begin.value, want.buckets[k].begin.value);
          EXPECT_EQ(got[k].units.size(), want.buckets[k].layout.params().size());
        }
      }
    }
  }
}

TEST(BucketPlan, UnitsKeepWhatAdamWUpdates) {
  const std::vector<PlanUnit> units = blocks(3, 4, whole(1));
  for (auto& groups : plan_units(units)) {
    ASSERT_EQ(groups.size(), 1u);
    EXPECT_EQ(groups[0].params, std::vector<int>{0});
    EXPECT_EQ(groups[0].layout->policy(), LayoutPolicy::ragged);
  }
}

TEST(BucketPlan, ExistsWhereWeightsRestWholeAndStatesAreSplit) {
  for (const int world : {1, 4}) {
    EXPECT_THAT(plan_buckets(blocks(2, world, whole(0, Strategy::no_shard))), IsEmpty());
    EXPECT_EQ(plan_buckets(blocks(2, world, whole(0, Strategy::optim))).size(), 1u);
    EXPECT_EQ(plan_buckets(blocks(2, world, whole(0, Strategy::optim_grads))).size(), 1u);
    EXPECT_THAT(plan_buckets(blocks(2, world, whole(0, Strategy::optim_grads_params))), IsEmpty());
    EXPECT_THAT(plan_buckets(blocks(2, world, {.strategy = Strategy::optim})), IsEmpty()) << "ragged";
  }
  FullyShardOptions o = whole(0, Strategy::no_shard);
  o.outer = Outer::optim;
  std::vector<PlanUnit> units = blocks(2, 2, o);
  for (auto& u : units) u.mesh = {{"replicate", 2}, {"shard", 2}};
  ASSERT_EQ(plan_buckets(units).size(), 1u) << "replicas split the state";
  EXPECT_EQ(plan_buckets(units)[0].group.layout->world(), 2);
}

TEST(BucketPlan, TheRootsMatricesComeLastAndTiedOnesAreAlone) {
  std::vector<PlanUnit> units = blocks(3, 2, whole(0));
  units.back().params.push_back(matrix("mix", {16, 16}));
  units.back().params.push_back(matrix("shared", {16, 16}));
  units.back().params.back().tied = true;
  const std::vector<BucketPlan> buckets = plan_buckets(units);
  EXPECT_THAT(names(buckets), ElementsAre("bucket 0 (b2 to b0)", "bucket 1 (root)", "bucket 2 (root)"));
  EXPECT_EQ(buckets[1].group.layout->params().front().name, "shared");
  EXPECT_THAT(buckets[0].members(), ElementsAre(2, 1, 0));
}

TEST(BucketPlan, FrozenIgnoredAndOtherKindsOfUnitsAreApart) {
  std::vector<PlanUnit> units = blocks(4, 2, whole(0));
  units[0].params[1].trainable = false;
  units[1].params[1].ignored = true;
  for (auto& p : units[2].params) p.dtype = DType::bf16;
  units[3].ranks_id = 1;  // experts, on a mesh of their own
  const std::vector<BucketPlan> buckets = plan_buckets(units);
  EXPECT_THAT(names(buckets), ElementsAre("bucket 0 (b1 to b0)", "bucket 1 (b2)", "bucket 2 (b3)"));
  EXPECT_EQ(buckets[0].group.params, (std::vector<int>{2, 3, 2, 3}));
  EXPECT_EQ(buckets[1].group.dtype, DType::bf16);
  EXPECT_THAT((std::vector{buckets[0].buffer, buckets[1].buffer, buckets[2].buffer}), ElementsAre(0, 1, 2));
}

// Units of one matrix each, of which two are in a bucket of their own on two ranks.
std::vector<PlanUnit> even_units(int count, const FullyShardOptions& o) {
  std::vector<PlanUnit> all;
  for (int i = 0; i < count; ++i)
    all.push_back(unit("u" + std::to_string(i), i, {matrix("a", {8, 8}), matrix("b", {8, 8})}, 2, o));
  all.push_back(unit("root", count, {}, 2, o));
  return all;
}

TEST(BucketPlan, GradientsOfBucketsTakeTurnsInTwoSlots) {
  const FullyShardOptions o = whole(1);
  const ModelPlan plan = plan_model(even_units(5, o));
  ASSERT_EQ(plan.buckets.size(), 5u);
  EXPECT_EQ(plan.gradient_slots.size(), 2u);
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(plan.buckets[k].gradient_slot, static_cast<int>(k % 2));
    const PlannedBuffer* open = plan.buckets[k].group.find(BufferUse::open_gradient);
    ASSERT_NE(open, nullptr);
    EXPECT_EQ(open->slot, static_cast<int>(k % 2));
    EXPECT_EQ(open->lifetime, Lifetime::backward);
  }
  EXPECT_EQ(plan_model(even_units(5, o), {.overlap_reduce = false}).gradient_slots.size(), 1u);
  const FullyShardOptions whole_gradients = whole(1, Strategy::optim);
  EXPECT_EQ(plan_model(even_units(5, whole_gradients)).gradient_slots.size(), 0u);
}

TEST(BucketPlan, OneThatIsOpenThroughoutTheBackwardHasASlotOfItsOwn) {
  const FullyShardOptions o = whole(1);
  std::vector<PlanUnit> units = even_units(4, o);
  units.back().params = {matrix("mix", {8, 8})};
  const ModelPlan plan = plan_model(units);
  EXPECT_THAT(names(plan.buckets).back(), "bucket 4 (root)");
  EXPECT_EQ(plan.gradient_slots.size(), 3u);
  const int own = plan.buckets.back().gradient_slot;
  for (size_t k = 0; k < 4; ++k) EXPECT_NE(plan.buckets[k].gradient_slot, own);
}

TEST(BucketPlan, SpansOfUnitsThatHoldOthersCoverThose) {
  FullyShardOptions o = whole(1);
  // u0 holds u1, u2 holds u3.
  std::vector<PlanUnit> units = even_units(4, o);
  units[0].height = units[2].height = 1;
  const std::vector<BucketPlan> buckets = plan_buckets(units);
  std::vector<std::pair<int, int>> spans;
  for (auto& b : buckets) {
    const BackwardSpan s = backward_span(b, units);
    spans.emplace_back(s.begin, s.end);
  }
  EXPECT_THAT(spans, ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(2, 2), std::pair(2, 3)));
}

}  // namespace
}  // namespace sherd::test
