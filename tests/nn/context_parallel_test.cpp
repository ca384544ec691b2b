// Context parallelism: models on any arrangement of ranks, traffic and memory, refusals, and a module of the caller's own.

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "arranged_training.h"
#include "loose_parameters.h"
#include "nets.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using nn::ContextParallel;
using nn::ModelDescription;
using nn::SequenceSlice;
using nn::Var;
using Floats = std::vector<float>;

constexpr Strategy kAllStrategies[] = {Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                       Strategy::optim_grads_params};

const char* const kContextFamilies[] = {
    "gpt2",        "llama",    "mistral",         "qwen2", "qwen3",       "qwen3_moe", "mixtral",
    "deepseek_v3", "olmo2",    "glm4_moe",        "olmo3", "gemma3_text", "gpt_oss",   "mistral_longrope",
    "qwen2_yarn",  "byte_gpt", "byte_gpt experts"};

/// A family's tiny model with as many heads as so many ranks divide.
ModelDescription fitting(const std::string& family, int ranks_of_heads) {
  ModelDescription m = family.starts_with("byte_gpt") ? byte_gpt(family.ends_with("experts") ? 4 : 0)
                                                      : GoldenFolder(family).description;
  m.init_std = 0.2f;
  if (m.kv_heads % ranks_of_heads != 0) {
    const int64_t groups = m.heads / m.kv_heads;
    m.kv_heads = ranks_of_heads;
    m.heads = groups * m.kv_heads;
  }
  if (m.mixture.experts > 0) m.mixture.balance = 0.05;
  return m;
}

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

// Traffic and memory.

/// Counts of forward and backward, and live and peak bytes.
struct StepCounts {
  std::vector<CommCounts> counts;        // by rank
  std::map<std::string, int64_t> state;  // rank 0's live bytes of a class before the step
  int64_t peak = 0;  // largest bytes of activations of any rank, beyond those before the step
};

StepCounts count_a_step(const ModelDescription& m, const Arrangement& a, const Shape& shape) {
  StepCounts all;
  all.counts.resize(static_cast<size_t>(a.ranks));
  std::mutex mutex;
  launch(a.ranks, [&](RankContext& rank) {
    ArrangedModel arranged(rank, m, a, 5);
    const Routing routing = route(*arranged.model, {.optimizer = Algorithm::adamw});
    arranged.shard();
    Optimizer optimizer(*arranged.model, routing, {});
    nn::Tape tape;
    Stream& s = rank.device->compute();
    const auto step = [&] {
      const Tensor in = tokens(*rank.device, m, shape, 0, 0), targets = tokens(*rank.device, m, shape, 0, 1);
      tape.backward((*arranged.model)(tape.input(in), targets, 1.0f).objective);
      s.synchronize();
    };
    step();
    optimizer.step(0.01);
    s.synchronize();
    Allocator& allocator = rank.device->allocator();
    const CommCounts before = rank.world->counts();
    std::map<std::string, int64_t> state;
    for (const MemoryClass c : {MemoryClass::parameter, MemoryClass::master, MemoryClass::optimizer})
      state[std::string(name_of(c))] = allocator.live_bytes(c);
    const int64_t live = allocator.live_bytes(MemoryClass::activation);
    allocator.reset_peak();
    step();
    const std::lock_guard lock(mutex);
    all.peak = std::max(all.peak, allocator.peak_bytes(MemoryClass::activation) - live);
    if (rank.world->rank() == 0) all.state = state;
    for (auto& [verb, count] : rank.world->counts()) {
      const auto earlier = before.find(verb);
      const CommCount old = earlier == before.end() ? CommCount{} : earlier->second;
      if (count.calls > old.calls)
        all.counts[static_cast<size_t>(rank.world->rank())][verb] = {count.calls - old.calls,
                                                                     count.bytes - old.bytes};
    }
    optimizer.step(0.01);
  });
  return all;
}

