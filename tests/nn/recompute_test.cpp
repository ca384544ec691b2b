// Activations that are computed again: no bit and no collective of the shard group changes.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <stdexcept>

#include "support/message_of.h"
#include "training.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

// The chain of blocks with scopes of several sizes.
struct Scopes {
  const char* name;
  TapeNet::Use use;
  std::function<void(TapeNet&)> change = {};
  Step step = plain_step;
  bool same_collectives = true;
};

Var again(TapeBlock& block, const Var& x, Place arguments = Place::device) {
  return nn::recompute(
      arguments, [&](const Var& in) { return block(in); }, x);
}

std::vector<Scopes> scopes() {
  const TapeNet::Use chain = TapeNet().use;
  const auto all = [](TapeNet& net) {
    for (auto& b : net.blocks) b->set_recompute(true);
  };
  const auto all_from_the_host = [](TapeNet& net) {
    for (auto& b : net.blocks) b->set_recompute(true, Place::host);
  };
  return {
      {"inside of each block's call", chain, all},
      {"inside of each block's call, arguments on the host", chain, all_from_the_host},
      {"around each block's call",
       [](TapeNet& net, Var x) {
         for (auto& b : net.blocks) x = again(*b, x);
         return x;
       }},
      {"around two blocks",
       [](TapeNet& net, Var x) {
         x = nn::recompute([&](const Var& in) { return net.block(1)(net.block(0)(in)); }, x);
         return net.block(2)(x);
       }},
      {"nested",
       [](TapeNet& net, Var x) {
         return nn::recompute(
             [&](Var in) { return net.block(2)(again(net.block(1), again(net.block(0), in))); }, x);
       },
       {},
       plain_step,
       false},
      {"blocks inside of a scope that recompute, too",
       [](TapeNet& net, Var x) {
         return nn::recompute([&](Var in) { return net.block(2)(net.block(1)(net.block(0)(in))); }, x);
       },
       all, plain_step, false},
      {"around the model",
       chain,
       {},
       [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
         const Var x = tape.input(rows(rank, static_cast<uint64_t>(i)));
         tape.backward(loss_of(nn::recompute([&](const Var& in) { return net(in); }, x), 0));
       },
       false},
      {"around the model and the loss",
       chain,
       {},
       [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
         const Var x = tape.input(rows(rank, static_cast<uint64_t>(i)));
         tape.backward(nn::recompute([&](const Var& in) { return loss_of(net(in), 0); }, x));
       },
       false},
  };
}

TEST(Recompute, ChangesNoBitAndNoCollectiveOfTheShardGroup) {
  for (const int ranks : {1, 3, 4})
    for (const Strategy strategy : kStrategies) {
      const Trained plain = train(ranks, {.strategy = strategy}, {}, plain_step);
      for (const Scopes& s : scopes()) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, {}", s.name, ranks, name_of(strategy)));
        const Trained t = train(ranks, {.strategy = strategy}, s.use, s.step, s.change);
        EXPECT_EQ(t.weights, plain.weights);
        if (!s.same_collectives) continue;
        for (auto& [name, count] : plain.counts) EXPECT_EQ(t.counts.at(name).calls, count.calls) << name;
      }
    }
}

// One step under zero3 on three ranks with prefetch 1, so that two slots hold blocks. The root stays
// unsharded.
TEST(Recompute, GathersOnceMoreWhereAScopeIsLargerThanTheSlots) {
  const auto gathers = [](const Scopes& s) {
    return train(3, {.strategy = Strategy::optim_grads_params}, s.use, s.step, s.change)
        .counts.at("all_gather")
        .calls;
  };
  const std::vector<Scopes> all = scopes();
  EXPECT_EQ(gathers({"plain", {}}), 7);  // three blocks twice, the root once
  EXPECT_EQ(gathers(all[2]), 7) << all[2].name;
  // Block 2 is gathered ahead and gives way to block 0 in the second run, which gives way to block 2 again.
  EXPECT_EQ(gathers(all[4]), 7 + (3 - 2 + 1)) << all[4].name;
}

