// Context parallelism: models on any arrangement of ranks train as without it.

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "arranged_training.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using nn::ContextParallel;
using nn::ModelDescription;
using nn::Var;
using Floats = std::vector<float>;

const char* const kContextFamilies[] = {
    "gpt2",        "llama",    "mistral",         "qwen2", "qwen3",       "qwen3_moe", "mixtral",
    "deepseek_v3", "olmo2",    "glm4_moe",        "olmo3", "gemma3_text", "gpt_oss",   "mistral_longrope",
    "qwen2_yarn",  "byte_gpt", "byte_gpt experts"};

/// Documents of 3 to 5 rows, other ones in each sequence; of the last sequence the last two rows are padding.
nn::Documents packed(Device& device, const Shape& shape, int64_t first) {
  std::vector<int32_t> starts, lengths;
  for (int64_t b = first; b < first + shape[0]; ++b) {
    for (int64_t i = 0; i < shape[1]; ++i) starts.push_back(static_cast<int32_t>(i - i % (3 + b % 3)));
    lengths.push_back(static_cast<int32_t>(shape[1] - (b % 4 == 3 ? 2 : 0)));
  }
  const auto ints = [&](const Shape& of, const std::vector<int32_t>& values) {
    const Tensor t = Tensor::empty(device, of, DType::i32, "test");
    ops::copy_from_host(device.compute(), t, values.data(), t.nbytes());
    return t;
  };
  return {ints(shape, starts), ints({shape[0]}, lengths)};
}

/// train() with a larger eps of AdamW, which is rate / eps = 10 times as sensitive to gradients: rounded to 1e-6 of a norm of
/// 0.5, which they are clipped at, they move a weight by 5e-6.
Outcome trained(const ModelDescription& m, const Arrangement& a, TrainingPlan plan = {}) {
  plan.eps = 1e-3;
  return train(m, a, plan);
}

/// expect_near(), and weights to 1e-5.
void expect_as_context_one(const Outcome& got, const Outcome& want, const std::string& what) {
  expect_near(got, want, what.c_str());
  for (const auto& [name, values] : want.weights) {
    const Floats& of = got.weights.at(name);
    ASSERT_EQ(of.size(), values.size()) << what << ", " << name;
    double most = 0;
    for (size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(double{of[i]} - double{values[i]}));
    EXPECT_LT(most, 1e-5) << what << ", " << name;
  }
}

TEST(ContextParallel, FamiliesTrainAsWithoutIt) {
  int i = 0;
  for (const char* family : kContextFamilies)
    for (const int context : {2, 3, 4}) {
      const ModelDescription m = fitting(family, context);
      TrainingPlan plan;
      if (!is_gpt(m) && context != 4) plan.documents = packed;
      const int data = context == 2 ? 2 : 1;
      const Outcome want = trained(m, {.name = "context 1", .ranks = data}, plan);
      const Arrangement a{.name = family,
                          .ranks = data * context,
                          .ep = m.mixture.experts > 0 && context == 2 ? 2 : 1,
                          .strategy = kAllStrategies[static_cast<size_t>(i++ % 4)],
                          .context = context};
      expect_as_context_one(trained(m, a, plan), want, fmt::format("{}, context {}", family, context));
    }
}

TEST(ContextParallel, BesideTensorParallelismAndExperts) {
  int i = 0;
  for (const char* family : kContextFamilies) {
    const ModelDescription m = fitting(family, 4);
    TrainingPlan plan;
    if (!is_gpt(m)) plan.documents = packed;
    const Outcome want = trained(m, {.name = "one"}, plan);
    Arrangement a{.name = family, .ranks = 4, .tp = 2, .ep = m.mixture.experts > 0 ? 2 : 1, .context = 2};
    a.strategy = kAllStrategies[static_cast<size_t>(i++ % 4)];
    a.sequence_parallel = !is_byte_gpt(m) && i % 2 == 0;
    a.recompute = i % 3 == 0;
    expect_as_context_one(trained(m, a, plan), want, family);
  }
}

