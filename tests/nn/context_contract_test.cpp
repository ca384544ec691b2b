// Context parallelism: traffic, memory, refusals, and a module of the caller's own.

#include <fmt/format.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "arranged_training.h"
#include "nets.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::ContextParallel;
using nn::ModelDescription;
using nn::SequenceSlice;
using nn::Var;

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
  std::map<std::string, std::vector<float>> weights;
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

}  // namespace
}  // namespace sherd::test
