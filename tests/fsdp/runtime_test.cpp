// Operations of the runtime, counted: collectives, event order, copies, bytes.

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include <sherd/kernels/device/trace.h>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

TEST(Runtime, Zero3IssuesExactlyTheCollectivesOfFsdp2) {
  launch(4, [](RankContext& r) {
    Rig rig(r, {});
    for (int step = 0; step < 3; ++step) {
      auto fwd = rig.counted([&] { rig.forward(); });
      EXPECT_EQ(fwd["all_gather"].calls, kBlocks + 1) << step;
      auto bwd = rig.counted([&] { rig.backward(); });
      EXPECT_EQ(bwd["all_gather"].calls, kBlocks) << step;
      EXPECT_EQ(bwd["reduce_scatter"].calls, kBlocks + 1) << step;
      auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
      EXPECT_EQ(clip["all_reduce"].calls, 1) << step;
      auto opt = rig.counted([&] { rig.optimizer->step(0.01); });
      for (auto& [name, c] : opt) EXPECT_EQ(c.calls, 0) << name;
      for (auto* counts : {&fwd, &bwd, &clip})
        for (auto& [name, c] : *counts)
          if (name != "all_gather" && name != "reduce_scatter" && name != "all_reduce") {
            EXPECT_EQ(c.calls, 0) << name;
          }
      EXPECT_EQ(bwd["all_reduce"].calls + fwd["all_reduce"].calls, 0);
    }
  });
}

TEST(Runtime, HsdpClipsWithOneAllReducePerShardingDimension) {
  launch(4, [](RankContext& r) {
    for (Outer o : {Outer::no_shard, Outer::optim}) {
      Rig rig(r, {.outer = o}, 2);
      rig.forward();
      auto bwd = rig.counted([&] { rig.backward(); });
      EXPECT_EQ(bwd["reduce_scatter"].calls, (kBlocks + 1) * (o == Outer::optim ? 2 : 1));
      EXPECT_EQ(bwd["all_reduce"].calls, o == Outer::optim ? 0 : kBlocks + 1);
      auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
      EXPECT_EQ(clip["all_reduce"].calls, o == Outer::optim ? 2 : 1);
      rig.optimizer->step(0.01);
      rig.sync();
    }
  });
}

TEST(Runtime, Zero0ClipsWithoutCommunication) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {.strategy = Strategy::no_shard});
    rig.forward();
    auto bwd = rig.counted([&] { rig.backward(); });
    EXPECT_EQ(bwd["all_reduce"].calls, kBlocks + 1);
    auto clip = rig.counted([&] { clip_grad_norm(rig.model, 1.0); });
    EXPECT_EQ(clip["all_reduce"].calls, 0);
    rig.optimizer->step(0.01);
    rig.sync();
  });
}

TEST(Runtime, OneRankCommunicatesNothing) {
  launch(1, [](RankContext& r) {
    Rig rig(r, {});
    auto all = rig.counted([&] { rig.step(); });
    for (auto& [name, c] : all) EXPECT_EQ(c.bytes, 0) << name;
  });
}

TEST(Runtime, OneRankConvertsItsWeightsOnCompute) {
  for (const int ranks : {1, 2})
    launch(ranks, [ranks](RankContext& r) {
      const auto trace = std::make_shared<Trace>();
      r.device->set_trace(trace);
      trace->set_enabled(true);
      Rig rig(r, {.compute_dtype = DType::bf16});
      rig.step();
      rig.sync();
      std::set<std::string> streams;
      for (const TraceRecord& record : trace->records()) streams.insert(record.stream);
      EXPECT_EQ(streams.contains("gather") || streams.contains("reduce"), ranks > 1);
      EXPECT_TRUE(streams.contains("compute"));
    });
}

TEST(Runtime, TheModelOfOneRankGoesAfterItsCopies) {
  launch(1, [](RankContext& r) {
    auto rig = std::make_unique<Rig>(r, FullyShardOptions{});
    std::atomic<bool> open = false;
    r.device->compute().submit("gate", [&](ExecutionContext&) { open.wait(false); });
    std::jthread opens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      open = true;
      open.notify_all();
    });
    rig.reset();
    EXPECT_TRUE(open);
  });
}

TEST(Runtime, TheModelOfOneRankHidesNoFailure) {
  EXPECT_THROW(launch(1,
                      [](RankContext& r) {
                        Rig rig(r, {});
                        const auto side = r.device->make_stream("side");
                        side->submit("fails", [](ExecutionContext&) { throw std::runtime_error("no"); });
                      }),
               std::runtime_error);
}

