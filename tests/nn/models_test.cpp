// Small models of all families beside what PyTorch makes of the same folders (tests/golden/make_models.py).

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "golden_model.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

const Arrangement kDense[] = {
    {.name = "one rank", .strategy = Strategy::no_shard},
    {.name = "4 ranks zero3", .ranks = 4},
    {.name = "TP 2 x DP 2", .ranks = 4, .tp = 2},
    {.name = "TP 2, rows split", .ranks = 2, .tp = 2, .sequence_parallel = true},
    {.name = "TP 2 x DP 2, rows split", .ranks = 4, .tp = 2, .sequence_parallel = true}};
const Arrangement kExperts[] = {
    {.name = "EP 2 x TP 2", .ranks = 4, .tp = 2, .ep = 2},
    {.name = "EP 2 over a TP 2", .ranks = 2, .tp = 2, .ep = 2},
    {.name = "EP 2 x TP 2, rows split", .ranks = 4, .tp = 2, .ep = 2, .sequence_parallel = true}};

std::vector<Arrangement> arrangements(const nn::ModelDescription& m) {
  std::vector<Arrangement> all(std::begin(kDense), std::end(kDense));
  if (m.mixture.experts > 0) all.insert(all.end(), std::begin(kExperts), std::end(kExperts));
  return all;
}

// Runs on every rank; what rank 0 returns.
template <class F>
auto on_rank_0(const Arrangement& a, F f) {
  decltype(f(std::declval<RankContext&>())) result;
  std::mutex mutex;
  launch(a.ranks, [&](RankContext& rank) {
    auto mine = f(rank);
    const std::lock_guard lock(mutex);
    if (rank.world->rank() == 0) result = std::move(mine);
  });
  return result;
}

struct Steps {
  std::vector<double> losses;
  std::vector<float> logits_before, logits_after, logits_folded;
};

std::vector<float> logits(ArrangedModel& arranged, RankContext& rank, const GoldenFolder& golden) {
  const auto& ids = golden.expected.at("tokens");
  arranged.model->set_training(false);
  const Tensor all =
      (*arranged.model)(GoldenFolder::tokens(*rank.device, ids, 0, ids.size(), 0, ids[0].size()));
  arranged.model->set_training(true);
  return ops::to_floats(rank.device->compute(), all);
}

Steps train_golden(const GoldenFolder& golden, const Arrangement& a, Algorithm algorithm, size_t steps,
                   double eps = 1e-8) {
  return on_rank_0(a, [&](RankContext& rank) {
    ArrangedModel arranged(rank, golden.description, a);
    nn::CausalModel& model = *arranged.model;
    const Routing routing = route(model, {.optimizer = algorithm});
    arranged.shard();
    golden.load(model, golden.description);
    Steps result;
    result.logits_before = logits(arranged, rank, golden);
    OptimizerOptions options;
    options.weight_decay = golden.expected.at("weight_decay");
    options.adamw.eps = eps;
    Optimizer optimizer(model, routing, options);
    nn::Tape tape;
    for (size_t step = 0; step < steps; ++step) {
      const auto& window = golden.expected.at("windows").at(step);
      const size_t rows = window.size() / static_cast<size_t>(a.data_ranks()), seq = window[0].size() - 1;
      const size_t first = static_cast<size_t>(arranged.data_rank) * rows;
      const Tensor in = GoldenFolder::tokens(*rank.device, window, first, rows, 0, seq);
      const Tensor targets = GoldenFolder::tokens(*rank.device, window, first, rows, 1, seq);
      const nn::CrossEntropy loss = model(tape.input(in), targets, 1.0f / static_cast<float>(rows * seq));
      result.losses.push_back(read_loss(model, loss.losses));
      tape.backward(loss.objective);
      optimizer.step(golden.expected.at("lr"));
    }
    if (steps > 0) result.logits_after = logits(arranged, rank, golden);
    if (a.lora.rank > 0) {
      model.fold_adapters();
      result.logits_folded = logits(arranged, rank, golden);
    }
    return result;
  });
}

// The largest difference, relative to the largest value.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double most = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(double{got[i]} - double{want[i]});
    most = std::isfinite(d) ? std::max(most, d) : INFINITY;
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return most / largest;
}

