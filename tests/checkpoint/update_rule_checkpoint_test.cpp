// The state of a third optimizer is saved and restored like that of the others.

#include <memory>

#include <sherd/checkpoint/optimizer_steps.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr double kLr = 0.125;

/// A model of which SGD updates two parameters of three, on `ranks` ranks.
struct Trained : GivenGradients {
  Parameter matrix = add("matrix.weight", {9, 5}), gain = add("gain.weight", {3}),
            other = add("other.weight", {6, 2});
  std::optional<Optimizer> optimizer;

  Trained(RankContext& r, Strategy strategy) {
    const Routing routing = route(
        *this, {.optimizer = Sgd::kName, .rules = {{.pattern = "^other", .algorithm = Algorithm::adamw}}});
    fully_shard(*this, mesh_of(r), {.strategy = strategy});
    optimizer.emplace(*this, routing,
                      OptimizerOptions{.weight_decay = 0.25, .further = {Sgd::factory(0.75f)}});
  }
  void train_to(int end) {
    while (step < end) train(*optimizer, kLr);
  }
  /// All weights, whole.
  std::vector<float> weights(Stream& s) {
    std::vector<float> all;
    for (auto& [name, p] : named_parameters()) {
      const auto values =
          ops::to_floats(s, DTensor::from_layout(p.group().mesh(), p.group().sharded_over(),
                                                 std::make_shared<ShardLayout>(p.group().layout()),
                                                 p.index_in_group(), p.shard())
                                .full_tensor(s));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

// The ranks' gradients are equal and their numbers are powers of two, so that averages are exact.
TEST(OwnOptimizerCheckpoint, ResumesElsewhereWithTheSameBits) {
  const TemporaryFolder folder;
  std::vector<float> straight, resumed;
  test::launch(4, [&](RankContext& r) {
    Trained run(r, Strategy::optim_grads_params);
    run.train_to(3);
    CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer), {.folder = folder / "run"});
    saver.save({.step = 3});
    run.train_to(6);
    const auto all = run.weights(r.device->compute());
    if (r.world->rank() == 0) straight = all;
  });
  test::launch(2, [&](RankContext& r) {
    Trained run(r, Strategy::no_shard);
    resume(folder / "run", run, &*run.optimizer);
    EXPECT_EQ(run.optimizer->steps(), 3);
    run.step = 3;
    run.train_to(6);
    const auto all = run.weights(r.device->compute());
    if (r.world->rank() == 0) resumed = all;
  });
  EXPECT_EQ(straight, resumed);
}

// The optimizer of a state leaves no trace: two save, one resumes, and the reverse.
TEST(SeveralOptimizersCheckpoint, AreSavedTogetherAndComeBackInOneOrInMany) {
  for (const bool two_save : {false, true}) {
    const TemporaryFolder folder;
    std::vector<float> straight, resumed;
    const auto run = [&](RankContext& r, Strategy strategy, bool two, bool saves,
                         std::vector<float>& result) {
      GivenGradients model;
      model.add("matrix.weight", {9, 5});
      model.add("gain.weight", {3});
      const Routing routing = route(model);
      fully_shard(model, mesh_of(r), {.strategy = strategy});
      std::vector<std::unique_ptr<Optimizer>> owned;
      for (const char* part : {"matrix", "gain"})
        if (two) owned.push_back(std::make_unique<Optimizer>(model, routing.part(part), OptimizerOptions{}));
      if (!two) owned.push_back(std::make_unique<Optimizer>(model, routing, OptimizerOptions{}));
      std::vector<Optimizer*> optimizers;
      for (auto& optimizer : owned) optimizers.push_back(optimizer.get());
      const auto train_to = [&](int end) {
        for (; model.step < end; ++model.step) {
          run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
          for (Optimizer* optimizer : optimizers) optimizer->step(kLr);
        }
      };
      if (saves) {
        train_to(3);
        const std::vector<const Optimizer*> saved(optimizers.begin(), optimizers.end());
        CheckpointSaver saver(r.world, checkpoint_tensors(model, saved), {.folder = folder / "run"});
        saver.save({.step = 3});
      } else {
        resume(folder / "run", model, optimizers);
        for (Optimizer* optimizer : optimizers) EXPECT_EQ(optimizer->steps(), 3);
        model.step = 3;
      }
      train_to(6);
      std::vector<float> all;
      for (auto& [name, p] : model.named_parameters()) {
        const auto values = ops::to_floats(r.device->compute(), p.dtensor().full_tensor(r.device->compute()));
        all.insert(all.end(), values.begin(), values.end());
      }
      if (r.world->rank() == 0) result = all;
    };
    test::launch(4, [&](RankContext& r) { run(r, Strategy::optim_grads_params, two_save, true, straight); });
    test::launch(2, [&](RankContext& r) { run(r, Strategy::optim, !two_save, false, resumed); });
    EXPECT_EQ(straight, resumed);
  }
}

// The second one steps every other time.
TEST(SeveralOptimizersCheckpoint, EachResumesWithItsOwnCount) {
  const TemporaryFolder folder;
  test::launch(2, [&](RankContext& r) {
    const auto build = [&](GivenGradients& model) {
      model.add("matrix.weight", {9, 5});
      model.add("gain.weight", {3});
      const Routing routing = route(model);
      fully_shard(model, mesh_of(r));
      return routing;
    };
    GivenGradients model;
    const Routing routing = build(model);
    Optimizer matrix(model, routing.part("matrix"), {}), gain(model, routing.part("gain"), {});
    const std::vector<const Optimizer*> both = {&matrix, &gain};
    for (model.step = 0; model.step < 4; ++model.step) {
      run_pass(model, Tensor::empty(*r.device, {1}, DType::f32, "test"));
      matrix.step(kLr);
      model.step % 2 == 0 ? gain.step(kLr) : gain.zero_grad();
    }
    EXPECT_EQ(gain.steps(), 2);
    CheckpointSaver saver(r.world, checkpoint_tensors(model, both), {.folder = folder / "run"});
    saver.save({.step = 4});

    GivenGradients other;
    const Routing again = build(other);
    Optimizer first(other, again.part("matrix"), {}), second(other, again.part("gain"), {});
    resume(folder / "run", other, {&first, &second});
    EXPECT_EQ(first.steps(), 4);
    EXPECT_EQ(second.steps(), 2);
    TrainingState state{.step = 4};
    state.info["optimizer.steps"] = "no JSON";
    EXPECT_EQ(recorded_optimizer_steps(state, other, second), 4);
    state.info["optimizer.steps"] = R"({"another": 1, "gain.weight": "two"})";
    EXPECT_EQ(recorded_optimizer_steps(state, other, second), 4);
  });
}

// AdamW updates its parameters first.
class Failing : public Sgd {
 public:
  static UpdateRuleFactory factory(const bool& fails) {
    UpdateRuleFactory f = Sgd::factory(0.75f);
    f.make = [&fails](Device& device, std::vector<UpdateItem> items) {
      return std::make_unique<Failing>(device, std::move(items), fails);
    };
    return f;
  }
  Failing(Device& device, std::vector<UpdateItem> items, const bool& fails)
      : Sgd(device, std::move(items), 0.75f), fails_(fails) {}
  void step(Stream& compute, double lr, const Tensor& skip) override {
    if (fails_) throw OutOfMemory("no memory for the second rule");
    Sgd::step(compute, lr, skip);
  }

