// Rows between tensor-parallel regions, split over the ranks: the sums and gathers, models on them, memory
// and bytes.

#include <string>
#include <vector>

#include "arranged_training.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::ModelDescription;
using nn::SequenceRows;
using nn::Var;

ModelDescription with_large_weights(const char* family) {
  ModelDescription m = GoldenFolder(family).description;
  m.init_std = 0.2f;
  return m;
}

// Small integers: sums and products of them are exact, in any order.
Tensor filled(Device& device, const Shape& shape, int salt) {
  std::vector<float> all;
  for (int64_t i = 0; i < numel_of(shape); ++i)
    all.push_back(static_cast<float>((i * 37 + salt * 11) % 19 - 9));
  const Tensor t = Tensor::empty(device, shape, DType::f32, "test");
  ops::copy_from_host(device.compute(), t, all.data(), t.nbytes());
  return t;
}

// Even and uneven parts, and ranks without rows: whatever a rank has between regions, what it sees inside of
// them and the gradients that come out are those of whole rows.
TEST(SequenceRows, RegionsSeeWhatTheySeeOfWholeRows) {
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t n : {1, 3, 4, 7, 8})
      launch(ranks, [&](RankContext& rank) {
        Stream& s = rank.device->compute();
        const DeviceMesh mesh(rank.world, {{"tp", ranks}});
        const SequenceRows whole{nn::TensorParallel::of(mesh), n, false}, parts{whole.tp, n, true};
        EXPECT_EQ(parts.splits(), ranks > 1);
        const Tensor x = filled(*rank.device, {n, 5}, 1),
                     summand = filled(*rank.device, {n, 5}, rank.world->rank());
        nn::Tape tape;
        const auto gradients = [&](const SequenceRows& rows, const Tensor& between) {
          const Var in = tape.leaf(between);
          const auto [cut, all] = rows.enter_both(in);
          EXPECT_EQ(ops::to_floats(s, cut.value()), ops::to_floats(s, x));
          EXPECT_EQ(ops::to_floats(s, rows.enter(in).value()), ops::to_floats(s, x));
          // Every rank has a different gradient of `cut`, and the same gradient of `all`.
          const Var mixed = cut * Var(summand) + all * Var(x);
          const Var out = rows.leave(mixed + rows.enter(in));
          tape.backward(nn::sum(out * out));
          return std::pair(ops::to_floats(s, out.value()), ops::to_floats(s, tape.gradient(in)));
        };
        const auto want = gradients(whole, x);
        const auto got = gradients(parts, parts.tp.own_rows(x));
        const int64_t begin = ranks == 1 ? 0 : parts.tp.begin_of(n, parts.tp.rank());
        const auto own = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + begin * 5, all.begin() + (begin + parts.here()) * 5);
        };
        EXPECT_EQ(got.first, own(want.first)) << "ranks " << ranks << ", rows " << n;
        EXPECT_EQ(got.second, own(want.second)) << "ranks " << ranks << ", rows " << n;
      });
}

TEST(SequenceRows, GatheredRowsWithoutABackwardAreRefusedInTraining) {
  for (const int ranks : {1, 2, 3})
    launch(ranks, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      const auto tp = nn::TensorParallel::of(DeviceMesh(rank.world, {{"tp", ranks}}));
      const Tensor x = filled(*rank.device, {5, 2}, 1);
      const auto want = ops::to_floats(s, x);
      nn::Tape tape;
      const Var part = tape.leaf(tp.own_rows(x));
      EXPECT_EQ(ops::to_floats(s, tp.gather_rows(tape.input(part.value()), 5).value()), want);
      EXPECT_EQ(ops::to_floats(s, tp.gather_rows(Var(part.value()), 5).value()), want);
      {
        const nn::NoGrad evaluates(tape);
        EXPECT_EQ(ops::to_floats(s, tp.gather_rows(part, 5).value()), want);
      }
      if (ranks == 1) {
        tape.backward(nn::sum(tp.gather_rows(part, 5)));
        EXPECT_EQ(ops::to_floats(s, tape.gradient(part)), std::vector<float>(10, 1));
      } else {
        EXPECT_THAT(message_of<InvalidArgument>([&] { tp.gather_rows(part, 5); }),
                    AllOf(HasSubstr("gather_rows()"), HasSubstr("SequenceRows::enter()"),
                          HasSubstr("enter_both().whole"), HasSubstr("rank " + std::to_string(tp.rank()))));
      }
    });
}

