#include "train_gpt/rules/config_rules.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/fsdp/name_pattern.h>
#include <sherd/train/data/token_list.h>
#include <sherd/train/settings/duration.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/model_rules.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

/// Returns whether matrices are in buckets that span blocks (FullyShardOptions::layout).
bool has_buckets(const TrainConfig& c) {
  using sherd::Strategy;
  const bool splits_state =
      !c.strategy || c.strategy == Strategy::optim || c.strategy == Strategy::optim_grads ||
      (c.strategy == Strategy::no_shard && c.outer == sherd::Outer::optim && c.replicas > 1);
  return layout_of(c).policy == sherd::LayoutPolicy::whole_param && splits_state;
}

/// Returns whether several ranks hold the same weights.
bool repeats_weights(const TrainConfig& c) {
  return c.tp > 1 || c.replicas > 1 || (c.ranks > 1 && c.strategy != sherd::Strategy::optim_grads_params);
}

/// Ranks that compute with the same sequences.
int64_t ranks_of_a_sequence(const TrainConfig& c, const RuleCheck& rules) {
  return (rules.good("tp") ? c.tp : 1) * (rules.good("context") ? c.context : 1);
}

void check_ranks(const TrainConfig& c, const RuleCheck& rules) {
  const int64_t tp = rules.good("tp") ? c.tp : 1, shared = ranks_of_a_sequence(c, rules);
  const std::string words = (tp == 1 ? "" : fmt::format(" {} --tp {}", "{}", tp)) +
                            (shared == tp ? "" : fmt::format(" {} --context {}", "{}", shared / tp));
  const auto with = [&](const char* sign) { return fmt::format(fmt::runtime(words), sign, sign); };
  if (rules.good("ranks", "tp") && c.ranks % tp != 0) {
    rules.refuse("tp", "must divide --ranks {}", c.ranks);
  } else if (rules.good("ranks", "context") && c.ranks % shared != 0) {
    rules.add("context", fmt::format("--context {}{}: must divide --ranks {}", shared / tp,
                                     tp == 1 ? "" : fmt::format(" x --tp {} = {}", tp, shared), c.ranks));
  } else if (rules.good("ranks", "replicas") && c.ranks % (c.replicas * shared) != 0) {
    const std::string product = shared == 1 ? "" : fmt::format("{} = {}", with("x"), c.replicas * shared);
    rules.add("replicas",
              fmt::format("--replicas {}{}: must divide --ranks {}", c.replicas, product, c.ranks));
  }
  if (rules.good("context", "seq") && c.context > c.seq)
    rules.refuse("context", "sequences of --seq {} have fewer tokens than ranks", c.seq);
  if (rules.good("context", "sample") && c.context > 1 && c.sample_bytes() > 0)
    rules.refuse(
        "context",
        "text is generated from whole sequences; leave --sample out, and generate from the checkpoint in a "
        "run without --context");
  // One of a checkpoint waits for a run that has buckets again.
  if (rules.good("bucket_size", "strategy", "layout") && rules.given().by_anyone("bucket_size") &&
      c.bucket_size != TrainConfig().bucket_size && !has_buckets(c))
    rules.refuse("bucket_size",
                 "no bucket spans blocks; give --layout whole_param and --strategy optim or optim_grads");
  const bool split = rules.good("ranks", "grad_accum", "batch") && c.ranks % shared == 0;
  const int64_t shares = split ? c.ranks / shared * c.grad_accum : 1;
  // Evaluation and generated text need no equal shares.
  if (c.trains() && c.batch % shares != 0)
    rules.refuse(
        "batch",
        "must be a multiple of --ranks {}{} x --grad-accum {} = {}, so that every rank takes an equal share "
        "of each microbatch; e.g. {}",
        c.ranks, with("/"), c.grad_accum, shares, (c.batch / shares + 1) * shares);
}

void check_byte_model(const TrainConfig& c, const RuleCheck& rules) {
  const int64_t tp = rules.good("tp") ? c.tp : 1;
  std::vector<std::string> undivided;
  if (rules.good("heads") && c.heads % tp != 0) undivided.push_back(fmt::format("--heads {}", c.heads));
  if (rules.good("dim") && c.experts == 0 && 4 * c.dim % tp != 0)
    undivided.push_back(fmt::format("4 x --dim {}", c.dim));
  if (!undivided.empty()) rules.refuse("tp", "must divide {}", fmt::join(undivided, " and "));
  if (rules.good("heads", "context") && undivided.empty() && c.heads / tp % c.context != 0)
    rules.refuse("context", "must divide the {} heads of each rank (--heads {}{})", c.heads / tp, c.heads,
                 tp == 1 ? "" : fmt::format(" / --tp {}", tp));
  if (rules.good("dim", "heads") && c.dim % c.heads != 0)
    rules.refuse("dim", "must be a multiple of --heads {}, e.g. {}", c.heads,
                 (c.dim / c.heads + 1) * c.heads);
}

void check_experts(const TrainConfig& c, const RuleCheck& rules) {
  if (c.experts == 0) return;
  if (rules.good("experts", "expert_top_k") && c.expert_top_k > c.experts)
    rules.refuse("expert_top_k", "there are only --experts {}", c.experts);
  if (rules.good("experts", "expert_parallel") && c.experts % c.expert_parallel != 0)
    rules.refuse("expert_parallel", "must divide --experts {}", c.experts);
  if (rules.good("ranks", "expert_parallel") && c.ranks % c.expert_parallel != 0)
    rules.refuse("expert_parallel", "must divide --ranks {}", c.ranks);
}

