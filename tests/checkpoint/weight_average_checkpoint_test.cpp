// Averages of weights are saved and resharded as state is, and start from the weights of checkpoints without them.

#include <sherd/optim/averaged.h>

#include <map>
#include <optional>
#include <string>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

struct AverageForms {
  double decay = 0.75;
  DType dtype = DType::f32;
  Master master = Master::f32;
  Place place = Place::device;
};

struct AveragedRun : GivenGradients {
  Parameter matrix = add("matrix.weight", {9, 5}), stack = add("stack.weight", {3, 4, 6}),
            gain = add("gain.weight", {7});
  std::optional<Optimizer> optimizer;

  AveragedRun(RankContext& r, const Algorithm& algorithm, const AverageForms& forms, Strategy strategy,
              LayoutPolicy layout = LayoutPolicy::ragged, bool frozen_gain = false, uint64_t seed = 5) {
    if (frozen_gain) gain.freeze();
    const Routing routing = route(*this, {.rules = {{.pattern = "matrix|stack", .algorithm = algorithm}}});
    fully_shard(*this, mesh_of(r),
                {.strategy = strategy,
                 .compute_dtype = DType::bf16,
                 .master = forms.master,
                 .master_place = forms.place,
                 .layout = layout},
                {.seed = seed});
    OptimizerOptions o{.weight_decay = 0.1,
                       .state_place = forms.place,
                       .window_bytes = 1024,
                       .ema_decay = forms.decay,
                       .ema_dtype = forms.dtype};
    if (algorithm == NorMuon::kName) o.further.push_back(NorMuon::factory());
    if (algorithm == Soap::kName) o.further.push_back(Soap::factory());
    optimizer.emplace(*this, routing, o);
  }
  void train_to(int end) {
    while (step < end) train(*optimizer, 0.03);
  }
  StateDict dict() { return state_dict(*this, &*optimizer, DictKind::on_all); }
};

using Bytes = std::map<std::string, std::vector<std::byte>>;
Bytes bytes_of(const StateDict& dict) {
  Bytes all;
  for (const auto* part : {&dict.model, &dict.optimizer})
    for (const auto& [name, t] : *part) all[name] = t.data;
  return all;
}

void save(AveragedRun& run, RankContext& r, const std::string& folder) {
  CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer), {.folder = folder});
  saver.save({.step = run.step});
  saver.wait();
}

// All ranks have equal gradients, whose average over a power of two is exact.
TEST(WeightAverageCheckpoint, ResumesElsewhereWithTheSameBits) {
  size_t turn = 0;
  for (const Algorithm& algorithm : {Algorithm::adamw, Algorithm::muon, NorMuon::kName, Soap::kName})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Master master : {Master::f32, Master::bf16, Master::split}) {
        const TemporaryFolder folder;
        AverageForms forms{.dtype = dtype, .master = master};
        Bytes want, got;
        forms.place = turn / 2 % 3 == 0 ? Place::device : Place::host;
        launch(1 << (turn + turn / 3) % 3, [&](RankContext& r) {
          AveragedRun run(r, algorithm, forms, kEveryStrategy[turn % 4]);
          run.train_to(3);
          save(run, r, folder / "run");
          run.train_to(6);
          Bytes all = bytes_of(run.dict());
          if (r.world->rank() == 0) want = std::move(all);
        });
        forms.place = turn / 2 % 3 == 1 ? Place::device : Place::host;
        launch(4 >> turn / 3 % 3, [&](RankContext& r) {
          AveragedRun run(r, algorithm, forms, kEveryStrategy[(turn + 1) % 4],
                          turn % 2 == 0 ? LayoutPolicy::even_rows : LayoutPolicy::whole_param, false, 6);
          const Resumed resumed = resume(folder / "run", run, &*run.optimizer);
          EXPECT_TRUE(resumed.report.averages_restarted.empty());
          run.step = 3;
          run.train_to(6);
          Bytes all = bytes_of(run.dict());
          if (r.world->rank() == 0) got = std::move(all);
        });
        EXPECT_TRUE(want.contains("optim.state.gain.weight.ema"));
        EXPECT_EQ(want.at("optim.state.matrix.weight.ema").size(), 45 * (dtype == DType::f32 ? 4u : 2u));
        for (const auto& [name, bytes] : want) EXPECT_TRUE(got[name] == bytes) << name;
        EXPECT_EQ(got.size(), want.size())
            << name_of(algorithm) << " " << name_of(dtype) << " " << name_of(master);
        ++turn;
      }
}

/// The averages of a dict equal its weights.
void expect_fresh(const StateDict& dict) {
  int averages = 0;
  for (const auto& [name, t] : dict.optimizer) {
    if (!name.ends_with(".ema")) continue;
    ++averages;
    const std::string param = name.substr(12, name.size() - 12 - 4);
    EXPECT_TRUE(t.data == dict.model.at(param).data) << name;
  }
  EXPECT_EQ(averages, 3);
}