double distance(const std::vector<double>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double most = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(got[i] - want[i]);
    most = std::isfinite(d) ? std::max(most, d) : INFINITY;
  }
  return most;
}

class Families : public testing::TestWithParam<const char*> {
 protected:
  GoldenFolder golden{GetParam()};
};

TEST_P(Families, LogitsAreThoseOfTransformers) {
  for (const Arrangement& a : arrangements(golden.description))
    EXPECT_LT(distance(train_golden(golden, a, Algorithm::adamw, 0).logits_before, golden.values("logits")),
              1e-5)
        << a.name;
}

// The figures are f64's; f32 rounds sums of at most 80 terms, which 20 steps pass on: 1e-5 leaves a margin of
// some 10, and a wrong beta, decay or angle is beyond it in the third step (tests/golden/README.md).
TEST_P(Families, AdamWTrainsAsInPyTorch) {
  for (const Arrangement& a : arrangements(golden.description)) {
    const Steps got = train_golden(golden, a, Algorithm::adamw, 20);
    EXPECT_LT(distance(got.losses, golden.expected.at("adamw_losses").get<std::vector<double>>()), 1e-5)
        << a.name;
    EXPECT_LT(distance(got.logits_after, golden.values("logits_after_adamw")), 2e-4) << a.name;
  }
}

