// Text from the model.
#include <algorithm>
#include <vector>

#include <sherd/kernels/ops.h>
#include <sherd/train/text/draw.h>

#include "train_gpt/run/trainer.h"

namespace train_gpt {
using namespace sherd;

std::string Trainer::sample(const std::string& prompt, int64_t count, const std::function<void(char)>& made) {
  Stream& s = rank_.device->compute();
  std::string text = prompt;
  model_.set_training(false);
  const Tensor drawn = Tensor::empty(*rank_.device, {1}, DType::i32, "activations");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = std::min<int64_t>(static_cast<int64_t>(text.size()), config_.seq);
    // Always a full window, so that one set of buffers serves all; what follows the text is masked by
    // causality.
    std::vector<int32_t> context(static_cast<size_t>(config_.seq), 0);
    for (int64_t k = 0; k < length; ++k)
      context[static_cast<size_t>(k)] =
          static_cast<uint8_t>(text[text.size() - static_cast<size_t>(length - k)]);
    const Tensor tokens = Tensor::empty(*rank_.device, {1, config_.seq}, DType::i32, "activations");
    ops::copy_from_host(s, tokens, context.data(), tokens.nbytes());
    const std::vector<float> logits = ops::to_floats(s, model_(tokens).rows(length - 1, length));
    int32_t pick = draw_token(
        logits, {static_cast<float>(config_.temperature), static_cast<float>(config_.top_p)}, seed_, i);
    // Logits of expert-parallel ranks may differ in the last bits: all take what rank 0 drew.
    ops::copy_from_host(s, drawn, &pick, sizeof pick);
    rank_.world->broadcast(s, drawn, 0);
    ops::copy_to_host(s, &pick, drawn);
    text.push_back(static_cast<char>(pick));
    if (made) made(text.back());
  }
  return text;
}

}  // namespace train_gpt