 private:
  const bool& fails_;
};

TEST(HalfAnUpdate, IsNeitherTrainedNorSavedUntilACheckpointIsLoaded) {
  const TemporaryFolder folder;
  test::launch(2, [&](RankContext& r) {
    bool fails = false;
    const auto text_of = [](const std::function<void()>& call) -> std::string {
      return message_of<InvalidArgument>([&] { call(); });
    };
    Trained straight(r, Strategy::optim_grads_params);
    straight.train_to(3);
    GivenGradients model;
    for (auto& [name, p] : straight.named_parameters()) model.add(name, p.global_shape());
    const Routing routing = route(
        model, {.optimizer = Sgd::kName, .rules = {{.pattern = "^other", .algorithm = Algorithm::adamw}}});
    fully_shard(model, mesh_of(r));
    Optimizer optimizer(model, routing, {.weight_decay = 0.25, .further = {Failing::factory(fails)}});
    CheckpointSaver saver(r.world, checkpoint_tensors(model, &optimizer), {.folder = folder / "run"});
    while (model.step < 2) model.train(optimizer, kLr);
    saver.save({.step = 2});
    fails = true;
    EXPECT_THROW(model.train(optimizer, kLr), OutOfMemory);
    fails = false;
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"forward", [&] { model.train(optimizer, kLr); }},
        {"step", [&] { optimizer.step(kLr); }},
        {"save", [&] { saver.save({.step = 3}); }},
        {"export", [&] { export_weights(model, folder / "weights"); }},
        {"zero_grad", [&] { zero_grad(model); }},
        {"forward after a reset",
         [&] {
           reset_step(model);
           model.train(optimizer, kLr);
         }},
    };
    for (auto& [what, call] : calls)
      EXPECT_THAT(text_of(call), ::testing::HasSubstr("an exception has ended an update of the weights"))
          << what;
    resume(folder / "run", model, &optimizer);
    EXPECT_EQ(optimizer.steps(), 2);
    model.step = 2;
    model.train(optimizer, kLr);
    saver.save({.step = 3});
    resume(folder / "run", straight, &*straight.optimizer);
    model.step = straight.step = 3;
    model.train(optimizer, kLr);
    straight.train_to(4);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(ops::to_floats(r.device->compute(), model.named_parameters()[i].second.shard()),
                ops::to_floats(r.device->compute(), straight.named_parameters()[i].second.shard()));
  });
}

TEST(OwnOptimizerCheckpoint, StateThatItLacksIsNamed) {
  const TemporaryFolder folder;
  test::launch(1, [&](RankContext& r) {
    GivenGradients all;
    all.add("matrix.weight", {9, 5});
    const Routing routing = route(all, {.optimizer = Algorithm::adamw});
    fully_shard(all, mesh_of(r));
    Optimizer optimizer(all, routing, {});
    CheckpointSaver saver(r.world, checkpoint_tensors(all, &optimizer), {.folder = folder / "run"});
    saver.save({.step = 1});

    GivenGradients other;
    other.add("matrix.weight", {9, 5});
    const Routing to_sgd = route(other, {.optimizer = Sgd::kName});
    fully_shard(other, mesh_of(r));
    Optimizer sgd(other, to_sgd, {.further = {Sgd::factory(0.5f)}});
    EXPECT_THAT(message_of<InvalidArgument>([&] { resume(folder / "run", other, &sgd); }),
                ::testing::AllOf(::testing::HasSubstr("optim.state.matrix.weight.momentum"),
                                 ::testing::HasSubstr("routing has changed")));
  });
}

}  // namespace
}  // namespace sherd::test
