// A model's state as host tensors: whole on one rank, whole on all, in pieces; and back, on other ranks, too.

#include <bit>
#include <mutex>
#include <optional>

#include <sherd/checkpoint/state_dict.h>

#include "support/filled_state.h"
#include "support/message_of.h"
#include "support/pieces.h"

namespace sherd::test {
namespace {

constexpr DictKind kKinds[] = {DictKind::on_first, DictKind::on_all, DictKind::sharded};

// Awkward parameters with buffers beside them and both optimizers.
struct Model : Awkward {
  Model() {
    table = buffer("table", {3, 2}, DType::f32, normal(1));
    count = buffer("count", {}, DType::i64, constant(5));
    buffer("cache", {4}, DType::f32, constant(1), false);
    buffer("none", {0}, DType::bf16, constant(1));
  }
  Buffer table, count;
};

struct Rank {
  Rank(RankContext& r, const FullyShardOptions& options = {}, int replicas = 1)
      : stream(r.device->compute()) {
    const Routing routing = route(model, {.optimizer = Algorithm::muon});
    model.wrap(DeviceMesh(r.world, {{"replicate", replicas}, {"shard", r.world->size() / replicas}}),
               options);
    optimizer.emplace(model, routing, OptimizerOptions{});
  }
  void fill(uint64_t salt) {
    fill_state(model, &*optimizer, salt);
    optimizer->set_steps(static_cast<int64_t>(salt));
    ops::fill(stream, model.table.data(), static_cast<double>(salt));
    const int64_t n = static_cast<int64_t>(salt) << 40;
    ops::copy_from_host(stream, model.count.data(), &n, 8);
  }
  std::vector<std::string> wrong(uint64_t salt) {
    std::vector<std::string> names = wrong_state(model, &*optimizer, salt);
    if (optimizer->steps() != static_cast<int64_t>(salt)) names.emplace_back("steps");
    for (const float v : ops::to_floats(stream, model.table.data()))
      if (v != static_cast<float>(salt)) names.emplace_back("table");
    int64_t n = 0;
    ops::copy_to_host(stream, &n, model.count.data());
    if (n != static_cast<int64_t>(salt) << 40) names.emplace_back("count");
    return names;
  }
  Stream& stream;
  Model model;
  std::optional<Optimizer> optimizer;
};

bool same(const HostTensor& a, const HostTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.boxes == b.boxes && a.data == b.data;
}

// The full dict of 3 ranks.
StateDict full_dict(uint64_t salt) {
  StateDict full;
  launch(3, [&](RankContext& r) {
    Rank rank(r);
    rank.fill(salt);
    StateDict dict = state_dict(rank.model, &*rank.optimizer, DictKind::on_first);
    if (r.world->rank() == 0) {
      full = std::move(dict);
    } else {
      EXPECT_THAT(dict.model, IsEmpty());
      EXPECT_THAT(dict.optimizer, IsEmpty());
    }
  });
  return full;
}

TEST(StateDicts, AFullOneHasEveryTensorWholeWithItsBits) {
  const StateDict dict = full_dict(11);
  EXPECT_EQ(dict.steps, 11);
  EXPECT_THAT(dict.model, SizeIs(14 + 3)) << "no buffer that is not persistent";
  EXPECT_FALSE(dict.model.contains("cache"));
  for (auto& [name, t] : dict.model) {
    EXPECT_TRUE(t.whole()) << name;
    if (t.dtype != DType::f32 || name == "table") continue;
    for (size_t i = 0; i < t.values<float>().size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(t.values<float>()[i]), bits_of(name, static_cast<int64_t>(i), 11))
          << name;
  }
  const HostTensor& momentum = dict.optimizer.at("optim.state.wide.weight.momentum_buffer");
  EXPECT_EQ(momentum.shape, (Shape{3, 19}));
  for (size_t i = 0; i < momentum.values<float>().size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(momentum.values<float>()[i]),
              bits_of("wide.weight/momentum_buffer", static_cast<int64_t>(i), 11));
  EXPECT_EQ(dict.model.at("scalar").shape, Shape{1});
  EXPECT_EQ(dict.model.at("count").values<int64_t>()[0], int64_t{11} << 40);
  EXPECT_THAT(dict.model.at("none").data, IsEmpty());
  EXPECT_THROW(dict.model.at("count").values<float>(), ShapeMismatch);
}

TEST(StateDicts, WholeOnAllRanksIsTheSameOnEach) {
  const StateDict want = full_dict(11);
  launch(4, [&](RankContext& r) {
    Rank rank(r, {.strategy = Strategy::optim}, 2);
    rank.fill(11);
    const StateDict dict = state_dict(rank.model, &*rank.optimizer, DictKind::on_all);
    ASSERT_EQ(dict.model.size(), want.model.size());
    ASSERT_EQ(dict.optimizer.size(), want.optimizer.size());
    for (auto& [name, t] : want.model) EXPECT_TRUE(same(dict.model.at(name), t)) << name;
    for (auto& [name, t] : want.optimizer) {
      if (!name.ends_with(".step")) {  // counters are numbered, not named
        EXPECT_TRUE(same(dict.optimizer.at(name), t)) << name;
      }
    }
  });
}

TEST(StateDicts, EachKindComesBackWhereItWasTaken) {
  for (const int ranks : {1, 3, 4})
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params})
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows})
        launch(ranks, [&](RankContext& r) {
          Rank rank(r, {.strategy = strategy, .layout = layout});
          for (const DictKind kind : kKinds) {
            rank.fill(21);
            const StateDict dict = state_dict(rank.model, &*rank.optimizer, kind);
            rank.fill(22);
            EXPECT_THAT(rank.wrong(21), ::testing::Not(IsEmpty()));
            const LoadReport report = load_state_dict(rank.model, &*rank.optimizer, dict, kind);
            EXPECT_THAT(rank.wrong(21), IsEmpty()) << ranks << " ranks, kind " << static_cast<int>(kind);
            EXPECT_EQ(report.training.step, 21);
            EXPECT_THAT(report.missing, IsEmpty());
          }
        });
}

