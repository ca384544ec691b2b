#include "train_gpt/run/windows.h"

#include <sherd/train/data/data.h>

#include "train_gpt/model/model_source.h"

namespace train_gpt {

std::shared_ptr<const sherd::TokenWindows> open_windows(const TrainConfig& c) {
  const bool text = !c.has_tokens(), examples = !c.sft.empty();
  sherd::TokenWindowsOptions options{
      .seq = c.seq, .vocab = vocabulary(c), .examples = examples, .packed = c.packing};
  options.order = c.order.value_or(text ? sherd::TokenOrder::hashed : sherd::TokenOrder::shuffled);
  const sherd::TokenFormat format = examples ? sherd::TokenFormat::megatron : c.token_format;
  std::vector<sherd::SharedTokens> data;
  if (text) {
    data.push_back({sherd::ByteData::load(c.data)});
  } else {
    data = open_token_streams(
        examples ? sherd::parse_token_list(c.sft, "--sft") : sherd::parse_token_list(c.tokens, "--tokens"),
        format);
  }
  if (!c.eval_data.empty())
    return std::make_shared<const sherd::TokenWindows>(
        std::move(data),
        sherd::open_evaluation_sets(sherd::parse_evaluation_list(c.eval_data, "--eval-data"), format),
        options);
  std::shared_ptr<const sherd::TokenStream> validation;
  if (!c.valid_tokens.empty())
    validation = open_one_token_stream(sherd::parse_unweighted_token_list(c.valid_tokens, "--valid-tokens"),
                                       format, "--valid-tokens");
  return std::make_shared<const sherd::TokenWindows>(std::move(data), std::move(validation), options);
}

int64_t evaluation_windows(const TrainConfig& c) {
  const bool text = !c.has_tokens() && c.valid_tokens.empty() && c.eval_data.empty();
  return c.eval_windows.value_or(text ? 256 : 0);
}

const char* loss_unit(const TrainConfig& c) { return c.has_tokens() ? "nats per token" : "nats per byte"; }

}  // namespace train_gpt
