// Objectives of the caller's own of a causal model, by rows and in chunks.

#include <cmath>

#include <sherd/nn/objectives.h>

#include "arranged_training.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using nn::Var;

nn::ModelDescription small_model(const std::string& family) {
  return family == "byte_gpt" ? byte_gpt(0) : GoldenFolder(family).description;
}

/// The mean of the losses of all rows, as the model's own objective, by a function of its logits.
nn::CrossEntropy mean_of_losses(nn::CausalModel& model, const Var& tokens, const Tensor& targets,
                                float scale) {
  const Var losses =
      model(tokens, nn::OfLogits([wanted = targets.flat()](const Var& logits, int64_t begin, int64_t end) {
              return nn::token_losses(logits, wanted.flat(begin, end));
            }));
  return {nn::scale(nn::sum(losses), scale), losses.value()};
}

/// Several terms: weighted log-probabilities, entropy and z-loss.
nn::CrossEntropy several_terms(nn::CausalModel& model, const Var& tokens, const Tensor& targets,
                               float scale) {
  const Var terms = model(
      tokens, nn::OfLogits([wanted = targets.flat()](const Var& logits, int64_t begin, int64_t end) {
        return nn::stack(
            {nn::log_probs(logits, wanted.flat(begin, end)), nn::entropy(logits), nn::z_loss(logits)}, 1);
      }));
  const auto column = [&](int64_t i) { return nn::sum(nn::slice(terms, 1, i, i + 1)); };
  const Var losses = nn::reshape(nn::slice(terms, 1, 0, 1), {terms.size(0)});
  return {nn::scale(column(2) * 0.01 - column(0) - column(1) * 0.1, scale), nn::scale(losses, -1).value()};
}

const Arrangement kArrangements[] = {
    {.name = "4 ranks", .ranks = 4},
    {.name = "tp 2 of 4", .ranks = 4, .tp = 2},
    {.name = "tp 2, rows split", .ranks = 2, .tp = 2, .sequence_parallel = true},
    {.name = "all rows at once", .ranks = 2, .logits_chunk = 0},
    {.name = "recomputed", .ranks = 2, .recompute = true}};

TEST(CausalObjectives, TheMeanOfLossesTrainsAsTheModelsOwnObjective) {
  for (const char* family : {"llama", "gpt2", "byte_gpt", "deepseek_v3", "gemma3_text"}) {
    const nn::ModelDescription m = small_model(family);
    for (const Arrangement& a : kArrangements)
      if (!a.sequence_parallel || std::string(family) != "byte_gpt")  // which has none
        expect_near(train(m, a, {.objective = mean_of_losses}), train(m, a),
                    (std::string(family) + ", " + a.name).c_str());
  }
}

TEST(CausalObjectives, VocabulariesThatTheRanksDoNotDivide) {
  for (const int64_t vocab : {199, 5}) {
    nn::ModelDescription m = small_model("llama");
    m.vocab = vocab;
    m.init_std = 0.2f;
    const Outcome want = train(m, {.name = ""}, {.objective = several_terms});
    for (const int tp : {2, 4})
      expect_near(train(m, {.name = "", .ranks = tp, .tp = tp}, {.objective = several_terms}), want, "tp");
  }
}