// Sequences of other lengths than the ranks divide, down to a token a rank; one sequence for all of them.
TEST(ContextParallel, AnyNumberOfTokensTrainsAsOnOneRank) {
  for (const char* family : {"gpt2", "deepseek_v3"})
    for (const int context : {2, 3, 4})
      for (const int64_t seq : {4, 10}) {
        const ModelDescription m = fitting(family, context);
        for (const int64_t batch : {1, 3}) {
          const TrainingPlan plan{.batch = batch, .seq = seq, .steps = 2};
          expect_as_context_one(trained(m, {.name = "", .ranks = context, .context = context}, plan),
                                trained(m, {.name = ""}, plan),
                                fmt::format("{}, {} x {} tokens over {}", family, batch, seq, context));
        }
      }
}

TEST(ContextParallel, StrategiesLayoutsReplicasAndRecomputationHaveTheSameBits) {
  for (const char* family : {"llama", "qwen3_moe", "deepseek_v3", "gpt_oss", "byte_gpt"}) {
    const ModelDescription m = fitting(family, 2);
    TrainingPlan plan;
    if (!is_gpt(m)) plan.documents = packed;
    for (const Algorithm optimizer : {Algorithm::adamw, Algorithm::muon}) {
      plan.optimizer = optimizer;
      Arrangement a{.name = family, .ranks = 4, .ep = m.mixture.experts > 0 ? 2 : 1, .context = 2};
      a.strategy = Strategy::no_shard;
      const Outcome want = trained(m, a, plan);
      for (const Strategy s : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
        a.strategy = s;
        expect_same_bits(trained(m, a, plan), want, name_of(s));
        a.layout = s == Strategy::optim ? LayoutPolicy::even_rows : LayoutPolicy::whole_param;
        expect_same_bits(trained(m, a, plan), want, name_of(a.layout));
        a.layout = LayoutPolicy::ragged;
      }
      a.recompute = true;
      expect_same_bits(trained(m, a, plan), want, "recomputed");
      a.replicas = 2;
      expect_same_bits(trained(m, a, plan), want, "replicas");
      a.default_ep = true, a.ep = 1;
      if (m.mixture.experts == 0) expect_same_bits(trained(m, a, plan), want, "no expert ranks given");
    }
  }
}

TEST(ContextParallel, MaskedTargetsMultiTokenPredictionAndSelectionBias) {
  for (const char* family : {"deepseek_v3", "glm4_moe"}) {
    ModelDescription m = fitting(family, 4);
    m.mtp_layers = 1;
    m.mixture.bias_speed = 0.01;
    const TrainingPlan plan{.next_weight = 0.3f, .documents = packed, .ignored_every = 3};
    const Outcome want = trained(m, {.name = "one"}, plan);
    ASSERT_EQ(want.next_losses.size(), 3u);
    for (const Arrangement& a : {Arrangement{.name = "context 2", .ranks = 4, .ep = 2, .context = 2},
                                 {.name = "context 4", .ranks = 4, .recompute = true, .context = 4},
                                 {.name = "context 2 tp 2", .ranks = 4, .tp = 2, .ep = 4, .context = 2},
                                 {.name = "context 2 tp 2, rows split",
                                 .ranks = 4,
                                 .tp = 2,
                                 .recompute = true,
                                 .sequence_parallel = true,
                                 .context = 2},
                                 {.name = "context 2, replicas, no expert ranks given",
                                 .ranks = 4,
                                 .strategy = Strategy::optim,
                                 .replicas = 2,
                                 .default_ep = true,
                                 .context = 2}})
      expect_as_context_one(trained(m, a, plan), want, std::string(family) + ", " + a.name);
  }
}