TEST(Runtime, TheFirstStepAloneIsIssuedInOrder) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {});
    Device& device = *r.device;
    rig.forward();  // an evaluation before the first step, say
    rig.forward();
    rig.backward();
    EXPECT_TRUE(device.issues_in_order());
    rig.optimizer->step(0.01);
    EXPECT_FALSE(device.issues_in_order());
    rig.step();
    EXPECT_FALSE(device.issues_in_order());
  });
}

TEST(Runtime, StepChangesWhenAStepBegins) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {});
    ShardRuntime& runtime = runtime_of(rig.model);
    const uint64_t first = runtime.step();
    rig.forward();
    rig.backward();
    EXPECT_EQ(runtime.step(), first);
    zero_grad(rig.model);  // gives gradients up, not the step
    EXPECT_EQ(runtime.step(), first);
    rig.step();
    const uint64_t second = runtime.step();
    EXPECT_NE(second, first);
    rig.forward();
    reset_step(rig.model);
    EXPECT_NE(runtime.step(), second);
    EXPECT_NE(runtime.step(), first);
  });
}

TEST(Runtime, StepChangesWithEveryRecovery) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {});
    rig.step();
    rig.sync();
    ShardRuntime& runtime = runtime_of(rig.model);
    std::set<uint64_t> seen = {runtime.step()};
    for (int i = 0; i < 3; ++i) {
      r.world->recover();
      runtime.recovered();
      EXPECT_TRUE(seen.insert(runtime.step()).second) << runtime.step();
    }
  });
}

TEST(Runtime, EventOrderIsThatOfFsdp2) {
  launch(2, [](RankContext& r) {
    Rig rig(r, {});
    ShardRuntime& rt = runtime_of(rig.model);
    rt.enable_trace(true);
    for (int step = 0; step < 2; ++step) {
      rt.clear_trace();
      rig.forward();
      if (step == 0) {  // nothing recorded yet: gather on demand
        EXPECT_THAT(rt.trace(), ElementsAre("unshard root", "forward root", "unshard blocks.0",
                                            "forward blocks.0", "unshard blocks.1", "forward blocks.1",
                                            "unshard blocks.2", "forward blocks.2"));
      } else {  // one ahead
        EXPECT_THAT(rt.trace(), ElementsAre("unshard root", "unshard blocks.0", "forward root",
                                            "unshard blocks.1", "forward blocks.0", "unshard blocks.2",
                                            "forward blocks.1", "forward blocks.2"));
      }
      rt.clear_trace();
      rig.backward();
      EXPECT_THAT(rt.trace(),
                  ElementsAre("unshard blocks.2", "backward root", "unshard blocks.1", "backward blocks.2",
                              "post blocks.2", "unshard blocks.0", "backward blocks.1", "post blocks.1",
                              "backward blocks.0", "post blocks.0", "post root"));
      clip_grad_norm(rig.model, 0);
      rig.optimizer->step(0.01);
    }
    rig.sync();
  });
}

TEST(Runtime, RaggedCopiesNothingAroundCollectives) {
  for (Strategy s : kEveryStrategy) {
    launch(4, [s](RankContext& r) {
      Rig rig(r, {.strategy = s});
      rig.step();
      rig.sync();
      const int64_t before = r.device->copied_bytes();
      rig.step();
      rig.sync();
      EXPECT_EQ(r.device->copied_bytes(), before) << name_of(s);
    });
  }
}

TEST(Runtime, EvenRowsCopiesOnceInAndOnceOut) {
  launch(4, [](RankContext& r) {
    Rig rig(r, {.layout = LayoutPolicy::even_rows});
    rig.step();
    rig.sync();
    int64_t elements = 0, root = 0;
    for (auto& [name, p] : rig.model.named_parameters()) {
      elements += p.numel();
      if (!name.starts_with("blocks")) root += p.numel();
    }
    const int64_t before = r.device->copied_bytes();
    rig.step();
    rig.sync();
    // Gathered twice (the root once), reduced once.
    EXPECT_EQ(r.device->copied_bytes() - before, 4 * (3 * elements - root));
  });
}

