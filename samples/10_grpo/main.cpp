// Group relative policy optimization on a task that a program can check: count on from the prompt. Each step generates a group of
// continuations of every prompt, scores them, and makes the better ones of a group more likely, in two updates with clipped ratios.
// (Shao et al., DeepSeekMath, 2024, arXiv 2402.03300.)
#include <cstdio>
#include <numeric>

#include <sherd/sherd.h>
using namespace sherd;

constexpr int kRanks = 2, kSteps = 100, kUpdates = 2;
constexpr int64_t kPrompts = 4, kGroup = 8, kNew = 6, kPrompt = 3, kVocab = 10, kSeq = kPrompt + kNew - 1;
constexpr double kClip = 0.2, kKl = 0.02;

struct Model {
  std::unique_ptr<nn::CausalModel> module;
  Routing routing;
  Model(const DeviceMesh& mesh, bool reference) {
    nn::ModelDescription llama{
        .vocab = kVocab, .dim = 32, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8};
    llama.hidden = 64, llama.positions = kPrompt + kNew, llama.init_std = 0.1f;
    module = nn::causal_model(llama);
    for (auto& [name, p] : module->named_parameters())
      if (reference) Parameter(p).freeze();  // no memory for gradients
    if (!reference) routing = route(*module, {.optimizer = Algorithm::adamw});
    for (size_t i = 0; i < module->blocks(); ++i) fully_shard(module->block(i), mesh);
    fully_shard(*module, mesh);
  }
};

// The share of the new tokens that are the one before plus 1; 0 ends a text.
double score(int32_t before, const std::vector<int32_t>& made) {
  double right = 0;
  for (const int32_t token : made) right += token == (before + 1) % kVocab, before = token;
  return right / static_cast<double>(made.size());
}

template <class T>
Tensor on_device(RankContext& rank, const std::vector<T>& values, Shape shape, DType dtype) {
  Tensor t = Tensor::empty(*rank.device, std::move(shape), dtype, "data");
  ops::copy_from_host(rank.device->compute(), t, values.data(), t.nbytes());
  return t;
}

// Log-probabilities of the targets by row, [kPrompts * kGroup, kSeq]; 0 without one.
nn::Var log_probs_of(nn::CausalModel& model, const nn::Var& tokens, const Tensor& targets) {
  return nn::reshape(model(tokens, nn::log_probs(targets)), targets.shape());
}

int main() {
  launch(kRanks, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"shard", kRanks}});
    Model policy(mesh, false), reference(mesh, true);
    nn::CausalModel& model = *policy.module;
    Optimizer optimizer(model, policy.routing, {});
    nn::Tape tape;
    double first_reward = 0;
    for (int step = 0; step <= kSteps; ++step) {
      std::vector<std::vector<int32_t>> prompts;
      for (int64_t i = 0; i < kPrompts * kGroup; ++i) {
        const int64_t first = i / kGroup + step + 5 * rank.world->rank();
        prompts.emplace_back();
        for (int64_t t = 0; t < kPrompt; ++t)
          prompts.back().push_back(static_cast<int32_t>((first + t) % kVocab));
      }
      std::vector<std::vector<int32_t>> made;
      {
        const Unsharded whole(model);  // no gathers for each token; ranks may end at their own time
        made = nn::generate(model, prompts,
                            {.max_tokens = kNew,
                             .draw = {.temperature = 1},
                             .seed = static_cast<uint64_t>(2 * step + rank.world->rank()),
                             .stop = {0}});
      }
      std::vector<int32_t> tokens, targets;
      std::vector<float> rewards, weights;  // the latter by row: 1 / the new tokens of its text
      for (size_t i = 0; i < made.size(); ++i) {
        rewards.push_back(static_cast<float>(score(prompts[i].back(), made[i])));
        std::vector<int32_t> text = prompts[i];
        text.insert(text.end(), made[i].begin(), made[i].end());
        for (size_t t = 0; t < kSeq; ++t) {
          const bool learned = t + 1 >= kPrompt && t + 1 < text.size();
          tokens.push_back(t < text.size() ? text[t] : 0);
          targets.push_back(learned ? text[t + 1] : kIgnoredTarget);
          weights.push_back(learned ? 1 / static_cast<float>(made[i].size() * made.size()) : 0);
        }
      }
      const Shape shape{kPrompts * kGroup, kSeq};
      const Tensor in = on_device(rank, tokens, shape, DType::i32),
                   wanted = on_device(rank, targets, shape, DType::i32);
      const nn::Var w = on_device(rank, weights, shape, DType::f32),
                    r = on_device(rank, rewards, {kPrompts, kGroup}, DType::f32);
      // How much better than its group each text is, in standard deviations of the group.
      const nn::Var deviation = nn::sqrt(nn::variance(r, {1}, true) * (kGroup / (kGroup - 1.0)));
      const nn::Var a =
          nn::reshape((r - nn::mean(r, {1}, true)) / (deviation + 1e-4), {kPrompts * kGroup, 1});
      nn::Var before, of_reference;
      for (int update = 0; update < kUpdates; ++update) {
        if (update == 0) {
          const nn::NoGrad evaluation(tape);
          before = log_probs_of(model, tape.input(in), wanted);
          of_reference = log_probs_of(*reference.module, tape.input(in), wanted);
        }
        const nn::Var now = log_probs_of(model, tape.input(in), wanted);
        const nn::Var ratio = nn::exp(now - before),
                      clipped = nn::minimum(nn::maximum(ratio, 1 - kClip), 1 + kClip);
        const nn::Var difference = of_reference - now, kl = nn::exp(difference) - difference - 1.0;
        tape.backward(nn::sum((kl * kKl - nn::minimum(ratio * a, clipped * a)) * w));
        clip_grad_norm(model, 1);
        optimizer.step(3e-3);
      }
      const double reward = mean_over_ranks(
          model, std::accumulate(rewards.begin(), rewards.end(), 0.0) / static_cast<double>(rewards.size()));
      if (step == 0) first_reward = reward;
      if (step == kSteps && rank.world->rank() == 0)  // draws depend on the last bits: few digits
        std::printf("mean reward: %s at first, %.1f after %d steps\n",
                    first_reward < 0.3 ? "below 0.3" : "0.3 or more", reward, kSteps);
    }
  });
}