// Uses of the tape in steps, with all blocks recomputed.
TEST(Recompute, HoldsForEveryUsage) {
  const TapeNet::Use chain = TapeNet().use;
  const Step siamese = [](TapeNet& net, Tape& tape, RankContext& rank, int i) {
    const Var a = net(tape.input(rows(rank, 2 * static_cast<uint64_t>(i))));
    const Var b = net(tape.input(rows(rank, 2 * static_cast<uint64_t>(i) + 1)));
    tape.backward(loss_of(a + -1 * b, 0) + 0.5f * loss_of(a, 1));
  };
  const TapeNet::Use often = [](TapeNet& net, Var x) {
    for (int i = 0; i < 3; ++i) x = net.block(1)(net.block(0)(x));
    net.block(0)(x);  // for nothing
    return net.block(2)(x);
  };
  const TapeNet::Use often_in_scopes = [](TapeNet& net, Var x) {
    for (int i = 0; i < 3; ++i) x = again(net.block(1), again(net.block(0), x));
    again(net.block(0), x);  // for nothing
    return net.block(2)(x);
  };
  const Step two_tapes = [](TapeNet& net, Tape& a, RankContext& rank, int i) {
    Tape b;
    const Var x = loss_of(net(a.input(rows(rank, 2 * static_cast<uint64_t>(i)))), 0);
    const Var y = loss_of(net(b.input(rows(rank, 2 * static_cast<uint64_t>(i) + 1))), 0);
    a.backward(x);
    b.backward(y);
  };
  const auto freeze_one = [](TapeNet& net) {
    for (Parameter p : net.block(0).own_parameters()) p.freeze();
  };
  struct Case {
    const char* name;
    TapeNet::Use use, scoped;
    Step step;
    std::function<void(TapeNet&)> change;
  };
  for (const Case& c : {Case{"siamese", chain, chain, siamese, {}},
                        Case{"called often", often, often_in_scopes, plain_step, {}},
                        Case{"called often, two tapes", often, often_in_scopes, two_tapes, {}},
                        Case{"frozen", often, often_in_scopes, plain_step, freeze_one}})
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
      SCOPED_TRACE(fmt::format("{} under {}", c.name, name_of(strategy)));
      const auto change = [&](TapeNet& net) {
        if (c.change) c.change(net);
      };
      const Trained plain = train(3, {.strategy = strategy}, c.use, c.step, change);
      const auto check = [&](const TapeNet::Use& use, bool inside) {
        for (const Place arguments : {Place::device, Place::host}) {
          if (!inside && arguments == Place::host) continue;
          const Trained t = train(3, {.strategy = strategy}, use, c.step, [&](TapeNet& net) {
            change(net);
            for (auto& b : net.blocks) b->set_recompute(inside, arguments);
          });
          EXPECT_EQ(t.weights, plain.weights) << (inside ? "inside" : "around");
          for (auto& [name, count] : plain.counts) EXPECT_EQ(t.counts.at(name).calls, count.calls) << name;
        }
      };
      check(c.use, true);
      check(c.scoped, false);
      check(c.scoped, true);
    }
}

TEST(Recompute, KeepsTheArgumentsAlone) {
  launch(1, [](RankContext& rank) {
    Tape tape;
    const auto held = [&](bool recomputes) {
      TapeNet net;
      shard(net, rank, {});
      for (auto& b : net.blocks) b->set_recompute(recomputes);
      rank.device->compute().synchronize();
      const int64_t before = rank.device->allocator().live_bytes(MemoryClass::activation);
      {
        const Var y = net(tape.input(rows(rank, 1)));
        rank.device->compute().synchronize();
        const int64_t more = rank.device->allocator().live_bytes(MemoryClass::activation) - before;
        tape.clear();
        reset_step(net);
        return more;
      }
    };
    // The input of each block, the model's result, and slots' rounding; without it the six values of each
    // block.
    const int64_t value = Allocator::rounded(kRows * kWidth * 4);
    EXPECT_LE(held(true), 4 * value + Allocator::rounded(kRows * 4 * 4) + value);
    EXPECT_GE(held(false), 3 * 4 * value);
  });
}

// Scopes of several values, one of which two scopes share, and which the loss uses, too.
Var chained(RankContext& rank, const Var& shared, Var x, int scopes, Place arguments) {
  const Var constant(rows(rank, 2));
  for (int i = 0; i < scopes; ++i)
    x = nn::recompute(
        arguments, [](const Var& a, const std::vector<Var>& b) { return nn::gelu(a + 0.5f * (b[0] * b[1])); },
        x, std::vector<Var>{shared, constant});
  return loss_of(x + shared, 0);
}

TEST(Recompute, ArgumentsOnTheHostKeepBitsAndBoundTheDevicesMemory) {
  const auto folder = std::filesystem::temp_directory_path();
  LaunchOptions options;
  options.device.offload_folder = folder.string();
  sherd::launch(1, options, [](RankContext& rank) {
    Device& device = *rank.device;
    const auto run = [&](int scopes, Place arguments) {
      Tape tape;
      const Var shared = tape.leaf(rows(rank, 1)), first = tape.leaf(rows(rank, 3));
      device.compute().synchronize();
      device.allocator().reset_peak();
      const int64_t waits = device.host_syncs();
      tape.backward(chained(rank, shared, first, scopes, arguments));
      EXPECT_EQ(device.host_syncs(), waits) << "no wait of the host";
      const int64_t peak = device.allocator().peak_bytes();
      std::vector<std::vector<float>> gradients;
      for (const Var& leaf : {shared, first})
        gradients.push_back(ops::to_floats(device.compute(), tape.gradient(leaf)));
      return std::pair(gradients, peak);
    };
    const int64_t value = Allocator::rounded(kRows * kWidth * 4);
    std::map<int, int64_t> peaks;
    for (const int scopes : {1, 2, 3, 4, 8, 16}) {
      const auto [plain, more] = run(scopes, Place::device);
      const auto [offloaded, peak] = run(scopes, Place::host);
      EXPECT_EQ(plain, offloaded) << scopes;
      EXPECT_EQ(more, run(scopes, Place::device).second);
      peaks[scopes] = peak;
      if (scopes >= 8) {
        EXPECT_LE(peak, more - (scopes - 6) * value) << scopes;
      }
    }
    EXPECT_EQ(peaks[8], peaks[4]);
    EXPECT_EQ(peaks[16], peaks[4]);
    EXPECT_EQ(device.host_tier().live_bytes(), 0);
    // Dropped between forward and backward, and by an exception of a later run.
    {
      Tape tape;
      (void)chained(rank, tape.leaf(rows(rank, 1)), tape.leaf(rows(rank, 3)), 8, Place::host);
      tape.clear();
      const Var x = tape.leaf(rows(rank, 1));
      Var y = x;
      for (int i = 0; i < 6; ++i)
        y = nn::recompute(
            Place::host,
            [i](const Var& in) {
              if (i == 2 && in.tape()->recomputing()) throw std::runtime_error("a run that fails");
              return nn::gelu(in);
            },
            y);
      EXPECT_THROW(tape.backward(loss_of(y, 0)), std::runtime_error);
    }
    EXPECT_EQ(device.host_tier().live_bytes(), 0);
  });
}