TEST(Runtime, PeakBytesFollowTheFormula) {
  for (const int prefetch : {0, 1, 2}) {
    for (const bool overlap : {true, false}) {
      launch(4, [=](RankContext& r) {
        Rig rig(r, {}, 1, nullptr, 96, 384, {.prefetch = prefetch, .overlap_reduce = overlap});
        rig.step();
        rig.step();
        rig.sync();
        int64_t total = 0, root = 0;
        for (auto& [name, p] : rig.model.named_parameters()) {
          total += p.numel();
          if (!name.starts_with("blocks")) root += p.numel();
        }
        const int64_t unit = (total - root) / kBlocks;
        // Shards of parameters and gradients, the root and its gradients, prefetch + 1 units, 2 (1) unit
        // gradients.
        const int64_t want =
            4 * (2 * total / 4 + 2 * root + (prefetch + 1) * unit + (overlap ? 2 : 1) * unit);
        int64_t got = 0;
        for (const MemoryClass kind :
             {MemoryClass::parameter, MemoryClass::master, MemoryClass::gathered, MemoryClass::gradient})
          got += r.device->allocator().peak_bytes(kind);
        EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want), 0.05 * static_cast<double>(want));
      });
    }
  }
}

TEST(Runtime, WholeParamKeepsMatricesApartAndCarriesTheirCostOn) {
  launch(4, [](RankContext& r) {
    ToyModel model(16, 32, 3);
    (void)route(model);
    const DeviceMesh mesh = mesh_of(r);
    const FullyShardOptions options{.layout = LayoutPolicy::whole_param};
    for (auto& b : model.blocks_) fully_shard(*b, mesh, options);
    fully_shard(model, mesh, options);
    const ShardRuntime& rt = runtime_of(model);
    std::vector<std::string> where;
    for (auto& unit : rt.units()) {
      for (auto& g : unit->groups()) {
        const bool whole = g->layout().policy() == LayoutPolicy::whole_param;
        EXPECT_EQ(g->layout().policy(), whole ? LayoutPolicy::whole_param : LayoutPolicy::ragged);
        for (auto& p : g->params()) {
          EXPECT_EQ(p.cut() == CutClass::row, whole) << p.name();
          for (int rank = 0; whole && rank < 4; ++rank)
            if (!g->layout().piece(ParamId(p.index_in_group()), RankId(rank)).empty())
              where.push_back(p.name() + " on " + std::to_string(rank));
        }
      }
    }
    // Equal matrices, dealt in backward order; the third unit made starts again at rank 0.
    EXPECT_THAT(where, ElementsAre("blocks.0.up.weight on 1", "blocks.0.down.weight on 0",
                                   "blocks.1.up.weight on 3", "blocks.1.down.weight on 2",
                                   "blocks.2.up.weight on 1", "blocks.2.down.weight on 0"));
  });
}

TEST(Runtime, PublicVerbsGiveWholeParametersOutsideForward) {
  launch(3, [](RankContext& r) {
    Rig rig(r, {});
    auto unit = rig.model.blocks_[1]->unit();
    EXPECT_THROW(rig.model.blocks_[1]->up_.data(), InvalidArgument);
    unit->unshard();
    unit->wait();
    Stream& s = r.device->compute();
    const auto direct = ops::to_floats(s, rig.model.blocks_[1]->up_.data());
    const auto gathered = ops::to_floats(s, rig.model.blocks_[1]->up_.dtensor().full_tensor(s));
    EXPECT_EQ(direct, gathered);
    unit->reshard();
    EXPECT_THROW(rig.model.blocks_[1]->up_.data(), InvalidArgument);
    EXPECT_THROW(rig.model.blocks_[1]->up_.grad(), InvalidArgument);
    EXPECT_THROW(rig.model.blocks_[1]->up_.grad_for_overwrite(), InvalidArgument);
    rig.sync();
  });
}

TEST(Runtime, OnlyMatricesAndTheirStacksCostWhatTheirBlocksCost) {
  launch(2, [](RankContext& r) {
    struct Blocks : ModuleBase {
      Blocks() {
        const auto add = [&](const char* name, Shape shape, const std::vector<int64_t>& rows) {
          param(name, std::move(shape), constant(0)).set_row_blocks(rows).set_cut(CutClass::row);
        };
        add("bias", {12}, {4, 4, 4});
        add("matrix", {12, 6}, {4, 8});
        add("stack", {3, 8, 4}, {2, 6});
        add("kernel", {2, 3, 4, 5}, {1, 1});
      }
    } model;
    fully_shard(model, mesh_of(r), {.layout = LayoutPolicy::whole_param});
    std::map<std::string, double> cost;
    for (auto* g : runtime_of(model).groups())
      for (auto& p : g->layout().params()) cost[p.name] = p.cost;
    // larger * smaller^2 of each block, times the matrices of a stack; 0: as the shape says.
    EXPECT_EQ(cost,
              (std::map<std::string, double>{
                  {"bias", 0}, {"matrix", 6 * 16 + 8 * 36}, {"stack", 3 * (4 * 4 + 6 * 16)}, {"kernel", 0}}));
  });
}

}  // namespace
}  // namespace sherd::test