TEST(WeightAverageCheckpoint, StartsFromTheWeightsThatAreLoadedWithoutAverages) {
  const TemporaryFolder folder;
  const AverageForms none{.decay = 0};
  launch(2, [&](RankContext& r) {
    AveragedRun run(r, Algorithm::muon, none, Strategy::optim_grads_params);
    run.train_to(3);
    save(run, r, folder / "run");
    export_weights(run, folder / "w.safetensors");
    const StateDict dict = run.dict();

    AveragedRun resumed(r, Algorithm::muon, {}, Strategy::optim_grads, LayoutPolicy::ragged, false, 7);
    resumed.train_to(2);
    const LoadReport report = resume(folder / "run", resumed, &*resumed.optimizer).report;
    EXPECT_EQ(report.averages_restarted.size(), 3u);
    EXPECT_EQ(report.averages_restarted.front(), "optim.state.matrix.weight.ema");
    EXPECT_TRUE(report.started_anew.empty());
    expect_fresh(resumed.dict());
    EXPECT_EQ(resumed.dict().optimizer.at("optim.state.matrix.weight.momentum_buffer").data,
              dict.optimizer.at("optim.state.matrix.weight.momentum_buffer").data);
    resumed.step = 3;
    resumed.train_to(4);

    AveragedRun imported(r, Algorithm::adamw, {}, Strategy::optim, LayoutPolicy::ragged, false, 8);
    imported.train_to(1);
    import_weights(imported, folder / "w.safetensors");
    expect_fresh(imported.dict());
    imported.train_to(2);
    for (const DictKind kind : {DictKind::on_all, DictKind::on_first}) {
      AveragedRun from_dict(r, Algorithm::muon, {}, Strategy::optim_grads, LayoutPolicy::ragged, false, 9);
      from_dict.train_to(1);
      const bool empty = kind == DictKind::on_first && r.world->rank() != 0;
      EXPECT_EQ(load_state_dict(from_dict, &*from_dict.optimizer, empty ? StateDict{} : dict, kind)
                    .averages_restarted.size(),
                3u);
      expect_fresh(from_dict.dict());
    }
  });
}

TEST(WeightAverageCheckpoint, ARunWithoutAveragesIsRefusedOrLeavesThemOut) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& r) {
    AveragedRun run(r, Algorithm::adamw, {}, Strategy::optim_grads_params);
    run.train_to(3);
    save(run, r, folder / "run");
    AveragedRun other(r, Algorithm::adamw, {.decay = 0}, Strategy::optim);
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { resume(folder / "run", other, &*other.optimizer); }),
        AllOf(HasSubstr("optimizer state unknown to the run"), HasSubstr("OptimizerOptions::ema_decay"),
              HasSubstr("LoadOptions::allow_new_state"), Not(HasSubstr("route"))));
    const LoadReport report =
        resume(folder / "run", other, &*other.optimizer, {.allow_new_state = true}).report;
    EXPECT_EQ(report.left_out.size(), 3u);
    EXPECT_TRUE(report.averages_restarted.empty());
    // Another dtype is another form of state.
    AveragedRun narrow(r, Algorithm::adamw, {.dtype = DType::bf16}, Strategy::optim);
    EXPECT_THAT(message_of<InvalidArgument>([&] { resume(folder / "run", narrow, &*narrow.optimizer); }),
                HasSubstr("OptimizerOptions::ema_dtype"));
    resume(folder / "run", narrow, &*narrow.optimizer, {.convert_forms = true});
  });
}

TEST(WeightAverageCheckpoint, AveragesAreLoadedInThePlaceOfWeights) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& r) {
    AveragedRun run(r, Algorithm::muon, {}, Strategy::optim_grads_params, LayoutPolicy::ragged, true);
    run.train_to(3);
    save(run, r, folder / "run");
    const StateDict want = run.dict();
    AveragedRun other(r, Algorithm::muon, {.decay = 0}, Strategy::optim, LayoutPolicy::whole_param, false, 9);
    resume(folder / "run", other, nullptr, {.optimizer = false, .averages = true});
    const StateDict got = other.dict();
    for (const char* name : {"matrix.weight", "stack.weight"})
      EXPECT_EQ(got.model.at(name).data, want.optimizer.at(fmt::format("optim.state.{}.ema", name)).data);
    EXPECT_EQ(got.model.at("gain.weight").data, want.model.at("gain.weight").data) << "frozen: without one";
    other.optimizer->set_steps(4);
    save(other, r, folder / "other");
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  resume(folder / "other", other, nullptr, {.optimizer = false, .averages = true});
                }),
                HasSubstr("has no averages of weights"));
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { resume(folder / "run", other, &*other.optimizer, {.averages = true}); }),
                HasSubstr("LoadOptions::optimizer = false"));
  });
}

}  // namespace
}  // namespace sherd::test
