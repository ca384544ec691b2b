// The bracket around an update of the weights, and what an exception inside of it leaves.

#include <mutex>

#include <sherd/fsdp/weights_change.h>

#include "support/chain.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using Weights = std::vector<std::vector<float>>;

struct HalfWay : std::runtime_error {
  HalfWay() : std::runtime_error("half way") {}
};

void fill_weights(ChainRig& rig, double value) {
  for (auto& [name, p] : rig.model.named_parameters()) ops::fill(rig.stream(), p.shard(), value);
}

// Gathers every unit, and expects that all of its parameters are `value`.
void expect_gathered(ChainRig& rig, float value, const char* when) {
  for (auto& unit : runtime_of(rig.model).units()) {
    unit->unshard();
    unit->wait();
    for (auto& g : unit->groups())
      for (const Parameter& p : g->params())
        EXPECT_THAT(ops::to_floats(rig.stream(), p.data()), Each(value)) << when << ": " << p.name();
    unit->reshard();
  }
}

// Changes the weights to `value`; whatever `throws` is, they are that afterwards.
void change_weights(ChainRig& rig, double value, bool throws) {
  try {
    WeightsChange change(runtime_of(rig.model));
    fill_weights(rig, value);
    if (throws) throw HalfWay();
    change.end();
  } catch (const HalfWay&) {
  }
}

TEST(WeightsChange, LeavesTheModelUsableAlsoWhenAnExceptionEndsIt) {
  for (const Strategy s : kEveryStrategy) {
    Weights got[2];
    for (const bool throws : {false, true}) {
      launch(2, [&](RankContext& r) {
        ChainRig rig(r, {.strategy = s});
        ShardRuntime& runtime = runtime_of(rig.model);
        rig.step(0);
        rig.pass(1);
        runtime.require_gradients("the test");
        change_weights(rig, 0.5, throws);
        EXPECT_THROW(runtime.require_gradients("the test"), InvalidArgument) << "they are of the old weights";
        expect_gathered(rig, 0.5f, name_of(s));
        rig.step(2);
        const Weights mine = rig.weights();
        if (r.world->rank() == 0) got[throws] = mine;
      });
    }
    EXPECT_EQ(got[0], got[1]) << name_of(s);
  }
}

TEST(WeightsChange, RewritesTheModelsCopiesEitherWay) {
  for (const Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      ChainRig rig(r, {.strategy = s, .compute_dtype = DType::bf16});
      for (const bool throws : {false, true}) {
        change_weights(rig, 0.25, throws);
        expect_gathered(rig, 0.25f, name_of(s));
        change_weights(rig, 0.5, throws);
        expect_gathered(rig, 0.5f, name_of(s));
      }
    });
  }
}

TEST(WeightsChange, IsOneAtATime) {
  launch(1, [](RankContext& r) {
    ChainRig rig(r, {});
    ShardRuntime& runtime = runtime_of(rig.model);
    {
      WeightsChange change(runtime);
      EXPECT_THROW(WeightsChange second(runtime), InvalidArgument);
      rig.load(0);
      change.end();
      change.end();  // once is enough
    }
    rig.step(0);
    WeightsChange(runtime).end();
    rig.sync();
  });
}

TEST(WeightsChange, ThatWasCutOffIsFoundByTheRecoveryUntilAnotherOneEnds) {
  std::mutex mutex;
  std::vector<std::string> texts;
  launch(2, [&](RankContext& r) {
    ChainRig rig(r, {});
    ShardRuntime& runtime = runtime_of(rig.model);
    const auto recover = [&] {
      rig.sync();
      r.world->recover();
      try {
        runtime.recovered();
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
      }
    };
    rig.step(0);
    { const WeightsChange cut_off(runtime); }
    WeightsChange(runtime).end();
    recover();  // finds nothing
    { const WeightsChange cut_off(runtime); }
    recover();
    WeightsChange open(runtime);
    recover();
    const Weights before = rig.weights();
    open.end();  // was closed by the recovery
    WeightsChange(runtime).end();
    recover();  // finds nothing
    EXPECT_EQ(rig.weights(), before);
    rig.step(1);
    rig.sync();
  });
  EXPECT_THAT(texts, SizeIs(4));
  EXPECT_THAT(texts, Each(HasSubstr("cut an update of the weights off (ranks in the middle of it: 0, 1")));
}

}  // namespace
}  // namespace sherd::test