TEST(CausalObjectives, StrategiesHaveTheSameBits) {
  for (const char* family : {"llama", "qwen3_moe"})
    for (const int tp : {1, 2}) {
      const nn::ModelDescription m = small_model(family);
      Arrangement a{.name = family,
                    .ranks = 4,
                    .tp = tp,
                    .ep = m.mixture.experts > 0 ? 2 : 1,
                    .strategy = Strategy::no_shard};
      const Outcome want = train(m, a, {.objective = several_terms});
      for (const Strategy s : {Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
        a.strategy = s;
        expect_same_bits(train(m, a, {.objective = several_terms}), want, name_of(s));
      }
      if (tp > 1) continue;
      a.replicas = 2;
      expect_same_bits(train(m, a, {.objective = several_terms}), want, "replicas");
    }
}

TEST(CausalObjectives, TheHeadOfHiddenRowsGivesTheLogits) {
  for (const Arrangement& a : kArrangements)
    launch(a.ranks, [&](RankContext& rank) {
      const nn::ModelDescription m = small_model("llama");
      ArrangedModel arranged(rank, m, a, 5);
      nn::CausalModel& model = *arranged.model;
      arranged.shard();
      model.set_training(false);
      Stream& s = rank.device->compute();
      const Tensor in = tokens(*rank.device, m, {2, 7}, 0, 1);
      const Var hidden = model(Var(in), nn::HiddenRows{});
      EXPECT_EQ(hidden.shape(), (Shape{14, m.dim}));
      EXPECT_LT(distance(ops::to_floats(s, model(nn::HeadOf{hidden.value()})), ops::to_floats(s, model(in))),
                1e-5)
          << a.name;
    });
}

/// A head of the caller's own on the hidden rows: their gradient reaches the model on every arrangement.
TEST(CausalObjectives, AHeadOnHiddenRowsTrainsTheModel) {
  const auto objective = [](nn::CausalModel& model, const Var& tokens, const Tensor&, float scale) {
    const Var hidden = model(tokens, nn::HiddenRows{});
    const Var values = nn::sum(nn::tanh(hidden), {1});
    return nn::CrossEntropy{nn::scale(nn::sum(values * values), scale), values.value()};
  };
  const nn::ModelDescription m = small_model("llama");
  // The head itself has no gradient from it.
  const auto prepare = [](nn::CausalModel& model) {
    for (auto& [name, p] : model.named_parameters())
      if (name == "lm_head.weight") Parameter(p).freeze();
  };
  const Outcome want = train(m, {.name = ""}, {.objective = objective, .prepare = prepare});
  for (const Arrangement& a : kArrangements)
    expect_near(train(m, a, {.objective = objective, .prepare = prepare}), want, a.name);
}

/// Divergence from another model, whose head is computed for the same chunk, beside one from whole logits in double.
TEST(CausalObjectives, DivergenceFromAReferenceThatIsShardedBesideIt) {
  for (const Arrangement& a :
       {Arrangement{.name = "zero3", .ranks = 2}, {.name = "tp 2", .ranks = 2, .tp = 2}})
    launch(a.ranks, [&](RankContext& rank) {
      const nn::ModelDescription m = small_model("llama");
      ArrangedModel policy(rank, m, a, 5), reference(rank, m, a, 6);
      policy.shard();
      reference.shard();
      reference.model->set_training(false);
      Stream& s = rank.device->compute();
      const Tensor in = tokens(*rank.device, m, {2, 9}, 0, 1);
      const Tensor hidden = (*reference.model)(Var(in), nn::HiddenRows{}).value();
      nn::Tape tape;
      const Var kl = (*policy.model)(
          tape.input(in), nn::OfLogits([&](const Var& logits, int64_t begin, int64_t end) {
            return nn::divergence(logits, (*reference.model)(nn::HeadOf{hidden.rows(begin, end)}));
          }));
      const Var taught = (*policy.model)(
          tape.input(in), nn::OfLogits([&](const Var& logits, int64_t begin, int64_t end) {
            return nn::distillation(logits, (*reference.model)(nn::HeadOf{hidden.rows(begin, end)}), 2);
          }));
      tape.backward(nn::mean(kl) + nn::mean(taught));
      const std::vector<float> distilled = ops::to_floats(s, taught.value());
      const std::vector<float> got = ops::to_floats(s, kl.value());
      policy.model->set_training(false);
      const std::vector<float> p = ops::to_floats(s, (*policy.model)(in)),
                               q = ops::to_floats(s, (*reference.model)(in));
      const auto vocab = static_cast<size_t>(m.vocab);
      // KL(x || y), of logits divided by t.
      const auto divergence = [&](const std::vector<float>& x, const std::vector<float>& y, size_t row,
                                  double t) {
        double sums[2] = {}, result = 0;
        for (size_t j = row * vocab; j < (row + 1) * vocab; ++j)
          sums[0] += std::exp(x[j] / t), sums[1] += std::exp(y[j] / t);
        for (size_t j = row * vocab; j < (row + 1) * vocab; ++j) {
          const double log_x = x[j] / t - std::log(sums[0]), log_y = y[j] / t - std::log(sums[1]);
          result += std::exp(log_x) * (log_x - log_y);
        }
        return result;
      };
      for (size_t r = 0; r < got.size(); ++r) {
        EXPECT_NEAR(got[r], divergence(p, q, r, 1), 1e-5);
        EXPECT_NEAR(distilled[r], 4 * divergence(q, p, r, 2), 1e-5);
      }
      reset_step(*policy.model);
    });
}

TEST(CausalObjectives, WithoutAdaptersItIsTheModelBeside) {
  launch(2, [](RankContext& rank) {
    const nn::ModelDescription m = small_model("llama");
    const Arrangement a{.name = "", .ranks = 2};
    Arrangement adapted = a;
    adapted.lora = {.rank = 2, .alpha = 4};
    ArrangedModel plain(rank, m, a, 5), lora(rank, m, adapted, 5);
    plain.shard();
    lora.shard();
    for (auto& [name, p] : lora.model->named_parameters())
      if (name.ends_with("lora_B.weight") && p.shard().numel() > 0)
        ops::fill(rank.device->compute(), p.shard(), 0.5);
    runtime_of(*lora.model).weights_replaced();
    Stream& s = rank.device->compute();
    const auto logits = [&](ArrangedModel& of) {
      of.model->set_training(false);
      return ops::to_floats(s, (*of.model)(tokens(*rank.device, m, {1, 5}, 0, 1)));
    };
    const std::vector<float> base = logits(plain), with = logits(lora);
    EXPECT_NE(with, base);
    lora.model->use_adapters(false);
    EXPECT_EQ(logits(lora), base);
    lora.model->use_adapters(true);
    EXPECT_EQ(logits(lora), with);
  });
}

TEST(CausalObjectives, RefuseOtherRowsAndOtherLogits) {
  launch(1, [](RankContext& rank) {
    const nn::ModelDescription m = small_model("llama");
    ArrangedModel arranged(rank, m, {.name = ""}, 5);
    arranged.shard();
    nn::Tape tape;
    for (const int64_t seq : {4, 6}) {
      const Var in = tape.input(tokens(*rank.device, m, {2, 5}, 0, 1));
      EXPECT_THAT(message_of<ShapeMismatch>([&] {
                    (*arranged.model)(in, nn::log_probs(tokens(*rank.device, m, {2, seq}, 0, 2)));
                  }),
                  AllOf(HasSubstr(std::to_string(2 * seq) + " targets"), HasSubstr("10 rows")));
      tape.clear();
      reset_step(*arranged.model);
    }
    const Var logits = tape.input(Tensor::empty(*rank.device, {3, 4}, DType::f32, "test"));
    const Tensor row = Tensor::empty(*rank.device, {1, 4}, DType::f32, "test");
    EXPECT_THROW(nn::divergence(logits, row), ShapeMismatch);
    EXPECT_THROW(nn::distillation(logits, row), ShapeMismatch);
    EXPECT_THROW(nn::cross_entropy(logits, Tensor::empty(*rank.device, {3}, DType::i32, "test"), row),
                 ShapeMismatch);
  });
}

TEST(CausalObjectives, RefuseAFunctionThatMixesRows) {
  launch(1, [](RankContext& rank) {
    const nn::ModelDescription m = small_model("llama");
    ArrangedModel arranged(rank, m, {.name = ""}, 5);
    arranged.shard();
    nn::Tape tape;
    EXPECT_THAT(message_of<ShapeMismatch>([&] {
                  (*arranged.model)(
                      tape.input(tokens(*rank.device, m, {1, 5}, 0, 1)),
                      nn::OfLogits([](const Var& logits, int64_t, int64_t) { return nn::sum(logits); }));
                }),
                AllOf(HasSubstr("5 rows"), HasSubstr("returned f32 [1]"), HasSubstr("must return f32 [5]")));
    tape.clear();
    reset_step(*arranged.model);
  });
}

}  // namespace
}  // namespace sherd::test
