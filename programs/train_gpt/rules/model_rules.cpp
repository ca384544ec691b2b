#include "train_gpt/rules/model_rules.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/nn/hf/adapter_folder.h>

namespace train_gpt {
namespace {

/// Checks the folder of adapters in --init-weights against the flags.
void check_adapters(const TrainConfig& c, const ModelSource& source, const RuleCheck& rules) {
  if (!begins_with_adapters(c)) return;
  rules.collect("init_weights", [&] {
    const sherd::hf::AdapterConfig config = sherd::hf::read_adapter_config(c.init_weights);
    if (c.lora_rank > 0) return require_same(config, lora_options(c));
    rules.refuse("init_weights",
                 "it holds adapters, and the model has none; give --lora-rank {} --lora-alpha {} and the "
                 "--lora-targets of their modules",
                 config.rank, config.alpha);
  });
  if (source.folder.empty() && !c.from_scratch)
    rules.refuse("init_weights",
                 "it holds adapters alone, and --model {} has no weights here; name the folder that has them "
                 "by --model",
                 c.model);
}

/// Checks the conditions of causal_model() before there are ranks, with flags instead of the library's
/// options.
void check_tensor_parallel(const TrainConfig& c, const ModelSource& source, const RuleCheck& rules) {
  const sherd::nn::ModelDescription& d = source.config.description;
  if (c.tp < 1) return;
  std::vector<std::string> undivided;
  if (d.heads % c.tp != 0) undivided.push_back(fmt::format("its {} heads", d.heads));
  if ((d.mixture.experts == 0 || d.mixture.dense_layers > 0) && d.hidden % c.tp != 0)
    undivided.push_back(fmt::format("the {} hidden columns of its MLPs", d.hidden));
  if (const int64_t columns = d.mixture.shared * d.mixture.hidden; columns % c.tp != 0)
    undivided.push_back(fmt::format("the {} columns of its shared experts", columns));
  if (c.mtp_weight > 0 && 2 * d.dim % c.tp != 0)
    undivided.push_back(fmt::format("the {} columns of its eh_proj", 2 * d.dim));
  if (!undivided.empty())
    rules.refuse("tp", "must, of --model {}, divide {}", c.model, fmt::join(undivided, " and "));
  if (!undivided.empty() || c.context < 1) return;
  // causal_model() checks key heads that several ranks have.
  const int64_t heads = d.heads / c.tp, keys = d.kv_heads % c.tp == 0 ? d.kv_heads / c.tp : 0;
  if (heads % c.context != 0 || keys % c.context != 0)
    rules.refuse("context", "must divide the {} heads{} that --model {} has on each rank", heads,
                 keys > 0 ? fmt::format(" and {} key heads", keys) : "", c.model);
}

}  // namespace

std::vector<int32_t> parse_prompt_tokens(std::string_view list, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string_view word = list.substr(at, end - at);
    int32_t token = -1;
    const auto [stopped, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || stopped != word.data() + word.size() || token < 0 || token >= vocab)
      throw sherd::InvalidArgument(fmt::format(
          "'{}': '{}' is not a token; give numbers below {} with commas between them", list, word, vocab));
    tokens.push_back(token);
    at = end + 1;
  }
  return tokens;
}

void check_model(const TrainConfig& c, const ModelSource& source, const RuleCheck& rules) {
  const sherd::nn::ModelDescription& d = source.config.description;
  const bool gpt2 = d.family == sherd::nn::ModelFamily::gpt2;
  if (c.trains() || c.eval_only)
    rules.collect("seq", [&] { sherd::hf::require_sequence(source.config, c.seq); });
  check_tensor_parallel(c, source, rules);
  check_adapters(c, source, rules);
  if (c.moe_bias_speed > 0 && !routes_in_groups(d))
    rules.refuse("moe_bias_speed", "--model {} is of family {}, which has no selection bias; leave it out",
                 c.model, to_string(d.family));
  if (c.mtp_weight > 0 && source.config.mtp_layers != 1)
    rules.refuse("mtp_weight",
                 "--model {} has {} heads for multi-token prediction (\"num_nextn_predict_layers\" in "
                 "config.json), and models with one are trained; leave it out",
                 c.model, source.config.mtp_layers);
  if (c.qk_clip > 0 && (d.qk_norm || gpt2))
    rules.refuse("qk_clip", "--model {} {}; leave it out", c.model,
                 d.qk_norm ? "normalises queries and keys, whose logits do not follow from their weights"
                           : "has weights [in, out], which are not clipped");
  if (c.lora_rank > 0 && gpt2)
    rules.refuse("lora_rank", "--model {} is of family gpt2, which has no adapters; leave it out", c.model);
  if (c.packing && gpt2)
    rules.refuse("packing", "the learned positions of --model {} do not restart in a row; leave it out",
                 c.model);
  if (c.sample_bytes() > 0 && !c.prompt_tokens.empty())
    rules.collect("prompt_tokens", [&] { parse_prompt_tokens(c.prompt_tokens, d.vocab); });
  if (source.folder.empty() && !c.from_scratch && c.init_weights.empty() && !c.resumes_weights())
    rules.refuse("model", "a published shape has no weights here; give {}--init-weights PATH",
                 c.eval_only || c.sample_only ? "" : "--from-scratch, or ");
}

}  // namespace train_gpt