// A selection bias counts choices: equal in bits, as long as no choice is a near tie.
TEST(ContextParallel, SelectionBiasesAreThoseOfOneRankInBits) {
  ModelDescription m = fitting("deepseek_v3", 4);
  m.mixture.bias_speed = 0.01, m.mixture.balance = 0;
  std::map<std::string, Floats> want;
  std::mutex mutex;
  for (const Arrangement& a : {Arrangement{.name = "one"},
                               {.name = "context 2", .ranks = 4, .ep = 2, .context = 2},
                               {.name = "context 4", .ranks = 4, .recompute = true, .context = 4},
                               {.name = "context 2 tp 2", .ranks = 4, .tp = 2, .context = 2}}) {
    TrainingPlan plan{.documents = packed};
    plan.look = [&](RankContext& rank, ArrangedModel& arranged, int) {
      const std::lock_guard lock(mutex);
      for (auto& [name, b] : arranged.model->named_buffers()) {
        const Floats values = ops::to_floats(rank.device->compute(), b.data());
        EXPECT_EQ(want.try_emplace(name, values).first->second, values) << a.name << ", " << name;
      }
    };
    trained(m, a, plan);
  }
  EXPECT_EQ(want.size(), 2u);
}

TEST(ContextParallel, QkClipTakesTheLargestLogitsOfAllRanks) {
  for (const char* family : {"llama", "deepseek_v3", "gpt_oss", "mixtral"}) {
    const ModelDescription m = fitting(family, 4);
    TrainingPlan plan{.documents = packed, .optimizer = Algorithm::muon, .tau = 0.05};
    const Outcome want = trained(m, {.name = "one", .logit_maxima = true}, plan);
    EXPECT_NE(trained(m, {.name = "without"}, plan).weights, want.weights)
        << family << ": nothing was clipped";
    for (const Arrangement& a :
         {Arrangement{.name = "context 2", .ranks = 4, .context = 2, .logit_maxima = true},
          {.name = "context 4", .ranks = 4, .recompute = true, .context = 4, .logit_maxima = true},
          {.name = "context 2 tp 2", .ranks = 4, .tp = 2, .context = 2, .logit_maxima = true}})
      expect_near(trained(m, a, plan), want, (std::string(family) + ", " + a.name).c_str());
  }
}

TEST(ContextParallel, AdaptersAndObjectivesOfTheCallersOwn) {
  const auto objective = [](nn::CausalModel& model, const Var& tokens, const Tensor& targets, float scale) {
    const Var losses = model(tokens, nn::log_probs(targets.flat()));
    return nn::CrossEntropy{nn::scale(nn::sum(losses), -scale), nn::scale(losses, -1).value()};
  };
  const auto of_rows = [](nn::CausalModel& model, const Var& tokens, const Tensor&, float scale) {
    const Var values = nn::sum(nn::tanh(model(tokens, nn::HiddenRows{})), {1});
    return nn::CrossEntropy{nn::scale(nn::sum(values * values), scale), values.value()};
  };
  const ModelDescription m = fitting("llama", 4);
  const auto freeze_head = [](nn::CausalModel& model) {
    for (auto& [name, p] : model.named_parameters())
      if (name == "lm_head.weight") Parameter(p).freeze();
  };
  for (const Arrangement& a :
       {Arrangement{.name = "context 2", .ranks = 4, .context = 2},
        {.name = "context 2, all rows at once", .ranks = 2, .logits_chunk = 0, .context = 2},
        {.name = "context 2 tp 2, rows split",
        .ranks = 4,
        .tp = 2,
        .sequence_parallel = true,
        .context = 2}}) {
    expect_as_context_one(trained(m, a, {.objective = objective}),
                          trained(m, {.name = ""}, {.objective = objective}), a.name);
    expect_as_context_one(trained(m, a, {.objective = of_rows, .prepare = freeze_head}),
                          trained(m, {.name = ""}, {.objective = of_rows, .prepare = freeze_head}), a.name);
    Arrangement adapted = a, one{.name = ""};
    adapted.lora = one.lora = {.rank = 2, .alpha = 4};
    expect_as_context_one(trained(m, adapted), trained(m, one), a.name);
  }
}

