#include "train_gpt/run/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include <sherd/kernels/ops.h>
#include <sherd/train/text/context.h>
#include <sherd/train/text/draw.h>
#include <sherd/train/text/tokenizer.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/settings/optimizer_config.h"

namespace train_gpt {

using namespace sherd;

ShownTokens::ShownTokens(const TrainConfig& c, std::function<void(const std::string&)> print)
    : print_(std::move(print)),
      text_([](int32_t token) { return fmt::format("{} ", token); }),
      rest_([] { return std::string(); }) {
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
  const sherd::nn::ModelDescription model = model_source(config_).config.description;
  const int64_t capacity = std::min(model.positions, static_cast<int64_t>(tokens.size()) + count);
  nn::KvCache cache = model_.make_cache(*rank_.device, capacity, dtype_named(config_.precision));
  SlidingContext context(capacity);
  const DrawOptions options{static_cast<float>(config_.temperature), static_cast<float>(config_.top_p)};
  const Tensor drawn = Tensor::empty(*rank_.device, {1}, DType::i32, "activations");
  for (int64_t i = 0; i < count; ++i) {
    SlidingContext::Rows rows = context.next(static_cast<int64_t>(tokens.size()));
    if (!rows.restart && model.changes_angles(cache.length(), cache.length() + rows.end - rows.begin)) {
      rows.begin -= cache.length();
      rows.restart = true;
    }
    if (rows.restart) cache.clear();
    const Tensor in = Tensor::empty(*rank_.device, {1, rows.end - rows.begin}, DType::i32, "activations");
    ops::copy_from_host(s, in, tokens.data() + rows.begin, in.nbytes());
    const std::vector<float> logits = ops::to_floats(s, model_(in, &cache));
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
