#include "train_gpt/run/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include <sherd/fsdp/unsharded.h>
#include <sherd/kernels/ops.h>
#include <sherd/nn/models/generate.h>
#include <sherd/train/text/tokenizer.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/model_rules.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/optimizer_config.h"

namespace train_gpt {

using namespace sherd;

std::vector<int32_t> prompt_tokens(const TrainConfig& c) {
  if (!c.prompt_tokens.empty()) return parse_prompt_tokens(c.prompt_tokens, vocabulary(c));
  if (!c.model.empty()) return (c.files ? c.files : with_model_files(c).files)->prompt;
  const std::string text = c.start_of_text();
  return {reinterpret_cast<const uint8_t*>(text.data()),
          reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
}

ShownTokens::ShownTokens(const TrainConfig& c, std::function<void(const std::string&)> print)
    : print_(std::move(print)),
      text_([](int32_t token) { return fmt::format("{} ", token); }),
      rest_([] { return std::string(); }) {
  if (c.model.empty()) {
    text_ = [](int32_t byte) { return std::string(1, static_cast<char>(byte)); };
    return;
  }
  const auto& tokenizer = (c.files ? c.files : with_model_files(c).files)->tokenizer;
  if (!tokenizer) return;
  const auto stream = std::make_shared<TextStream>(tokenizer);
  text_ = [stream](int32_t token) { return stream->add(token); };
  rest_ = [stream] { return stream->finish(); };
}

void ShownTokens::add(int32_t token) { print_(text_(token)); }

void ShownTokens::finish() { print_(rest_()); }

std::vector<int32_t> Trainer::generate(std::vector<int32_t> tokens, int64_t count,
                                       const std::function<void(int32_t)>& made) {
  Stream& s = rank_.device->compute();
  const auto take_from_rank_0 = [&](int32_t* values, int64_t n) {
    const Tensor shared = Tensor::empty(*rank_.device, {n}, DType::i32, "activations");
    ops::copy_from_host(s, shared, values, shared.nbytes());
    rank_.world->broadcast(s, shared, 0);
    ops::copy_to_host(s, values, shared);
  };
  // Its process alone may have encoded --prompt.
  auto prompt = static_cast<int32_t>(tokens.size());
  take_from_rank_0(&prompt, 1);
  tokens.resize(static_cast<size_t>(prompt));
  take_from_rank_0(tokens.data(), prompt);
  // Logits of ranks that share experts may differ in the last bits: all take what rank 0 drew.
  const nn::DrawOptions draw{static_cast<float>(config_.temperature), static_cast<float>(config_.top_p)};
  if (!config_.model.empty()) {
    nn::GenerateOptions options{.max_tokens = count, .draw = draw, .seed = seed_, .same = rank_.world.get()};
    if (config_.files) options.stop = config_.files->end_of_text;
    if (made) options.made = [&](size_t, int32_t token) { made(token); };
    std::optional<Unsharded> whole;
    try {
      whole.emplace(model_);
    } catch (const OutOfMemory&) {  // on all ranks
      if (rank_.world->rank() == 0)
        warn(
            "the unsharded weights do not fit beside the sharded ones: each token of text gathers every "
            "unit");
    }
    const std::vector<int32_t> more = nn::generate(model_, {tokens}, options)[0];
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  }
  model_.set_training(false);
  // Always a full window, whose text has the bits of earlier versions. Causality masks what follows the text.
  const int64_t positions = description_of(config_).positions;
  const Tensor in = Tensor::empty(*rank_.device, {1, positions}, DType::i32, "activations");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = std::min(std::ssize(tokens), positions);
    std::vector<int32_t> window(static_cast<size_t>(positions), 0);
    std::copy(tokens.end() - length, tokens.end(), window.begin());
    ops::copy_from_host(s, in, window.data(), in.nbytes());
    int32_t pick = nn::draw_token(ops::to_floats(s, model_(in).rows(length - 1, length)), draw, seed_, i);
    take_from_rank_0(&pick, 1);
    tokens.push_back(pick);
    if (made) made(pick);
  }
  return tokens;
}

}  // namespace train_gpt
