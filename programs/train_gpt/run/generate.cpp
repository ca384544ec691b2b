#include "train_gpt/run/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include <sherd/kernels/ops.h>
#include <sherd/train/text/context.h>
#include <sherd/train/text/draw.h>
#include <sherd/train/text/tokenizer.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/model_rules.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/optimizer_config.h"

namespace train_gpt {

using namespace sherd;

std::vector<int32_t> prompt_tokens(const TrainConfig& c) {
  if (!c.model.empty()) return parse_prompt_tokens(c.prompt_tokens, vocabulary(c));
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
  model_.set_training(false);
  const nn::ModelDescription model = description_of(config_);
  const int64_t capacity = std::min(model.positions, std::ssize(tokens) + count);
  const bool bytes = config_.model.empty();
  std::optional<nn::KvCache> cache;
  if (!bytes) cache = model_.make_cache(*rank_.device, capacity, config_.precision);
  SlidingContext context(capacity);
  const auto upload = [&](std::span<const int32_t> ids) {
    const Tensor in = Tensor::empty(*rank_.device, {1, std::ssize(ids)}, DType::i32, "activations");
    ops::copy_from_host(s, in, ids.data(), in.nbytes());
    return in;
  };
  const auto cached_logits = [&] {
    SlidingContext::Rows rows = context.next(std::ssize(tokens));
    if (!rows.restart && model.changes_angles(cache->length(), cache->length() + rows.end - rows.begin)) {
      rows.begin -= cache->length();
      rows.restart = true;
    }
    if (rows.restart) cache->clear();
    const std::span<const int32_t> all = tokens;
    return model_(
        upload(all.subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.end - rows.begin))),
        &*cache);
  };
  // Always a full window, whose text has the bits of earlier versions. Causality masks what follows the text.
  const auto window_logits = [&] {
    const int64_t length = std::min(std::ssize(tokens), model.positions);
    std::vector<int32_t> window(static_cast<size_t>(model.positions), 0);
    std::copy(tokens.end() - length, tokens.end(), window.begin());
    return model_(upload(window)).rows(length - 1, length);
  };
  const DrawOptions options{static_cast<float>(config_.temperature), static_cast<float>(config_.top_p)};
  const Tensor drawn = Tensor::empty(*rank_.device, {1}, DType::i32, "activations");
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<float> logits = ops::to_floats(s, bytes ? window_logits() : cached_logits());
    int32_t pick = draw_token(logits, options, seed_, i);
    // Logits of ranks that share experts may differ in the last bits: all take what rank 0 drew.
    ops::copy_from_host(s, drawn, &pick, sizeof pick);
    rank_.world->broadcast(s, drawn, 0);
    ops::copy_to_host(s, &pick, drawn);
    tokens.push_back(pick);
    if (made) made(pick);
  }
  return tokens;
}

}  // namespace train_gpt
