#include "train_gpt/rules/model_rules.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/nn/hf/adapter_folder.h>

namespace train_gpt {
namespace {

template <class Check>
void collect(std::vector<std::string>& problems, Check check) {
  try {
    check();
  } catch (const sherd::InvalidArgument& e) {
    problems.push_back(e.what());
  }
}

/// Checks the folder of adapters in --init-weights against the flags.
void check_adapters(const TrainConfig& c, const ModelSource& source, std::vector<std::string>& problems) {
  if (!begins_with_adapters(c)) return;
  collect(problems, [&] {
    const sherd::hf::AdapterConfig config = sherd::hf::read_adapter_config(c.init_weights);
    if (c.lora_rank > 0) return require_same(config, lora_options(c));
    problems.push_back(
        fmt::format("--init-weights {}: it holds adapters, and the model has none; give --lora-rank {} "
                    "--lora-alpha {} and the --lora-targets of their modules",
                    c.init_weights, config.rank, config.alpha));
  });
  if (source.folder.empty() && !c.from_scratch)
    problems.push_back(
        fmt::format("--init-weights {}: it holds adapters alone, and --model {} has no weights here; name "
                    "the folder that "
                    "has them by --model",
                    c.init_weights, c.model));
}

/// Checks the conditions of causal_model() before there are ranks, with flags instead of the library's
/// options.
void check_tensor_parallel(const TrainConfig& c, const ModelSource& source,
                           std::vector<std::string>& problems) {
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
    problems.push_back(
        fmt::format("--tp {}: must, of --model {}, divide {}", c.tp, c.model, fmt::join(undivided, " and ")));
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
          "--prompt-tokens {}: '{}' is not a token; give numbers below {} with commas between them", list,
          word, vocab));
    tokens.push_back(token);
    at = end + 1;
  }
  return tokens;
}

void check_model(const TrainConfig& c, const ModelSource& source, std::vector<std::string>& problems) {
  if (c.trains() || c.eval_only)
    collect(problems, [&] { sherd::hf::require_sequence(source.config, c.seq); });
  check_tensor_parallel(c, source, problems);
  check_adapters(c, source, problems);
  if (c.moe_bias_speed > 0 && !routes_in_groups(source.config.description))
    problems.push_back(fmt::format(
        "--moe-bias-speed {}: --model {} is of family {}, which has no selection bias; leave it out",
        c.moe_bias_speed, c.model, to_string(source.config.description.family)));
  if (c.mtp_weight > 0 && source.config.mtp_layers != 1)
    problems.push_back(
        fmt::format("--mtp-weight {}: --model {} has {} heads for multi-token prediction "
                    "(\"num_nextn_predict_layers\" in "
                    "config.json), and models with one are trained; leave it out",
                    c.mtp_weight, c.model, source.config.mtp_layers));
  const sherd::nn::ModelDescription& d = source.config.description;
  if (c.qk_clip > 0 && (d.qk_norm || d.family == sherd::nn::ModelFamily::gpt2))
    problems.push_back(
        fmt::format("--qk-clip {}: --model {} {}; leave it out", c.qk_clip, c.model,
                    d.qk_norm ? "normalises queries and keys, whose logits do not follow from their weights"
                              : "has weights [in, out], which are not clipped"));
  if (c.lora_rank > 0 && source.config.description.family == sherd::nn::ModelFamily::gpt2)
    problems.push_back(
        fmt::format("--lora-rank {}: --model {} is of family gpt2, which has no adapters; leave it out",
                    c.lora_rank, c.model));
  if (c.packing && source.config.description.family == sherd::nn::ModelFamily::gpt2)
    problems.push_back(fmt::format(
        "--packing: the learned positions of --model {} do not restart in a row; leave it out", c.model));
  if (c.sample_bytes() > 0 && !c.prompt_tokens.empty())
    collect(problems, [&] { parse_prompt_tokens(c.prompt_tokens, source.config.description.vocab); });
  if (source.folder.empty() && !c.from_scratch && c.init_weights.empty() && !c.resumes_weights())
    problems.push_back(
        fmt::format("--model {}: a published shape has no weights here; give {}--init-weights PATH", c.model,
                    c.eval_only || c.sample_only ? "" : "--from-scratch, or "));
}

}  // namespace train_gpt