void check_patterns(const TrainConfig& c, const RuleCheck& rules) {
  rules.collect("freeze", [&] { (void)sherd::NamePattern(c.freeze); });
  rules.collect("lora_targets", [&] { (void)sherd::NamePattern(c.lora_targets); });
}

void check_data(const TrainConfig& c, const RuleCheck& rules) {
  const auto parse = [&](auto list_of, const char* name, const std::string& list) {
    try {
      if (!list.empty()) list_of(list, sherd::flag_of(name));
    } catch (const sherd::InvalidArgument& e) {
      rules.add(name, e.what());
    }
  };
  parse(sherd::parse_token_list, "tokens", c.tokens);
  parse(sherd::parse_token_list, "sft", c.sft);
  parse(sherd::parse_unweighted_token_list, "valid_tokens", c.valid_tokens);
  parse(sherd::parse_evaluation_list, "eval_data", c.eval_data);
  if (c.data.empty() && !c.has_tokens() && (c.trains() || c.eval_only))
    rules.add("data", "--data: the path is empty; name a file or a folder");
  if (!c.resume.empty() && !c.init_weights.empty() && c.resumes_weights())
    rules.add("init_weights", "--init-weights: --resume brings weights, too; give one of the two");
  if (c.model.empty()) return;
  if (!c.has_tokens() && (c.trains() || c.eval_only))
    rules.refuse("model",
                 "takes tokens; give --tokens or --sft FILE (scripts/tokenize.py makes them), or --steps 0");
  if (c.sample_bytes() > 0 && c.prompt.empty() && c.prompt_tokens.empty())
    rules.add("sample",
              "--sample: of a --model begins with a text; give --prompt TEXT, or its tokens with "
              "--prompt-tokens LIST");
}

void check_schedule(const TrainConfig& c, const RuleCheck& rules) {
  const bool falls = c.lr_schedule != sherd::RateDecay::constant;
  if (falls && rules.good("lr", "min_lr") && c.min_lr && *c.min_lr > c.lr)
    rules.refuse("min_lr", "must not be greater than --lr {}", c.lr);
  if (c.lr_schedule == sherd::RateDecay::wsd && rules.good("steps", "warmup", "decay_steps") && c.steps > 0 &&
      c.decay_steps > c.steps - c.warmup)
    rules.refuse("decay_steps", "must fit into --steps {} behind --warmup {}", c.steps, c.warmup);
}

void check_guards(const TrainConfig& c, const RuleCheck& rules) {
  if (rules.good("verify_step", "steps", "stop_at") && c.steps > 0 && c.verify_step > c.last_step())
    rules.refuse("verify_step", "the run ends with step {}; give an earlier one", c.last_step());
  // On the command line alone: a config file may serve several arrangements of ranks.
  if (rules.good("ranks", "replicas", "tp", "strategy") && rules.given().flags.has("check_replicas") &&
      c.check_replicas > 0 && !repeats_weights(c))
    rules.refuse(
        "check_replicas",
        "no two ranks hold the same weights with --ranks {} and --strategy {}; leave it out, or give "
        "--replicas",
        c.ranks, word_of(*c.strategy));
  if (!c.max_wall.empty() && sherd::parse_duration(c.max_wall).value_or(0) <= 0)
    rules.refuse("max_wall", "must be a time greater than 0, {}", sherd::kDurationForms);
  if (c.save_retry != "0" && !sherd::parse_duration(c.save_retry))
    rules.refuse("save_retry", "must be a time, {}, or 0 for no further attempt", sherd::kDurationForms);
}

void check_work(const TrainConfig& c, const RuleCheck& rules) {
  if (rules.given().flags.has("eval_windows") && !c.eval_only && (c.eval_every == 0 || !c.trains()))
    rules.add("eval_windows", "--eval-windows: nothing is evaluated; give --eval-every N or --eval-only");
  if (c.keep_best && c.trains() && (c.save.empty() || c.eval_every == 0))
    rules.refuse("keep_best", "no checkpoint has an evaluation; give {}",
                 c.save.empty() ? "--save FOLDER" : "--eval-every N");
  if ((c.eval_only || c.sample_only) && c.resume.empty() && c.init_weights.empty() &&
      (c.model.empty() || c.from_scratch))
    rules.refuse(c.eval_only ? "eval_only" : "sample_only",
                 "of which model? Give --resume PATH, --init-weights PATH, or --model FOLDER");
}

}  // namespace

void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad, const Given& given,
                 std::vector<std::string>& problems, const ModelSource* source) {
  const RuleCheck rules(config, TrainConfig(), given, bad, problems);
  rules.check_all();
  check_ranks(config, rules);
  if (config.model.empty()) check_byte_model(config, rules);
  check_experts(config, rules);
  check_patterns(config, rules);
  check_data(config, rules);
  check_schedule(config, rules);
  check_guards(config, rules);
  check_work(config, rules);
  check_optimizers(config, rules);
  if (source) check_model(config, *source, rules);
}

std::vector<std::string> idle_under_strategy(const TrainConfig& c) {
  std::vector<std::string> idle;
  if (c.bucket_size != TrainConfig().bucket_size && !has_buckets(c))
    idle.push_back(sherd::flag_of("bucket_size"));
  if (c.check_replicas > 0 && !repeats_weights(c)) idle.push_back(sherd::flag_of("check_replicas"));
  return idle;
}

}  // namespace train_gpt