// Each rank's part of the objective compares its rows with those of all ranks.
TEST(SequenceRows, AContrastiveObjectiveHasTheGradientsOfOneRank) {
  const int64_t n = 5;
  for (const int ranks : {1, 2, 3, 4})
    launch(ranks, [&](RankContext& rank) {
      Stream& s = rank.device->compute();
      const SequenceRows rows{nn::TensorParallel::of(DeviceMesh(rank.world, {{"tp", ranks}})), n, true};
      const Tensor x = filled(*rank.device, {n, 3}, 1);
      const auto gradient = [&](const Tensor& own, const SequenceRows& of) {
        nn::Tape tape;
        const Var leaf = tape.leaf(own);
        tape.backward(nn::sum(nn::power(nn::matmul(leaf, nn::transpose(of.enter(leaf))), 2)));
        return ops::to_floats(s, tape.gradient(leaf));
      };
      const std::vector<float> all = gradient(x, {}), mine = gradient(rows.tp.own_rows(x), rows);
      const int64_t begin = rows.splits() ? rows.tp.begin_of(n, rows.tp.rank()) : 0;
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_EQ(mine[i], all[static_cast<size_t>(begin * 3) + i]) << ranks << " ranks, " << i;
      EXPECT_EQ(mine.size(), static_cast<size_t>(rows.here() * 3));
    });
}

TEST(SequenceRows, ValuesOfOtherRowsAreRefusedOnEveryRank) {
  launch(2, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"tp", 2}});
    const SequenceRows rows{nn::TensorParallel::of(mesh), 7, true};
    const Var other = filled(*rank.device, {rank.world->rank() == 0 ? 4 : 3, 2}, 0);
    try {
      rows.enter(other);
      FAIL();
    } catch (const ShapeMismatch& e) {
      EXPECT_NE(std::string(e.what()).find("of 7 rows in all"), std::string::npos) << e.what();
    }
    EXPECT_THROW(rows.enter_both(other), ShapeMismatch);
    EXPECT_THROW(rows.leave(other), ShapeMismatch);
  });
}

// 1 x 9 rows on 4 ranks, 2 x 5 on 4 and on 3, and 1 x 3 on 4 and on 2: uneven parts, and one without any. Key heads
// that the ranks do not divide, biases behind sums, norms of heads, a vocabulary of which one rank has
// nothing.
TEST(SequenceParallel, AnyNumberOfRowsTrainsAsOnOneRank) {
  struct Case {
    const char* family;
    int tp;
    int64_t batch, seq, vocab;
    bool recompute;
  };
  for (const Case& c : {Case{"llama", 4, 1, 9, 199, false},
                        {"gpt2", 4, 1, 3, 200, false},
                        {"qwen2", 3, 2, 5, 7, true},
                        {"qwen3", 4, 2, 5, 5, false},
                        {"mistral", 2, 1, 3, 198, true},
                        {"qwen3_moe", 4, 1, 3, 21, true},
                        {"mixtral", 2, 1, 3, 21, false},
                        {"olmo2", 4, 1, 9, 199, false},
                        {"olmo3", 2, 2, 5, 7, true}}) {
    ModelDescription m = with_large_weights(c.family);
    m.vocab = c.vocab;
    m.hidden = 48;
    const TrainingPlan plan{.batch = c.batch, .seq = c.seq};
    Arrangement a{.name = "", .ranks = c.tp, .tp = c.tp, .recompute = c.recompute};
    const Outcome whole = train(m, a, plan);
    a.sequence_parallel = true;
    const Outcome got = train(m, a, plan);
    expect_near(got, train(m, {.name = ""}, plan), c.family);
    // The forward adds up in the same order, and so does backward but for norms.
    EXPECT_EQ(got.losses[0], whole.losses[0]) << c.family;
    EXPECT_EQ(got.zeros, whole.zeros) << c.family;
  }
}