TEST(ContextParallel, Bf16StaysNearF32AndStrategiesAgreeInBits) {
  for (const char* family : {"gpt2", "qwen3_moe", "gpt_oss"}) {
    ModelDescription m = fitting(family, 2);
    m.init_std = 0.02f;
    Arrangement a{
        .name = "bf16", .ranks = 4, .strategy = Strategy::no_shard, .compute = DType::bf16, .context = 2};
    const Outcome want = trained(m, a);
    EXPECT_LT(distance(want.losses, trained(m, {.name = "f32"}).losses), 0.01) << family;
    a.strategy = Strategy::optim_grads_params;
    expect_same_bits(trained(m, a), want, family);
  }
}
// Checkpoints.

TEST(ContextCheckpoints, ResumeOnOtherRanksAndInBitsOnAsManyOfEachKind) {
  const TemporaryFolder folder;
  for (const char* family : {"llama", "deepseek_v3"}) {
    ModelDescription m = fitting(family, 4);
    if (routes_in_groups(m)) m.mixture.bias_speed = 0.01;
    const Arrangement two{.name = "context 2", .ranks = 4, .ep = m.mixture.experts > 0 ? 2 : 1, .context = 2};
    TrainingPlan plan{.steps = 4, .documents = packed, .optimizer = Algorithm::muon};
    const Outcome whole = trained(m, two, plan);
    const auto second_half = [](Outcome all) {
      for (auto* of : {&all.losses, &all.norms}) of->erase(of->begin(), of->begin() + 2);
      all.zeros.erase(all.zeros.begin(), all.zeros.begin() + 2);
      return all;
    };
    const Outcome want = second_half(whole);
    plan.steps = 2;
    const auto resumed = [&](const Arrangement& saved, const Arrangement& a) {
      TrainingPlan first = plan, second = plan;
      first.to = second.from = folder.path() / family;
      second.first_step = 2;
      trained(m, saved, first);
      return trained(m, a, second);
    };
    Arrangement other = two;
    other.strategy = Strategy::optim, other.layout = LayoutPolicy::whole_param, other.recompute = true;
    expect_same_bits(resumed(two, two), want, "the same");
    expect_same_bits(resumed(two, other), want, "another strategy and layout");
    expect_same_bits(resumed(other, two), want, "the other way round");
    other.replicas = 2;
    expect_same_bits(resumed(two, other), want, "replicas");
    for (const Arrangement& a : {Arrangement{.name = "one rank"},
                                 {.name = "tp 2", .ranks = 2, .tp = 2},
                                 {.name = "shard 4", .ranks = 4},
                                 {.name = "context 4", .ranks = 4, .context = 4},
                                 {.name = "context 2 tp 2", .ranks = 4, .tp = 2, .context = 2}}) {
      expect_near(resumed(two, a), want, (std::string("to ") + a.name).c_str());
      expect_near(resumed(a, two), want, (std::string("from ") + a.name).c_str());
    }
  }
}

// Random arrangements of everything at once.

struct Drawn {
  ModelDescription model;
  Arrangement arranged, beside;  // beside: without context, of as many data ranks
  TrainingPlan plan;
  std::string what;
};

