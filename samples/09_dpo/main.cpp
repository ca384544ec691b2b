// Direct preference optimization: of two continuations of a prompt the model learns to prefer one, beside a reference that
// stays as it was. The policy's adapters (LoRA) are trained, and the reference is the same model without them; with an
// argument "whole" all weights are trained, and the reference is a second model, sharded beside the policy.
// (Rafailov et al., Direct Preference Optimization, 2023, arXiv 2305.18290.)
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sherd/sherd.h>
using namespace sherd;

constexpr int kRanks = 2;
constexpr int64_t kPairs = 8, kPrompt = 4, kSeq = 12, kVocab = 32;
constexpr double kBeta = 0.1;

// Sequences and what each row predicts: prompts and padding are not learned.
struct Batch {
  Tensor tokens, targets;
};

// The first half of the sequences counts on from the prompt, and is preferred; the other half counts backwards.
Batch make_batch(RankContext& rank, int64_t step) {
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < 2 * kPairs; ++i) {
    const int64_t pair = i % kPairs, first = 7 * pair + 3 * step + 11 * rank.world->rank();
    const int64_t length = kSeq - pair % 3;  // of unequal lengths
    const auto token = [&](int64_t t) {
      const int64_t next = t < kPrompt || i < kPairs ? first + t : first + 2 * (kPrompt - 1) - t;
      return static_cast<int32_t>((next % kVocab + kVocab) % kVocab);
    };
    for (int64_t t = 0; t < kSeq; ++t) {
      tokens.push_back(t < length ? token(t) : 0);
      targets.push_back(t + 1 >= kPrompt && t + 1 < length ? token(t + 1) : kIgnoredTarget);
    }
  }
  const auto on_device = [&](const std::vector<int32_t>& ids) {
    Tensor t = Tensor::empty(*rank.device, {2 * kPairs, kSeq}, DType::i32, "data");
    ops::copy_from_host(rank.device->compute(), t, ids.data(), t.nbytes());
    return t;
  };
  return {on_device(tokens), on_device(targets)};
}

// The log-probability of each continuation, [2 * kPairs]: the sum over its rows. Rows without a target add 0.
nn::Var log_probs_of(nn::CausalModel& model, const nn::Var& tokens, const Tensor& targets) {
  const nn::Var rows = model(tokens, nn::log_probs(targets));
  return nn::sum(nn::reshape(rows, {2 * kPairs, kSeq}), {1});
}

struct Model {
  std::unique_ptr<nn::CausalModel> module;
  Routing routing;
  Model(const DeviceMesh& mesh, const nn::LoraOptions& lora, bool reference) {
    nn::ModelDescription llama{
        .vocab = kVocab, .dim = 32, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8};
    llama.hidden = 64, llama.positions = kSeq, llama.init_std = 0.1f;
    module = nn::causal_model(llama, {.lora = lora});
    for (auto& [name, p] : module->named_parameters())
      if (reference) Parameter(p).freeze();  // no memory for gradients
    if (!reference) routing = route(*module, {.optimizer = Algorithm::adamw});
    for (size_t i = 0; i < module->blocks(); ++i) fully_shard(module->block(i), mesh);
    fully_shard(*module, mesh);
  }
};

int main(int argc, char** argv) {
  const bool whole = argc > 1 && std::strcmp(argv[1], "whole") == 0;
  launch(kRanks, [&](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"shard", kRanks}});
    Model policy(mesh, whole ? nn::LoraOptions{} : nn::LoraOptions{.rank = 4, .alpha = 8}, false);
    std::unique_ptr<Model> beside = whole ? std::make_unique<Model>(mesh, nn::LoraOptions{}, true) : nullptr;
    nn::CausalModel &model = *policy.module, &reference = whole ? *beside->module : model;
    Optimizer optimizer(model, policy.routing, {});
    nn::Tape tape;
    for (int step = 0; step <= 40; ++step) {
      const Batch batch = make_batch(rank, step);
      nn::Var of_reference;
      {
        const nn::NoGrad evaluation(tape);
        const nn::WithoutAdapters base(model);
        of_reference = log_probs_of(reference, tape.input(batch.tokens), batch.targets);
      }
      // How much more likely than by the reference each continuation is; the preferred ones come first.
      const nn::Var ratio = log_probs_of(model, tape.input(batch.tokens), batch.targets) - of_reference;
      const nn::Var margin = nn::rows(ratio, 0, kPairs) - nn::rows(ratio, kPairs, 2 * kPairs);
      const nn::Var loss = nn::mean(nn::softplus(margin * -kBeta));  // -ln sigmoid(beta * margin)
      tape.backward(loss);
      clip_grad_norm(model, 1);
      optimizer.step(whole ? 5e-4 : 3e-3);
      int right = 0;
      for (const float m : ops::to_floats(rank.device->compute(), margin.value())) right += m > 0;
      const double mean_loss = read_loss(model, loss.value()),
                   share = mean_over_ranks(model, right / double{kPairs});
      if (step % 10 == 0 && rank.world->rank() == 0)
        std::printf("step %2d: loss %.2f, preferred in %3.0f %% of pairs\n", step, mean_loss, 100 * share);
    }
  });
}