// Losses of one row whose documents begin at `begins`: as documents of a row, or each as a row of its own, as long as that
// row: the length chooses the frequencies of longrope.
std::vector<float> document_losses(const GoldenFolder& golden, const Arrangement& a,
                                   const std::vector<size_t>& begins, bool in_a_row) {
  const auto& ids = golden.expected.at("tokens");
  const size_t seq = ids[0].size() - 1;
  return on_rank_0(a, [&](RankContext& rank) {
    ArrangedModel arranged(rank, golden.description, a);
    arranged.shard();
    golden.load(*arranged.model, golden.description);
    arranged.model->set_training(false);
    Device& device = *rank.device;
    const auto losses = [&](size_t begin, size_t count, const Tensor& starts) {
      nlohmann::json row = nlohmann::json::array();
      for (size_t t = 0; t <= seq; ++t) row.push_back(t <= count ? ids[0][begin + t] : ids[0][0]);
      const nlohmann::json rows = nlohmann::json::array({row});
      const Tensor targets = GoldenFolder::tokens(device, rows, 0, 1, 1, seq);
      const nn::Var in(GoldenFolder::tokens(device, rows, 0, 1, 0, seq));
      std::vector<float> all =
          ops::to_floats(device.compute(), (*arranged.model)(in, targets, 1.0f, starts).losses);
      all.resize(count);
      return all;
    };
    std::vector<float> all;
    if (in_a_row) {
      nlohmann::json starts = nlohmann::json::array();
      for (size_t t = 0, d = 0; t < seq; ++t) {
        if (d + 1 < begins.size() && t == begins[d + 1]) ++d;
        starts.push_back(begins[d]);
      }
      return losses(0, seq, GoldenFolder::tokens(device, nlohmann::json::array({starts}), 0, 1, 0, seq));
    }
    for (size_t d = 0; d < begins.size(); ++d) {
      const size_t end = d + 1 < begins.size() ? begins[d + 1] : seq;
      const std::vector<float> one = losses(begins[d], end - begins[d], {});
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  });
}

// Angles of positions below 12 are rounded to f32, by at most 2^-21: scores, and losses with them, change by some of that.
TEST_P(Families, DocumentsInARowHaveTheLossesOfRowsOfTheirOwn) {
  const std::vector<size_t> begins{0, 1, 5, 8};
  if (golden.description.family == nn::ModelFamily::gpt2) {
    EXPECT_THROW(document_losses(golden, kDense[0], begins, true), NotSupported);
    return;
  }
  for (const Arrangement& a : arrangements(golden.description))
    EXPECT_LT(distance(document_losses(golden, a, begins, true), document_losses(golden, a, begins, false)),
              2e-5)
        << a.name;
}

// PEFT's figures are in tests/interop/sft_training.py; here every family, on every arrangement.
TEST_P(Families, AdaptersTrainAlikeOnAllRanksAndFoldIntoTheWeights) {
  Arrangement alone = kDense[0];
  alone.lora = {.rank = 3, .alpha = 6, .targets = R"(!\.experts\.)"};
  if (golden.description.family == nn::ModelFamily::gpt2) {
    EXPECT_THROW(train_golden(golden, alone, Algorithm::adamw, 0), InvalidArgument);
    return;
  }
  if (golden.description.mixture.experts > 0) {
    Arrangement stacks = alone;
    stacks.lora.targets = "_proj";
    EXPECT_THAT(message_of<InvalidArgument>([&] { train_golden(golden, stacks, Algorithm::adamw, 0); }),
                testing::HasSubstr(".experts.gate_proj', a stack of experts, which takes no adapters"));
  }
  constexpr double kEps = 1e-4;  // as in arranged_training.h
  const Steps want = train_golden(golden, alone, Algorithm::adamw, 5, kEps);
  EXPECT_GT(distance(want.logits_after, want.logits_before), 1e-3);
  for (Arrangement a : arrangements(golden.description)) {
    a.lora = alone.lora;
    const Steps got = train_golden(golden, a, Algorithm::adamw, 5, kEps);
    EXPECT_LT(distance(got.losses, want.losses), 1e-5) << a.name;
    EXPECT_LT(distance(got.logits_after, want.logits_after), 2e-4) << a.name;
    EXPECT_LT(distance(got.logits_folded, got.logits_after), 1e-5) << a.name;
  }
}

TEST_P(Families, MuonTrainsAsOnWholeMatrices) {
  for (const Arrangement& a : arrangements(golden.description))
    EXPECT_LT(distance(train_golden(golden, a, Algorithm::muon, 10).losses,
                       golden.expected.at("muon_losses").get<std::vector<double>>()),
              1e-5)
        << a.name;
}

// Every element of every tensor in the file is one of a parameter or a buffer.
TEST_P(Families, ParametersAreTheTensorsOfTheFile) {
  CheckpointReader reader = CheckpointReader::open(golden.path / "model.safetensors");
  std::map<std::string, int64_t> left;
  for (const CheckpointTensor& t : reader.manifest().tensors) left[t.name] = numel_of(t.shape);
  const StoredNames stored = stored_names(golden.description);
  const auto model = causal_model(golden.description);
  for (auto& [name, p] : model->named_parameters()) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      left[name] -= p.numel();
      continue;
    }
    int64_t covered = 0;
    for (const StoredPiece& piece : found->second) {
      EXPECT_EQ(numel_of(piece.in_parameter.size), numel_of(piece.in_tensor.size));
      covered += numel_of(piece.in_parameter.size);
      left[piece.tensor] -= numel_of(piece.in_tensor.size);
    }
    EXPECT_EQ(covered, p.numel()) << name;
  }
  for (auto& [name, b] : model->named_buffers()) left[name] -= b.numel();
  for (auto& [name, count] : left) EXPECT_EQ(count, 0) << name;
  for (auto& [name, pieces] : stored) {
    bool known = false;
    for (auto& [parameter, p] : model->named_parameters()) known = known || parameter == name;
    EXPECT_TRUE(known) << name;
  }
}

// Hidden matrices alone go to Muon, and nothing is left in doubt.
TEST_P(Families, RolesAreKnownByName) {
  const auto model = causal_model(golden.description);
  const Routing routing = route(*model);
  EXPECT_TRUE(routing.warnings.empty()) << routing.format();
  for (const Route& r : routing.routes) {
    const bool layered = r.name.find(".layers.") != r.name.npos || r.name.find(".h.") != r.name.npos;
    const bool hidden = layered && r.param.shape().size() >= 2 && !r.name.ends_with("mlp.gate.weight") &&
                        !r.name.ends_with("mlp.router.weight") && !r.name.ends_with(".bias");
    EXPECT_EQ(r.algorithm == Algorithm::muon, hidden) << r.name << ": " << r.reason;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Families, testing::ValuesIn(kFamilies),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace sherd::test