// Two exchanges of each attention and pass, and nothing else beside what as many data-parallel ranks send.
TEST(ContextTraffic, IsThatOfTheFormula) {
  for (const char* family : {"llama", "gpt2", "gpt_oss", "deepseek_v3"})
    for (const int context : {2, 3, 4})
      for (const bool recompute : {false, true})
        for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
          const int64_t batch = 2, seq = context == 3 ? 10 : 12;
          ModelDescription m = fitting(family, context);
          // Experts exchange rows with all_to_all_v, too, where several ranks have parts of them.
          if (m.mixture.experts > 0) m.mixture.balance = 0;
          Arrangement a{.name = family,
                        .ranks = context,
                        .strategy = strategy,
                        .recompute = recompute,
                        .default_ep = true,
                        .context = context};
          const StepCounts sliced = count_a_step(m, a, {batch, seq});
          a.context = 1;
          const StepCounts data = count_a_step(m, a, {batch, seq});
          const LatentHeads latent{.nope = m.latent.nope, .rope = m.latent.rope, .value = m.latent.value};
          const int64_t width = is_deepseek(m) ? latent.width() : m.head_dim, heads = m.heads / context,
                        keys = m.kv_heads / context;
          const int64_t passes = recompute ? 3 : 2;
          for (int r = 0; r < context; ++r) {
            SCOPED_TRACE(fmt::format("{}, rank {} of {}, recompute {}, {}", family, r, context, recompute,
                                     name_of(strategy)));
            CommCounts got = sliced.counts[static_cast<size_t>(r)];
            const int64_t here = batch * ((seq * (r + 1) + context - 1) / context -
                                          (seq * r + context - 1) / context),
                          others = batch * seq - here;
            // Towards heads a rank receives its heads of the others' rows, towards rows the others' heads of its own.
            const int64_t heads_in = others * (heads + 2 * keys) * width,
                          rows_out = here * (context - 1) * heads * width;
            const int64_t back_in = here * (context - 1) * (heads + 2 * keys) * width,
                          back_out = others * heads * width;
            EXPECT_EQ(got["all_to_all_v"].calls, 2 * passes * m.layers);
            EXPECT_EQ(got["all_to_all_v"].bytes,
                      4 * m.layers * ((passes - 1) * (heads_in + rows_out) + back_in + back_out));
            if (context != 3) {
              EXPECT_EQ(got["all_to_all_v"].bytes, 4 * m.layers * passes * here * (context - 1) *
                                                       (2 * m.heads + 2 * m.kv_heads) / context * width)
                  << "the header's formula, of equal slices";
            }
            got.erase("all_to_all_v");
            const auto pairs = [](const CommCounts& counts) {
              std::map<std::string, std::pair<int64_t, int64_t>> of;
              for (auto& [verb, count] : counts) of[verb] = {count.calls, count.bytes};
              return of;
            };
            EXPECT_EQ(pairs(got), pairs(data.counts[static_cast<size_t>(r)]));
          }
        }
}

// Weights and states are those of as many data-parallel ranks; activations stay as large where sequence and ranks grow together.
TEST(ContextMemory, WeightsAndStatesAreDividedAndActivationsFlat) {
  ModelDescription m = fitting("llama", 4);
  m.positions = 1024, m.dim = 64, m.hidden = 128;
  for (const Strategy strategy : kAllStrategies) {
    const Arrangement data{.name = "", .ranks = 4, .strategy = strategy};
    Arrangement both = data;
    both.context = 2;
    EXPECT_EQ(count_a_step(m, both, {1, 8}).state, count_a_step(m, data, {1, 8}).state) << name_of(strategy);
  }
  const auto peak = [&](int context) {
    return static_cast<double>(
        count_a_step(
            m, {.name = "", .ranks = context, .recompute = true, .logits_chunk = 32, .context = context},
            {1, 128 * context})
            .peak);
  };
  const double one = peak(1), two = peak(2), four = peak(4);
  EXPECT_NEAR(four, two, 0.03 * two);
  // Slices have attention's result in both forms: by heads for its own backward, by rows for the product behind it.
  EXPECT_LE(two, 1.03 * one + static_cast<double>(128 * m.heads * m.head_dim * 4));
}

// Refusals.

/// The one line that ends the launch.
std::string refusal_of(int ranks, const std::function<void(RankContext&)>& body) {
  const std::string line = message_of<Error>([&] { launch(ranks, [&](RankContext& rank) { body(rank); }); });
  EXPECT_EQ(line.find('\n'), line.npos) << line;
  return line;
}