TEST(StateDicts, AFullOneGoesToAnyRanksStrategyAndLayout) {
  const StateDict full = full_dict(31);
  for (const int ranks : {1, 2, 5})
    for (const Strategy strategy : {Strategy::optim, Strategy::optim_grads_params})
      launch(ranks, [&](RankContext& r) {
        Rank rank(r, {.strategy = strategy, .layout = LayoutPolicy::whole_param});
        load_state_dict(rank.model, &*rank.optimizer, r.world->rank() == 0 ? full : StateDict{},
                        DictKind::on_first);
        EXPECT_THAT(rank.wrong(31), IsEmpty());
        rank.fill(32);
        load_state_dict(rank.model, &*rank.optimizer, full, DictKind::on_all);
        EXPECT_THAT(rank.wrong(31), IsEmpty());
      });
}

TEST(StateDicts, TensorAndExpertParallelPiecesAreOneTensor) {
  const Spread spreads[] = {
      {}, {.tp = 2}, {.shard = 3, .tp = 2, .experts = 2}, {.replicas = 2, .tp = 2, .experts = 4}};
  std::optional<StateDict> want;
  for (const Spread& spread : spreads) {
    StateDict got;
    launch(spread.ranks(), [&](RankContext& r) {
      Pieces model(r, spread);
      model.wrap({}, {.seed = 3});
      StateDict dict = state_dict(model, nullptr, DictKind::on_first);
      if (r.world->rank() == 0) got = std::move(dict);
    });
    if (!want) want = got;
    for (auto& [name, t] : want->model) EXPECT_TRUE(same(got.model.at(name), t)) << name;
    launch(spread.ranks(), [&](RankContext& r) {  // and back into other values
      Pieces model(r, spread);
      model.wrap({}, {.seed = 4});
      for (const DictKind kind : {DictKind::on_first, DictKind::on_all}) {
        load_state_dict(model, nullptr, *want, kind, {.optimizer = false});
        const StateDict dict = state_dict(model, nullptr, DictKind::on_all);
        for (auto& [name, t] : want->model) EXPECT_TRUE(same(dict.model.at(name), t)) << name;
      }
    });
  }
}

TEST(StateDicts, MissingAndUnexpectedNamesAreAllNamedOnEveryRankOrAllowed) {
  StateDict full = full_dict(41);
  for (const char* gone : {"vector", "table", "inner0.gain", "inner1.gain", "scalar", "one", "wide.weight"})
    full.model.erase(gone);
  const std::vector<float> two = {1, 2};
  for (const char* more : {"extra", "extra:\n1"}) full.model[more] = HostTensor::of<float>({2}, two);
  full.model["inner0.small.weight"].shape = {4};
  full.optimizer.erase("optim.state.wide.weight.momentum_buffer");
  std::mutex mutex;
  std::vector<std::string> texts;
  launch(3, [&](RankContext& r) {
    Rank rank(r);
    const StateDict mine = r.world->rank() == 0 ? full : StateDict{};
    rank.fill(42);
    try {
      load_state_dict(rank.model, &*rank.optimizer, mine, DictKind::on_first);
      ADD_FAILURE() << "it fits";
    } catch (const InvalidArgument& e) {
      const std::lock_guard lock(mutex);
      texts.emplace_back(e.what());
    }
    EXPECT_THAT(rank.wrong(42), IsEmpty()) << "nothing has changed";
  });
  EXPECT_THAT(texts, SizeIs(3));
  for (const char* part : {"the state dict", "vector", "table", "inner0.gain", "inner1.gain", "scalar", "one",
                           "unknown to the run: extra", "inner0.small.weight' has shape [4]"})
    EXPECT_THAT(texts, Each(HasSubstr(part)));
  // State of a model that does not fit is not named: it follows from the model.
  EXPECT_THAT(texts, Each(::testing::Not(HasSubstr("optim.state"))));

  full.model["inner0.small.weight"].shape = {2, 2};
  for (const DictKind kind : {DictKind::on_first, DictKind::on_all})
    launch(3, [&](RankContext& r) {
      Rank rank(r);
      rank.fill(42);
      const LoadOptions lax{.allow_new_state = true, .allow_missing = true, .allow_unexpected = true};
      const StateDict mine = kind == DictKind::on_all || r.world->rank() == 0 ? full : StateDict{};
      const LoadReport report = load_state_dict(rank.model, &*rank.optimizer, mine, kind, lax);
      EXPECT_THAT(report.missing, SizeIs(7));
      EXPECT_THAT(report.unexpected, ElementsAre("extra", "extra:\n1"));
      EXPECT_THAT(report.started_anew, ElementsAre("optim.state.wide.weight.momentum_buffer"));
      for (const float v : ops::to_floats(rank.stream, rank.model.table.data())) EXPECT_EQ(v, 42) << "stays";
      for (const char* name : {"vector", "wide.weight"})
        EXPECT_THAT(report.missing, ::testing::Contains(std::string(name)));
    });
}