TEST(SequenceParallel, StrategiesAndRecomputationHaveTheSameBits) {
  for (const char* family : {"gpt2", "qwen3_moe"}) {
    const ModelDescription m = with_large_weights(family);
    Arrangement a{
        .name = family, .ranks = 4, .tp = 2, .ep = m.mixture.experts > 0 ? 2 : 1, .sequence_parallel = true};
    a.strategy = Strategy::no_shard;
    const Outcome want = train(m, a);
    a.strategy = Strategy::optim_grads_params;
    expect_same_bits(train(m, a), want, "zero3");
    a.recompute = true;
    expect_same_bits(train(m, a), want, "recomputed");
  }
}

TEST(SequenceParallel, ExpertsTakeTheRowsThatARankHas) {
  ModelDescription m = with_large_weights("qwen3_moe");
  m.mixture.balance = 0.05;
  const Outcome want = train(m, {.name = "one"});
  for (const Arrangement& a :
       {Arrangement{.name = "tp 2 ep 2", .ranks = 2, .tp = 2, .ep = 2, .sequence_parallel = true},
        {.name = "tp 4 ep 2", .ranks = 4, .tp = 4, .ep = 2, .sequence_parallel = true},
        {.name = "tp 2 ep 4", .ranks = 4, .tp = 2, .ep = 4, .sequence_parallel = true}})
    expect_near(train(m, a), want, a.name);
}

// Frozen weights have no gradient to sum; the sums of the others find each other.
TEST(SequenceParallel, FrozenNormsAreLeftAlone) {
  const ModelDescription m = with_large_weights("gpt2");
  const auto freeze = [](nn::CausalModel& model) {
    for (auto& [name, p] : model.named_parameters())
      if (name.find("ln_1") != name.npos || name.find("c_proj.bias") != name.npos) Parameter(p).freeze();
  };
  const TrainingPlan plan{.prepare = freeze};
  expect_near(train(m, {.name = "tp 2", .ranks = 2, .tp = 2, .sequence_parallel = true}, plan),
              train(m, {.name = "one"}, plan), "frozen");
}

TEST(SequenceParallel, UnitsOfBf16StayNearF32) {
  for (const char* family : {"gpt2", "qwen3_moe"}) {
    const ModelDescription m = GoldenFolder(family).description;
    const Outcome got =
        train(m, {.name = "bf16", .ranks = 2, .tp = 2, .compute = DType::bf16, .sequence_parallel = true});
    EXPECT_LT(distance(got.losses, train(m, {.name = "f32"}).losses), 0.01) << family;
    for (const float l : got.logits) ASSERT_TRUE(std::isfinite(l)) << family;
  }
}

// Rows of a cache are whole on every rank, as without.
TEST(SequenceParallel, GenerationWithACacheHasTheSameBits) {
  const ModelDescription m = with_large_weights("gpt2");
  const auto generated = [&](bool split) {
    std::vector<float> all;
    launch(2, [&](RankContext& rank) {
      ArrangedModel arranged(rank, m, {.name = "tp 2", .ranks = 2, .tp = 2, .sequence_parallel = split}, 5);
      arranged.shard();
      arranged.model->set_training(false);
      nn::KvCache cache = arranged.model->make_cache(*rank.device, 12, DType::f32);
      for (const int64_t rows : {3, 1, 1}) {
        const auto logits = ops::to_floats(
            rank.device->compute(), (*arranged.model)(tokens(*rank.device, m, {1, rows}, 0, rows), &cache));
        if (rank.world->rank() == 0) all.insert(all.end(), logits.begin(), logits.end());
      }
    });
    return all;
  };
  EXPECT_EQ(generated(true), generated(false));
}