TEST(ContextRefusals, ADimensionWithoutAName) {
  const auto shard_over = [](const char* name, const std::string& context_dim, int size) {
    return refusal_of(2 * size, [&, size](RankContext& rank) {
      const auto model = causal_model(GoldenFolder("llama").description);
      fully_shard(*model, DeviceMesh(rank.world, {{"shard", 2}, {name, size}}), {.context_dim = context_dim});
    });
  };
  EXPECT_THAT(shard_over("cp", "context", 2),
              AllOf(HasSubstr("mesh dimension 'cp' of 2 ranks is neither the shard dimension 'shard', the "
                              "context dimension 'context' nor"),
                    HasSubstr("context_dim if its ranks share sequences")));
  EXPECT_THAT(shard_over("context", "cp", 2), HasSubstr("mesh dimension 'context' of 2 ranks"));
  EXPECT_THAT(shard_over("tp", "tp", 1),
              HasSubstr("context_dim 'tp' is its shard, replicate or tensor dimension, too; name another"));
}

TEST(ContextRefusals, HeadsThatTheRanksDoNotDivideAndShortSequences) {
  const auto message = [](const ModelDescription& m, int context, int tp, int64_t seq) {
    return refusal_of(context * tp, [&](RankContext& rank) {
      ArrangedModel arranged(rank, m, {.name = "", .ranks = context * tp, .tp = tp, .context = context});
      arranged.shard();
      nn::Tape tape;
      (*arranged.model)(tape.input(tokens(*rank.device, m, {2, seq}, 0, 0)),
                        tokens(*rank.device, m, {2, seq}, 0, 1), 1.0f);
    });
  };
  const auto of = [](const char* family) { return GoldenFolder(family).description; };
  EXPECT_THAT(message(of("llama"), 4, 1, 8),
              HasSubstr("llama: 4 context-parallel ranks do not divide the 4 heads and 2 key heads of "
                        "tensor-parallel rank 0"));
  EXPECT_THAT(message(of("llama"), 2, 2, 8),
              HasSubstr("2 context-parallel ranks do not divide the 2 heads and 1 key heads"));
  EXPECT_THAT(message(of("gpt2"), 3, 1, 8), HasSubstr("do not divide the 4 heads and 4 key heads"));
  EXPECT_THAT(message(of("gpt2"), 4, 1, 3),
              HasSubstr("sequences of 3 positions over 4 context-parallel ranks: each needs at least one"));
  EXPECT_THAT(message(of("deepseek_v3"), 2, 1, 1),
              HasSubstr("sequences of 1 positions over 2 context-parallel ranks"));
}

TEST(ContextRefusals, CachesAndGeneration) {
  const auto message =
      [](const std::function<void(RankContext&, nn::CausalModel&, const ModelDescription&)>& body) {
        return refusal_of(2, [&](RankContext& rank) {
          const ModelDescription m = fitting("llama", 2);
          ArrangedModel arranged(rank, m, {.name = "", .ranks = 2, .context = 2});
          arranged.shard();
          arranged.model->set_training(false);
          body(rank, *arranged.model, m);
        });
      };
  EXPECT_THAT(message([](RankContext& rank, nn::CausalModel& model, const ModelDescription& m) {
                nn::KvCache cache = model.make_cache(*rank.device, 12, DType::f32);
                model(tokens(*rank.device, m, {1, 4}, 0, 0), &cache);
              }),
              HasSubstr("2 ranks share its sequences, and caches keep whole ones; generate with a model "
                        "without CausalModelOptions::context"));
}

TEST(ContextRefusals, AFunctionOfTheLogitsOfWholeSequences) {
  EXPECT_THAT(refusal_of(2,
                         [](RankContext& rank) {
                           const ModelDescription m = fitting("llama", 2);
                           ArrangedModel arranged(rank, m, {.name = "", .ranks = 2, .context = 2});
                           arranged.shard();
                           nn::Tape tape;
                           (*arranged.model)(tape.input(tokens(*rank.device, m, {2, 8}, 0, 0)),
                                             nn::log_probs(tokens(*rank.device, m, {2, 8}, 0, 1)));
                         }),
              AllOf(HasSubstr("16"), HasSubstr("8")));
}

