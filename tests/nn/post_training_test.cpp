// Preference and reinforcement training of a causal model beside plain PyTorch (tests/golden/make_post_training.py): 20 steps on
// any arrangement of ranks, and resumed on another.
#include <fstream>

#include "arranged_training.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using nn::Var;

const json& golden_post_training() {
  static const json all =
      json::parse(std::ifstream(std::filesystem::path(GOLDEN_FOLDER) / "post_training.json"));
  return all;
}

/// Log-probabilities [sequences, seq] of the targets; 0 without one.
Var row_log_probs(nn::CausalModel& model, nn::Tape& tape, const Tensor& tokens, const Tensor& targets) {
  return nn::reshape(model(tape.input(tokens), nn::log_probs(targets)), tokens.shape());
}

/// One rank's training: the policy, and the same weights as they were, sharded beside it.
struct PostTraining {
  PostTraining(RankContext& rank, const Arrangement& a)
      : device(*rank.device),
        ranks(a.data_ranks()),
        golden("llama"),
        policy(rank, golden.description, a),
        reference(rank, golden.description, a) {
    routing = route(*policy.model, {.optimizer = Algorithm::adamw});
    for (ArrangedModel* m : {&policy, &reference}) {
      m->shard();
      golden.load(*m->model, golden.description);
    }
    const json& file = golden_post_training();
    OptimizerOptions options;
    options.adamw.beta2 = file.at("beta2");
    options.adamw.eps = file.at("eps");
    optimizer.emplace(*policy.model, routing, options);
    lr = file.at("lr");
  }
  nn::CausalModel& model() { return *policy.model; }
  /// This rank's part of the sequences in a list of lists.
  Tensor own(const json& lists) {
    const size_t rows = lists.size() / static_cast<size_t>(ranks);
    return GoldenFolder::tokens(device, lists, rows * static_cast<size_t>(policy.data_rank), rows, 0,
                                lists[0].size());
  }
  Tensor floats(const std::vector<float>& values, const Shape& shape) {
    const Tensor t = Tensor::empty(device, shape, DType::f32, "data");
    ops::copy_from_host(device.compute(), t, values.data(), t.nbytes());
    return t;
  }
  double update(const Var& loss) {
    tape.backward(loss);
    optimizer->step(lr);
    return read_loss(model(), loss.value());
  }

  Device& device;
  int ranks;
  GoldenFolder golden;
  ArrangedModel policy, reference;
  Routing routing;
  std::optional<Optimizer> optimizer;
  double lr = 0;
  nn::Tape tape;
};

std::vector<double> dpo_step(PostTraining& t, size_t step) {
  const json &all = golden_post_training().at("dpo"), &batch = all.at("batches").at(step);
  Var ratio[2];
  for (size_t side = 0; side < 2; ++side) {
    const Tensor tokens = t.own(batch.at("tokens")[side]), targets = t.own(batch.at("targets")[side]);
    Var fixed;
    {
      const nn::NoGrad off(t.tape);
      fixed = row_log_probs(*t.reference.model, t.tape, tokens, targets);
    }
    ratio[side] = nn::sum(row_log_probs(t.model(), t.tape, tokens, targets) - fixed, {1});
  }
  return {t.update(nn::mean(nn::softplus((ratio[1] - ratio[0]) * all.at("beta").get<double>())))};
}

std::vector<double> grpo_step(PostTraining& t, size_t step) {
  const json &all = golden_post_training().at("grpo"), &batch = all.at("batches").at(step);
  const size_t group = all.at("group"), sequences = batch.at("rewards").size(),
               rows = sequences / static_cast<size_t>(t.ranks);
  std::vector<float> advantages, weights;
  for (size_t i = rows * static_cast<size_t>(t.policy.data_rank); advantages.size() < rows; ++i) {
    double mean = 0, squares = 0, count = 0;
    const auto reward = [&](size_t j) { return batch.at("rewards")[i / group * group + j].get<double>(); };
    for (size_t j = 0; j < group; ++j) mean += reward(j) / static_cast<double>(group);
    for (size_t j = 0; j < group; ++j) squares += (reward(j) - mean) * (reward(j) - mean);
    advantages.push_back(static_cast<float>((reward(i % group) - mean) /
                                            (std::sqrt(squares / static_cast<double>(group - 1)) + 1e-4)));
    for (const json& target : batch.at("targets")[i]) count += target.get<int>() >= 0;
    for (const json& target : batch.at("targets")[i])
      weights.push_back(target.get<int>() >= 0 ? static_cast<float>(1 / (count * static_cast<double>(rows)))
                                               : 0);
  }
  const Tensor tokens = t.own(batch.at("tokens")), targets = t.own(batch.at("targets"));
  const Tensor a = t.floats(advantages, {tokens.size(0), 1}), w = t.floats(weights, tokens.shape());
  Var before, fixed;
  {
    const nn::NoGrad off(t.tape);
    before = row_log_probs(t.model(), t.tape, tokens, targets);
    fixed = row_log_probs(*t.reference.model, t.tape, tokens, targets);
  }
  const double clip = all.at("clip"), beta = all.at("kl");
  std::vector<double> losses;
  for (int i = 0; i < 2; ++i) {
    const Var now = row_log_probs(t.model(), t.tape, tokens, targets);
    const Var ratio = nn::exp(now - before), bounded = nn::minimum(nn::maximum(ratio, 1 - clip), 1 + clip);
    const Var difference = fixed - now, kl = nn::exp(difference) - difference - 1.0;
    losses.push_back(t.update(nn::sum((kl * beta - nn::minimum(ratio * a, bounded * a)) * w)));
  }
  return losses;
}