struct Traffic {
  CommCounts counts;        // of one step
  int64_t activations = 0;  // bytes, between forward and backward
};

Traffic one_step(const ModelDescription& m, int tp, bool split, bool recompute) {
  Traffic traffic;
  launch(tp, [&](RankContext& rank) {
    Arrangement a{.name = "", .ranks = tp, .tp = tp, .recompute = recompute, .sequence_parallel = split};
    a.strategy = Strategy::no_shard;
    ArrangedModel arranged(rank, m, a, 5);
    arranged.shard();
    nn::Tape tape;
    Stream& s = rank.device->compute();
    s.synchronize();
    const CommCounts before = rank.world->counts();
    const int64_t live = rank.device->allocator().live_bytes(MemoryClass::activation);
    const nn::CrossEntropy loss = (*arranged.model)(tape.input(tokens(*rank.device, m, {2, 32}, 0, 0)),
                                                    tokens(*rank.device, m, {2, 32}, 0, 1), 1.0f);
    s.synchronize();
    const int64_t kept = rank.device->allocator().live_bytes(MemoryClass::activation) - live;
    tape.backward(loss.objective);
    s.synchronize();
    if (rank.world->rank() != 0) return;
    traffic.activations = kept;
    for (auto& [verb, count] : rank.world->counts()) {
      const auto earlier = before.find(verb);
      traffic.counts[verb] = earlier == before.end() ? count
                                                     : CommCount{count.calls - earlier->second.calls,
                                                                 count.bytes - earlier->second.bytes};
    }
  });
  return traffic;
}

// An all-reduce has the bytes of a reduce-scatter and an all-gather. What comes on top are the gradients of
// norms.
TEST(SequenceParallel, MovesTheSameBytesAndKeepsLess) {
  ModelDescription m = with_large_weights("llama");
  m.layers = 3, m.dim = 64, m.hidden = 64, m.heads = m.kv_heads = 4, m.head_dim = 16, m.vocab = 64,
  m.positions = 32;
  m.qkv_bias = m.out_bias = m.mlp_bias = false;
  const int tp = 4;
  const int64_t rows = 64, norms = 2 * m.layers + 1;
  Traffic whole = one_step(m, tp, false, false), split = one_step(m, tp, true, false);
  // Two sums of each layer forward and backward, those of the embedding and of the head's gradient.
  const int64_t sums = 4 * m.layers + 2;
  EXPECT_EQ(whole.counts["all_reduce"].calls, sums);
  EXPECT_EQ(split.counts["reduce_scatter"].calls, sums);
  EXPECT_EQ(split.counts["all_gather_v"].calls, sums);
  EXPECT_EQ(split.counts["all_reduce"].calls, norms);
  const int64_t of_norms = norms * 2 * (tp - 1) * m.dim / tp * 4;
  EXPECT_EQ(split.counts["all_reduce"].bytes, of_norms);
  EXPECT_EQ(split.counts["reduce_scatter"].bytes + split.counts["all_gather_v"].bytes,
            whole.counts["all_reduce"].bytes);
  EXPECT_EQ(split.counts["all_gather"].bytes, whole.counts["all_gather"].bytes) << "of the loss";
  // Inputs of norms, the residual stream, are [rows, dim] without and a part of that with: two of each layer,
  // and the last one's. Inputs of products stay whole.
  const int64_t saved = norms * rows * m.dim * 4 * (tp - 1) / tp;
  EXPECT_GE(whole.activations - split.activations, saved);
  // All that a recomputed block keeps is its input.
  const int64_t recomputed = one_step(m, tp, false, true).activations,
                both = one_step(m, tp, true, true).activations;
  EXPECT_GE(recomputed - both, (m.layers + 1) * rows * m.dim * 4 * (tp - 1) / tp);
}

}  // namespace
}  // namespace sherd::test