TEST(ContextRefusals, AModelBuiltWithoutTheRanks) {
  EXPECT_THAT(refusal_of(2,
                         [](RankContext& rank) {
                           const ModelDescription m = GoldenFolder("llama").description;
                           const auto model = causal_model(m);
                           fully_shard(*model, DeviceMesh(rank.world, {{"shard", 1}, {"context", 2}}), {});
                           nn::Tape tape;
                           (*model)(tape.input(tokens(*rank.device, m, {2, 8}, 0, 0)),
                                    tokens(*rank.device, m, {2, 8}, 0, 1), 1.0f);
                         }),
              AllOf(HasSubstr("attention: 2 ranks share the sequences of unit"),
                    HasSubstr("AttentionOptions::context has 1; set it")));
}

// A module of the caller's own.

struct OwnDecoder : nn::Module<OwnDecoder> {
  static constexpr int64_t kHeads = 4, kKeys = 2, kWidth = 6, kDim = 16, kVocab = 37;
  Parameter table = param("table.weight", {kVocab, kDim}, normal(0.5f));
  Parameter norm = param("norm.weight", {kDim}, constant(1));
  Parameter qkv = param("qkv.weight", {(kHeads + 2 * kKeys) * kWidth, kDim}, normal(0.3f));
  Parameter out = param("out.weight", {kDim, kHeads* kWidth}, normal(0.3f));
  Parameter head = param("head.weight", {kVocab, kDim}, normal(0.3f));
  ContextParallel ranks{};
  bool attends = true, gives_slice = true;

  /// tokens and targets i32 [batch, seq], whole.
  nn::CrossEntropy forward(const Var& tokens, const Tensor& targets, float scale) {
    const int64_t batch = tokens.shape()[0];
    const SequenceSlice slice{ranks, tokens.shape()[1]};
    const Var own = tokens.tape() != nullptr ? tokens.tape()->input(ranks.slice(tokens.value()))
                                             : Var(ranks.slice(tokens.value()));
    const Var x = nn::embedding(own, table);
    Var packed = nn::linear(nn::rms_norm(x, norm), qkv);
    Var seen;
    if (attends) {
      const Tensor frequencies = nn::rope_table(tokens.device(), ops::rope_frequencies(kWidth));
      packed = nn::rope(
          std::move(packed), frequencies,
          {.batch = batch, .heads = kHeads + kKeys, .first_position = slice.first(), .head_dim = kWidth});
      seen = nn::attention(packed, {.batch = batch,
                                    .heads = kHeads,
                                    .kv_heads = kKeys,
                                    .context = gives_slice ? slice : SequenceSlice{}});
    } else {
      seen = nn::slice(nn::gelu(packed), 1, 0, kHeads * kWidth);
    }
    const Var y = nn::add_linear(x, seen, out);
    return nn::cross_entropy(nn::linear(y, head), ranks.slice(targets), scale);
  }
};

struct OwnTraining {
  std::vector<double> losses, evaluated;
  std::map<std::string, Floats> weights;
};

/// Steps with masked targets: the objective is the sum over all learned targets, divided by their number.
OwnTraining train_own(int shard, int context, Strategy strategy = Strategy::optim_grads_params,
                      const std::function<void(OwnDecoder&, int64_t step)>& change = {}) {
  constexpr int64_t kBatch = 4, kSeq = 7;
  OwnTraining all;
  std::mutex mutex;
  launch(shard * context, [&](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"shard", shard}, {"context", context}});
    OwnDecoder model;
    model.ranks = ContextParallel::of(mesh);
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, mesh, {.strategy = strategy}, {.seed = 3});
    Optimizer optimizer(model, routing, {.adamw = {.eps = 1e-3}});
    ModelDescription m;
    m.vocab = OwnDecoder::kVocab;
    nn::Tape tape;
    const Shape shape{kBatch / shard, kSeq};
    const int64_t first = mesh.coordinate("shard") * shape[0];
    OwnTraining mine;
    const auto count_of = [&](const Tensor& targets) {
      const Tensor own = model.ranks.slice(targets);
      std::vector<int32_t> values(static_cast<size_t>(own.numel()));
      ops::copy_to_host(rank.device->compute(), values.data(), own);
      return static_cast<double>(
          std::ranges::count_if(values, [](int32_t t) { return t != kIgnoredTarget; }));
    };
    for (int64_t step = 0; step < 3; ++step) {
      if (change) change(model, step);
      const Tensor targets = tokens(*rank.device, m, shape, first, step + 1, 3);
      const double count = mean_over_ranks(model, count_of(targets));
      const nn::CrossEntropy loss = model(tape.input(tokens(*rank.device, m, shape, first, step)), targets,
                                          static_cast<float>(1 / count));
      mine.losses.push_back(
          mean_over_ranks(model, ops::to_floats(rank.device->compute(), loss.objective.value())[0]));
      mine.evaluated.push_back(read_loss(model, loss.losses));
      tape.backward(loss.objective);
      clip_grad_norm(model, 0.5);
      optimizer.step(0.01);
    }
    mine.weights = whole_weights(model, rank);
    const std::lock_guard lock(mutex);
    if (all.losses.empty()) all = mine;
    EXPECT_EQ(mine.losses, all.losses) << "ranks differ";
  });
  return all;
}