Drawn draw(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto coin = [&] { return below(2) == 0; };
  Drawn d;
  const std::string family = kContextFamilies[below(std::size(kContextFamilies))];
  Arrangement& a = d.arranged;
  a = {.name = "drawn", .context = static_cast<int>(2 + below(3))};
  a.tp = a.context < 4 && coin() ? 2 : 1;
  const int data = a.context * a.tp <= 4 && coin() ? 2 : 1;
  a.ranks = data * a.tp * a.context;
  ModelDescription& m = d.model = fitting(family, a.context * a.tp);
  m.hidden = 48;
  // Key heads that tensor-parallel ranks do not divide: each of a rank's queries has its own.
  if (a.tp == 2 && !is_gpt(m) && !is_deepseek(m) && coin()) m.heads = 4 * 3 * a.context, m.kv_heads = 3;
  m.vocab = coin() ? m.vocab : 11;
  a.strategy = kAllStrategies[below(4)];
  a.layout = static_cast<LayoutPolicy>(below(3));
  a.replicas = data == 2 && coin() ? 2 : 1;
  a.recompute = coin();
  a.sequence_parallel = a.tp == 2 && !is_byte_gpt(m) && coin();
  a.logits_chunk = std::array{0, 1, 7, 1000}[below(4)];
  if (m.mixture.experts > 0) {
    a.default_ep = a.tp == 1 && coin();
    a.ep = !a.default_ep && m.mixture.experts % 2 == 0 && a.ranks % 2 == 0 && coin() ? 2 : 1;
    m.mixture.balance = coin() ? 0.05 : 0;
  }
  d.plan = {.batch = data * static_cast<int64_t>(1 + below(3)),
            .seq = a.context + static_cast<int64_t>(below(7)),
            .steps = 2};
  if (routes_in_groups(m)) {
    m.mixture.bias_speed = coin() ? 0.01 : 0;
    if (coin()) m.mtp_layers = 1, d.plan.next_weight = 0.3f;
  }
  if (!is_gpt(m) && m.mtp_layers == 0 && m.mixture.experts == 0 && coin()) a.lora = {.rank = 2, .alpha = 4};
  if (!is_gpt(m) && coin()) d.plan.documents = packed;
  d.plan.ignored_every = coin() ? 3 : 0;
  d.plan.optimizer = coin() ? Algorithm::muon : Algorithm::adamw;
  a.logit_maxima = !m.qk_norm && m.family != nn::ModelFamily::gpt2 && a.lora.rank == 0 && coin();
  d.plan.tau = 0.05;
  d.beside = a;
  d.beside.context = 1, d.beside.ranks = data * a.tp, d.beside.ep = 1;
  if (d.beside.ranks == 1) d.beside.replicas = 1;
  d.what = fmt::format(
      "SHERD_CONTEXT_SEED={}: {} of {} heads and {} key heads, vocab {}, mtp {}, balance {}, bias speed {}; "
      "{} ranks, context {}, "
      "tp {}, replicas {}, ep {}{}, {}, {}, recompute {}, rows split {}, chunk {}, lora {}; {} x {} tokens, "
      "{}, documents {}, "
      "ignored every {}, clip {}",
      seed, family, m.heads, m.kv_heads, m.vocab, m.mtp_layers, m.mixture.balance, m.mixture.bias_speed,
      a.ranks, a.context, a.tp, a.replicas, a.ep, a.default_ep ? " (default)" : "", name_of(a.strategy),
      name_of(a.layout), a.recompute, a.sequence_parallel, a.logits_chunk, a.lora.rank, d.plan.batch,
      d.plan.seq, d.plan.optimizer == Algorithm::muon ? "muon" : "adamw", d.plan.documents != nullptr,
      d.plan.ignored_every, a.logit_maxima);
  return d;
}

// SHERD_CONTEXT_CASES: their number; SHERD_CONTEXT_SEED: the first one's.
TEST(ContextSweep, DrawnArrangementsTrainAsWithoutContextAndInTheBitsOfAnotherStrategy) {
  const auto number = [](const char* name, unsigned standard) {
    const char* const text = std::getenv(name);
    return text == nullptr ? standard : static_cast<unsigned>(std::stoul(text));
  };
  const unsigned first = number("SHERD_CONTEXT_SEED", 1), cases = number("SHERD_CONTEXT_CASES", 16);
  for (unsigned seed = first; seed < first + cases; ++seed) {
    const Drawn d = draw(seed);
    SCOPED_TRACE(d.what);
    const Outcome got = trained(d.model, d.arranged, d.plan);
    expect_near(got, trained(d.model, d.beside, d.plan), "context 1");
    Arrangement other = d.arranged;
    other.strategy =
        d.arranged.strategy == Strategy::no_shard ? Strategy::optim_grads_params : Strategy::no_shard;
    other.layout = LayoutPolicy::ragged;
    expect_same_bits(trained(d.model, other, d.plan), got, "another strategy");
    if (HasFailure()) return;
  }
}
}  // namespace
}  // namespace sherd::test
