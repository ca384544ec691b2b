#include "train_gpt/rules/training_rules.h"

#include <fmt/format.h>

#include <sherd/train/settings/duration.h>
#include <sherd/train/settings/fields.h>

#include "train_gpt/settings/settings.h"

namespace train_gpt {
void check_training(const TrainConfig& c, const std::set<std::string_view>& bad,
                    const sherd::GivenFlags& given, std::vector<std::string>& problems) {
  const auto good = [&](auto... names) { return !(bad.contains(names) || ...); };
  if (c.lr_schedule == "constant" && given.has("min_lr"))
    problems.push_back("--min-lr: a constant rate falls nowhere; give --lr-schedule cosine, linear or wsd");
  if (c.lr_schedule != "wsd" && given.has("decay_steps"))
    problems.push_back("--decay-steps: of --lr-schedule wsd alone; the others fall over all of --steps");
  if (c.lr_schedule != "constant" && good("lr", "min_lr") && c.min_lr && *c.min_lr > c.lr)
    problems.push_back(fmt::format("--min-lr {}: must not be greater than --lr {}", *c.min_lr, c.lr));
  if (c.lr_schedule == "wsd" && c.decay_steps == 0)
    problems.push_back("--lr-schedule wsd: give --decay-steps N, the last steps, in which the rate falls");
  if (c.lr_schedule == "wsd" && good("steps", "warmup", "decay_steps") && c.steps > 0 &&
      c.decay_steps > c.steps - c.warmup)
    problems.push_back(fmt::format("--decay-steps {}: must fit into --steps {} behind --warmup {}",
                                   c.decay_steps, c.steps, c.warmup));
  if (c.adam_beta1 == 1) problems.push_back("--adam-beta1 1: must be less than 1");
  if (c.adam_beta2 == 1) problems.push_back("--adam-beta2 1: must be less than 1");
}

void check_guards(const TrainConfig& c, const std::set<std::string_view>& bad, const sherd::GivenFlags& given,
                  std::vector<std::string>& problems) {
  const auto good = [&](auto... names) { return !(bad.contains(names) || ...); };
  if (good("verify_step", "steps", "stop_at") && c.steps > 0 && c.verify_step > c.last_step())
    problems.push_back(fmt::format("--verify-step {}: the run ends with step {}; give an earlier one",
                                   c.verify_step, c.last_step()));
  // On the command line alone: a config file may serve several arrangements of ranks.
  const bool repeats = c.tp > 1 || c.replicas > 1 || (c.ranks > 1 && c.strategy != "optim_grads_params");
  if (good("ranks", "replicas", "tp", "strategy") && given.has("check_replicas") && c.check_replicas > 0 &&
      !repeats)
    problems.push_back(
        fmt::format("--check-replicas {}: no two ranks hold the same weights with --ranks {} and --strategy "
                    "{}; leave it out, or "
                    "give --replicas",
                    c.check_replicas, c.ranks, c.strategy));
  if (!c.max_wall.empty() && sherd::parse_duration(c.max_wall).value_or(0) <= 0)
    problems.push_back(
        fmt::format("--max-wall {}: must be a time greater than 0, {}", c.max_wall, sherd::kDurationForms));
  if (c.save_retry != "0" && !sherd::parse_duration(c.save_retry))
    problems.push_back(fmt::format("--save-retry {}: must be a time, {}, or 0 for no further attempt",
                                   c.save_retry, sherd::kDurationForms));
}

void check_without_training(const TrainConfig& c, const sherd::GivenFlags& given,
                            std::vector<std::string>& problems) {
  if (c.temperature == 0 && given.has("top_p"))
    problems.push_back("--top-p: temperature 0 takes the likeliest byte; give one of the two");
  if (c.top_p == 0)
    problems.push_back("--top-p 0: must be greater than 0; --temperature 0 takes the likeliest byte");
  if (c.sample_bytes() == 0) {
    const std::string idle = given_flags(given, [&](const proto::Setting& s) {
      // The byte model has a line of its own on the latter.
      return needs(s, proto::NEEDS_TEXT) || (!c.model.empty() && needs(s, proto::NEEDS_MODEL_TEXT));
    });
    if (!idle.empty()) problems.push_back(fmt::format("{}: no text is generated; give --sample N", idle));
  }
  if (given.has("eval_windows") && !c.eval_only && (c.eval_every == 0 || !c.trains()))
    problems.push_back("--eval-windows: nothing is evaluated; give --eval-every N or --eval-only");
  if (c.keep_best && c.trains() && (c.save.empty() || c.eval_every == 0))
    problems.push_back(fmt::format("--keep-best: no checkpoint has an evaluation; give {}",
                                   c.save.empty() ? "--save FOLDER" : "--eval-every N"));
  if (!c.eval_only && !c.sample_only) return;
  const char* const flag = c.eval_only ? "--eval-only" : "--sample-only";
  if (c.eval_only && c.sample_only)
    problems.push_back(
        "--sample-only: --eval-only generates text as well, with --sample N; give one of the two");
  if (c.resume.empty() && c.init_weights.empty() && (c.model.empty() || c.from_scratch))
    problems.push_back(
        fmt::format("{}: of which model? Give --resume PATH, --init-weights PATH, or --model FOLDER", flag));
  if (c.resume_parts == "optimizer")
    problems.push_back(fmt::format("{}: --resume-parts optimizer takes no weights", flag));
  const auto is_idle = [&](const proto::Setting& s) {
    return needs(s, proto::NEEDS_TRAINING) || (c.sample_only && needs(s, proto::NEEDS_LOSS));
  };
  if (const std::string idle = given_flags(given, is_idle); !idle.empty())
    problems.push_back(fmt::format("{}: trains nothing and saves nothing; leave out {}", flag, idle));
}

}  // namespace train_gpt