using Step = std::vector<double> (*)(PostTraining&, size_t);

/// Losses of steps [begin, end), with state from and to checkpoints.
std::vector<double> losses_of(const Arrangement& a, Step step, size_t begin, size_t end,
                              const std::filesystem::path& from = {}, const std::filesystem::path& to = {}) {
  std::vector<double> all;
  std::mutex mutex;
  launch(a.ranks, [&](RankContext& rank) {
    PostTraining t(rank, a);
    if (!from.empty()) resume(from, t.model(), &*t.optimizer);
    std::vector<double> losses;
    for (size_t i = begin; i < end; ++i)
      for (const double loss : step(t, i)) losses.push_back(loss);
    if (!to.empty()) {
      CheckpointSaver saver(rank.world, checkpoint_tensors(t.model(), &*t.optimizer),
                            {.folder = to, .overwrite = true});
      saver.save({.step = t.optimizer->steps(), .sequences = 0});
    }
    const std::lock_guard lock(mutex);
    if (all.empty()) all = losses;
    EXPECT_EQ(losses, all) << "ranks differ";
  });
  return all;
}

void expect_golden(const std::vector<double>& got, const char* name, size_t first, const std::string& what) {
  const json& want = golden_post_training().at(name).at("losses");
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want.at(first + i).get<double>(), 1e-5) << what << ", update " << first + i;
}

const Arrangement kPostTrainingRanks[] = {
    {.name = "one rank"},
    {.name = "2 ranks zero3", .ranks = 2},
    {.name = "tp 2 x zero3", .ranks = 4, .tp = 2},
    {.name = "tp 2, rows split", .ranks = 2, .tp = 2, .sequence_parallel = true},
    {.name = "recomputed, all rows at once", .ranks = 2, .recompute = true, .logits_chunk = 0}};

TEST(PostTraining, DpoIsThatOfPyTorchOnAnyRanks) {
  for (const Arrangement& a : kPostTrainingRanks)
    expect_golden(losses_of(a, dpo_step, 0, 20), "dpo", 0, a.name);
}

TEST(PostTraining, GrpoIsThatOfPyTorchOnAnyRanks) {
  for (const Arrangement& a : kPostTrainingRanks)
    expect_golden(losses_of(a, grpo_step, 0, 20), "grpo", 0, a.name);
}

TEST(PostTraining, StrategiesHaveTheSameBits) {
  for (const Step step : {dpo_step, grpo_step}) {
    Arrangement a{.name = "", .ranks = 2, .strategy = Strategy::no_shard};
    const std::vector<double> want = losses_of(a, step, 0, 6);
    for (const Strategy s : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
      a.strategy = s;
      EXPECT_EQ(losses_of(a, step, 0, 6), want) << name_of(s);
    }
    a.replicas = 2;
    EXPECT_EQ(losses_of(a, step, 0, 6), want) << "replicas";
  }
}

TEST(PostTraining, ResumesOnOtherRanks) {
  const TemporaryFolder folder;
  for (const auto& [name, step] :
       std::initializer_list<std::pair<const char*, Step>>{{"dpo", dpo_step}, {"grpo", grpo_step}}) {
    const size_t updates = std::string(name) == "grpo" ? 2 : 1;
    expect_golden(losses_of({.name = "", .ranks = 2}, step, 0, 9, {}, folder.path() / name), name, 0,
                  "first");
    for (const Arrangement& a : kPostTrainingRanks)
      expect_golden(losses_of(a, step, 9, 20, folder.path() / name), name, 9 * updates, a.name);
  }
}

}  // namespace
}  // namespace sherd::test