TEST(StateDicts, DamagedOnesAndPiecesOfOtherLayoutsAreRefused) {
  const StateDict full = full_dict(51);
  const auto refused = [&](int ranks, DictKind kind, const std::function<void(int, StateDict&)>& change) {
    std::mutex mutex;
    std::vector<std::string> texts;
    launch(ranks, [&](RankContext& r) {
      Rank rank(r);
      StateDict dict = full;
      change(r.world->rank(), dict);
      try {
        load_state_dict(rank.model, &*rank.optimizer, dict, kind);
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        texts.emplace_back(e.what());
      }
    });
    EXPECT_THAT(texts, SizeIs(ranks));
    return texts;
  };
  EXPECT_THAT(refused(2, DictKind::sharded, [](int, auto&) {}),
              Each(HasSubstr("other pieces than this rank holds")));
  EXPECT_THAT(refused(2, DictKind::on_all, [](int, StateDict& d) { d.model["vector"].data.pop_back(); }),
              Each(HasSubstr("'vector' has boxes of 7 elements and 27 bytes")));
  EXPECT_THAT(refused(2, DictKind::on_first,
                      [](int, StateDict& d) {
                        d.model["vector"].boxes = {{{0}, {6}}};
                        d.model["vector"].data.resize(24);
                      }),
              Each(HasSubstr("'vector' is not whole")));
  EXPECT_THAT(refused(2, DictKind::on_all, [](int, StateDict& d) { d.model["count"].dtype = DType::f64; }),
              Each(HasSubstr("'count' is f64 where the run's buffer is i64")));
  EXPECT_THAT(refused(3, DictKind::on_all, [](int rank, StateDict& d) { d.steps = rank == 2 ? 1 : 2; }),
              Each(AllOf(HasSubstr("dicts of different steps"), HasSubstr("rank 2"))));
  EXPECT_THROW(HostTensor::of<float>({3}, std::vector<float>{1, 2}), ShapeMismatch);
}

TEST(StateDicts, NarrowerFloatsAreWidened) {
  launch(2, [](RankContext& r) {
    Rank rank(r);
    rank.fill(61);
    StateDict dict = state_dict(rank.model, nullptr, DictKind::on_all);
    const std::vector<bf16> narrow(7, bf16(1.5f));
    const std::vector<f16> half(1, f16(0.25f));
    dict.model["vector"] = HostTensor::of<bf16>({7}, narrow);
    dict.model["one"] = HostTensor::of<f16>({1}, half);
    for (const DictKind kind : {DictKind::on_first, DictKind::on_all}) {
      load_state_dict(rank.model, nullptr, dict, kind, {.optimizer = false});
      const StateDict back = state_dict(rank.model, nullptr, DictKind::on_all);
      EXPECT_THAT(back.model.at("vector").values<float>(), Each(1.5f));
      EXPECT_THAT(back.model.at("one").values<float>(), ElementsAre(0.25f));
    }
  });
}

TEST(StateDicts, DifferentRequestsOfRanksAreReported) {
  std::mutex mutex;
  int told = 0;
  launch(2, [&](RankContext& r) {
    Rank rank(r);
    const DictKind kind = r.world->rank() == 0 ? DictKind::on_all : DictKind::sharded;
    EXPECT_THROW((void)state_dict(rank.model, nullptr, kind), ShapeMismatch);
    EXPECT_THROW(load_state_dict(rank.model, nullptr, {}, kind, {.optimizer = false}), ShapeMismatch);
    const std::lock_guard lock(mutex);
    ++told;
  });
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace sherd::test