TEST(Recompute, AScopeWhoseSecondRunIsAnotherIsRefused) {
  launch(1, [](RankContext& rank) {
    Tape tape;
    int runs = 0;
    const Var x = tape.leaf(rows(rank, 1));
    const Var y =
        nn::recompute([&](const Var& in) { return ++runs == 1 ? nn::gelu(in) : nn::gelu(nn::gelu(in)); }, x);
    EXPECT_THAT(message_of<InvalidArgument>([&] { tape.backward(loss_of(y, 0)); }),
                HasSubstr("second run of a scope"));
    EXPECT_EQ(tape.size(), 0);
  });
}

TEST(Recompute, AnExceptionInEitherRunLeavesTheModelUsable) {
  for (const bool around : {false, true})
    for (const int bad_run : {1, 2}) {
      const Step step = [&](TapeNet& net, Tape& tape, RankContext& rank, int i) {
        int runs = 0;
        net.use = [&](TapeNet& n, Var x) {
          const auto f = [&](const Var& in) {
            const Var y = n.block(1)(n.block(0)(in));
            if (++runs == bad_run) throw std::runtime_error("a run that fails");
            return y;
          };
          return n.block(2)(around ? nn::recompute(f, x) : n.block(1)(nn::recompute(f, x)));
        };
        EXPECT_THROW(tape.backward(loss_of(net(tape.input(rows(rank, 77))), 0)), std::runtime_error);
        tape.clear();
        reset_step(net);
        net.use = TapeNet().use;
        plain_step(net, tape, rank, i);
      };
      SCOPED_TRACE(fmt::format("{} {}", around, bad_run));
      EXPECT_EQ(train(2, {}, {}, step).weights, train(2, {}, {}, plain_step).weights);
    }
}

TEST(Recompute, AnUnusedScopeAroundTheModelIsDropped) {
  for (const Strategy strategy : kStrategies) {
    const auto step = [](bool scope) {
      return [scope](TapeNet& net, Tape& tape, RankContext& rank, int i) {
        const auto f = [&](const Var& in) { return net(in); };
        const Var x = tape.input(rows(rank, 50)), first = scope ? nn::recompute(f, x) : net(x);
        const Var y = net(tape.input(rows(rank, static_cast<uint64_t>(i))));
        tape.backward(loss_of(y + 0.5f * first.detach(), 0));
      };
    };
    EXPECT_EQ(train(3, {.strategy = strategy}, {}, step(true)).weights,
              train(3, {.strategy = strategy}, {}, step(false)).weights)
        << name_of(strategy);
  }
}

TEST(Recompute, ArgumentsThatForwardMayChangeAreRefused) {
  struct Drops : nn::Module<Drops> {
    Var forward(const Var& x, nn::RandomState& random) { return nn::dropout(x, 0.5f, random, "drops"); }
  } drops;
  launch(1, [&](RankContext& rank) {
    Tape tape;
    nn::RandomState random(1);
    random.begin(1, 0);
    const Var x = tape.leaf(rows(rank, 1));
    EXPECT_TRUE(drops(x, random).requires_grad());
    drops.set_recompute(true);
    EXPECT_THROW(drops(x, random), InvalidArgument);
    EXPECT_THROW(nn::recompute([&](const Var& in) { return tape.leaf(in.value()); }, x), InvalidArgument);
  });
}

TEST(Recompute, WithoutATapeOrInsideNoGradItIsTheFunction) {
  launch(1, [](RankContext& rank) {
    int runs = 0;
    const auto f = [&](const Var& in) {
      ++runs;
      return nn::gelu(in);
    };
    const Tensor x = rows(rank, 1);
    nn::recompute(f, Var(x));
    Tape tape;
    {
      nn::NoGrad scope(tape);
      EXPECT_FALSE(nn::recompute(f, tape.leaf(x)).requires_grad());
    }
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(tape.size(), 0);
  });
}

}  // namespace
}  // namespace sherd::test