TEST(ContextOfAnOwnModule, TrainsAsOnOneRankAndStrategiesAgreeInBits) {
  const OwnTraining want = train_own(1, 1);
  for (const auto& [shard, context] : {std::pair{1, 2}, {2, 2}, {4, 2}, {2, 1}}) {
    const OwnTraining got = train_own(shard, context);
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5) << shard << " x " << context;
      EXPECT_NEAR(got.evaluated[i], want.evaluated[i], 1e-5) << shard << " x " << context;
    }
    for (const auto& [name, values] : want.weights)
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(got.weights.at(name)[i], values[i], 1e-5) << name;
    for (const Strategy s : kAllStrategies)
      EXPECT_EQ(train_own(shard, context, s).weights, got.weights) << name_of(s);
  }
}

TEST(ContextOfAnOwnModule, WithoutExchangesIsRefusedInItsLastBackward) {
  const auto message = [](const std::function<void(OwnDecoder&, int64_t)>& change, int64_t fails_in) {
    int64_t step = 0;
    return message_of<InvalidArgument>([&] {
      std::mutex mutex;
      train_own(1, 2, Strategy::optim_grads_params, [&](OwnDecoder& model, int64_t i) {
        const std::lock_guard lock(mutex);
        step = i;
        change(model, i);
        EXPECT_LE(i, fails_in);
      });
    });
  };
  EXPECT_THAT(
      message([](OwnDecoder& model, int64_t) { model.attends = false; }, 0),
      AllOf(HasSubstr("the 2 ranks of mesh dimension 'context' share sequences, but no attention of this "
                      "step has exchanged heads"),
            HasSubstr(
                "set nn::AttentionOptions::context (libtorch: call sherd::torch::context_attention()), or "
                "multiply the dimension into shard_dim")));
  EXPECT_THAT(message([](OwnDecoder& model, int64_t) { model.gives_slice = false; }, 0),
              HasSubstr("AttentionOptions::context has 1; set it to the slice of this forward"));
  // Each step is checked, not the first one alone.
  EXPECT_THAT(message([](OwnDecoder& model, int64_t step) { model.attends = step == 0; }, 1),
              HasSubstr("no attention of this step has exchanged heads"));
}

// A forward that waits while another's step ends has exchanged heads, too.
TEST(ContextOfAnOwnModule, TwoForwardsMayPrecedeTheirBackwards) {
  launch(2, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"shard", 1}, {"context", 2}});
    OwnDecoder model;
    model.ranks = ContextParallel::of(mesh);
    fully_shard(model, mesh, {.strategy = Strategy::no_shard}, {.seed = 3});
    ModelDescription m;
    m.vocab = OwnDecoder::kVocab;
    nn::Tape tape, another;
    const auto loss = [&](nn::Tape& on, int64_t salt) {
      return model(on.input(tokens(*rank.device, m, {2, 5}, 0, salt)),
                   tokens(*rank.device, m, {2, 5}, 0, salt + 1), 0.1f)
          .objective;
    };
    const Var first = loss(tape, 0), second = loss(another, 1);
    another.backward(second);
    zero_grad(model);
    tape.backward(first);
    zero_grad(model);
  });
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
