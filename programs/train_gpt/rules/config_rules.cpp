#include "train_gpt/rules/config_rules.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/fsdp/name_pattern.h>
#include <sherd/train/data/token_list.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/training_rules.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

/// Returns the sizes that the tensor-parallel ranks cannot share evenly, as a list; empty without any.
std::string undivided(const TrainConfig& c, int64_t tp, const std::set<std::string_view>& bad) {
  std::vector<std::string> list;
  if (!bad.contains("heads") && c.heads % tp != 0) list.push_back(fmt::format("--heads {}", c.heads));
  if (!bad.contains("dim") && 4 * c.dim % tp != 0) list.push_back(fmt::format("4 x --dim {}", c.dim));
  if (kBytes % tp != 0) list.push_back(fmt::format("the {} byte values", kBytes));
  return fmt::format("{}", fmt::join(list, " and "));
}

/// Settings that differ from their defaults although the run lacks what they need, as a list of flags.
std::string idle_flags(const TrainConfig& c, const std::set<std::string_view>& bad, proto::Need need) {
  const auto idle = [&](std::string_view name) {
    return !bad.contains(name) && needs(setting_of(name), need);
  };
  return fmt::format("{}", fmt::join(changed_flags(c, TrainConfig(), idle), ", "));
}

/// Returns whether matrices are in buckets that span blocks (FullyShardOptions::layout).
bool has_buckets(const TrainConfig& c) {
  const bool splits_state = c.strategy == "optim" || c.strategy == "optim_grads" ||
                            (c.strategy == "no_shard" && c.outer == "optim" && c.replicas > 1);
  return c.layout.starts_with("whole_param") && splits_state;
}

/// The rules of a part of the settings; `bad` as in check_rules().
struct Rules {
  const TrainConfig& c;
  const std::set<std::string_view>& bad;
  const Given& given;
  std::vector<std::string>& problems;

  /// Returns whether all of these are inside their own bounds.
  bool good(auto... names) const { return !(bad.contains(names) || ...); }
  template <class... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    problems.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_ranks() const;
  void check_experts() const;
  void check_frozen() const;
  void check_machine() const;
  void check_checkpoints() const;
  void check_outputs() const;
};

void Rules::check_ranks() const {
  const int64_t tp = good("tp") ? c.tp : 1;
  if (good("ranks", "tp") && c.ranks % tp != 0) {
    refuse("--tp {}: must divide --ranks {}", tp, c.ranks);
  } else if (good("ranks", "replicas") && c.ranks % (c.replicas * tp) != 0) {
    const std::string product = tp == 1 ? "" : fmt::format(" x --tp {} = {}", tp, c.replicas * tp);
    refuse("--replicas {}{}: must divide --ranks {}", c.replicas, product, c.ranks);
  }
  if (const std::string wrong = undivided(c, tp, bad); !wrong.empty() && c.model.empty())
    refuse("--tp {}: must divide {}", tp, wrong);
  if (c.model.empty() && good("dim", "heads") && c.dim % c.heads != 0)
    refuse("--dim {}: must be a multiple of --heads {}, e.g. {}", c.dim, c.heads,
           (c.dim / c.heads + 1) * c.heads);
  if (c.sequence_parallel && c.model.empty())
    refuse("--sequence-parallel: the byte model keeps all rows on every rank; give --model, or leave it out");
  // One of a checkpoint waits for a run that has buckets again.
  if (good("bucket_size", "strategy", "layout") && given.by_anyone("bucket_size") &&
      c.bucket_size != TrainConfig().bucket_size && !has_buckets(c))
    refuse(
        "--bucket-size {}: no bucket spans blocks; give --layout whole_param and --strategy "
        "optim or "
        "optim_grads",
        c.bucket_size);
  const bool split = good("ranks", "grad_accum", "batch") && c.ranks % tp == 0;
  const int64_t shares = split ? c.ranks / tp * c.grad_accum : 1;
  // Evaluation and generated text need no equal shares.
  if (c.trains() && c.batch % shares != 0)
    refuse(
        "--batch {}: must be a multiple of --ranks {}{} x --grad-accum {} = {}, so that every rank takes an "
        "equal share "
        "of each microbatch; e.g. {}",
        c.batch, c.ranks, tp == 1 ? "" : fmt::format(" / --tp {}", tp), c.grad_accum, shares,
        (c.batch / shares + 1) * shares);
}

void Rules::check_experts() const {
  if (c.experts == 0) {
    if (const std::string idle = idle_flags(c, bad, proto::NEEDS_EXPERTS); !idle.empty())
      refuse("{}: the model has no experts; give --experts", idle);
    return;
  }
  if (good("experts", "expert_top_k") && c.expert_top_k > c.experts)
    refuse("--expert-top-k {}: there are only --experts {}", c.expert_top_k, c.experts);
  if (good("experts", "expert_parallel") && c.experts % c.expert_parallel != 0)
    refuse("--expert-parallel {}: must divide --experts {}", c.expert_parallel, c.experts);
  if (good("ranks", "expert_parallel") && c.ranks % c.expert_parallel != 0)
    refuse("--expert-parallel {}: must divide --ranks {}", c.expert_parallel, c.ranks);
  if (c.model.empty() && c.moe_bias_speed > 0)
    refuse(
        "--moe-bias-speed {}: the experts of --experts have no selection bias; use --model of deepseek_v3, "
        "kimi_k2 or glm4_moe",
        c.moe_bias_speed);
  if (c.model.empty() && c.experts > 0 && good("tp") && c.tp > 1)
    refuse("--tp {}: blocks with --experts are not cut; use one of the two", c.tp);
}

void Rules::check_frozen() const {
  const auto require_pattern = [&](const char* flag, const std::string& pattern) {
    try {
      (void)sherd::NamePattern(pattern);
    } catch (const sherd::InvalidArgument& e) {
      refuse("{} {}", flag, e.what());
    }
  };
  require_pattern("--freeze", c.freeze);
  require_pattern("--lora-targets", c.lora_targets);
  if (c.lora_rank == 0) {
    const auto of_adapters = [](std::string_view name) {
      return name == "lora_alpha" || name == "lora_targets";
    };
    const std::string idle = fmt::format("{}", fmt::join(changed_flags(c, TrainConfig(), of_adapters), ", "));
    if (!idle.empty()) refuse("{}: the model has no adapters; give --lora-rank R", idle);
    if (!c.export_adapter.empty()) refuse("--export-adapter: the model has no adapters; give --lora-rank R");
    return;
  }
  if (c.model.empty()) refuse("--lora-rank {}: the byte model has no adapters; give --model", c.lora_rank);
  if (c.mtp_weight > 0)
    refuse("--mtp-weight {}: adapters leave the head as it is; leave it, or --lora-rank, out", c.mtp_weight);
  if (c.lora_alpha == 0) refuse("--lora-alpha 0: must be greater than 0");
  if (c.qk_clip > 0)
    refuse("--qk-clip {}: adapters leave the weights as they are; leave it, or --lora-rank, out", c.qk_clip);
}

void Rules::check_machine() const {
  if (c.comm_timeout == 0) refuse("--comm-timeout 0: must be greater than 0 seconds");
  if (c.comm == "nccl" && c.device == "cpu")
    refuse("--comm nccl: moves memory between GPUs; give --device cuda, or leave --comm local");
  if (c.comm == "mpi" && c.device == "cuda")
    refuse("--comm mpi: moves memory of CPUs; give --comm nccl, or leave --device cpu");
  // The default is of other backends.
  if (c.comm == "mpi" && good("bootstrap") && c.bootstrap == "env" && given.by_anyone("bootstrap"))
    refuse(
        "--bootstrap env: ranks of --comm mpi always meet over MPI, which also distributes the job's secret; "
        "leave it out, or give --bootstrap mpi");
  if (c.comm == "mpi" && good("bootstrap") && c.bootstrap == "none")
    refuse(
        "--bootstrap none: ranks of --comm mpi are the processes of a job; leave it out, or give --comm "
        "local");
  if (good("kernels") && c.kernels != TrainConfig().kernels && c.device == "cuda")
    refuse("--kernels {}: of CPUs alone; give --device cpu, or leave it out", c.kernels);
  if (c.mpi_library_order && c.comm != "mpi" && c.comm != "auto")
    refuse("--mpi-library-order: of MPI alone; give --comm mpi");
  if (c.comm != "nccl") {
    std::vector<std::string> idle;
    // MPI's own ranks use it in any case.
    if (good("bootstrap") && c.bootstrap == "mpi" && c.comm != "mpi") idle.push_back("--bootstrap mpi");
    if (std::string nccl = idle_flags(c, bad, proto::NEEDS_NCCL); !nccl.empty())
      idle.push_back(std::move(nccl));
    if (!idle.empty()) refuse("{}: of NCCL alone; give --comm nccl", fmt::join(idle, ", "));
  }
  if (good("symmetric_products") && c.symmetric_products != TrainConfig().symmetric_products &&
      c.device == "cpu")
    refuse("--symmetric-products {}: of GPUs alone; give --device cuda", c.symmetric_products);
  if (good("attention") && c.attention != TrainConfig().attention && c.device == "cpu")
    refuse("--attention {}: of GPUs alone; give --device cuda", c.attention);
  if (c.tf32 && c.device == "cpu")
    refuse("--tf32: products on the CPU are never rounded so; give --device cuda, or leave it out");
}

void Rules::check_checkpoints() const {
  if (c.save.empty() && c.overwrite) refuse("--overwrite: nothing is saved without --save DIR");
  if (c.save.empty() && (c.save_every > 0 || c.keep > 0))
    refuse("{} {}: nothing is saved without --save DIR", c.save_every > 0 ? "--save-every" : "--keep",
           c.save_every > 0 ? c.save_every : c.keep);
  if (!c.resume.empty() && !c.init_weights.empty() && c.resume_parts != "optimizer")
    refuse("--init-weights: --resume brings weights, too; give one of the two");
  if (!c.resume.empty() && c.resume_parts == "optimizer" && c.steps == 0)
    refuse("--resume-parts optimizer: with --steps 0 the run has no optimizer to load into");
  if (c.resume.empty() && (c.allow_new_state || c.resume_parts != "all"))
    refuse("--{}: nothing is resumed without --resume PATH",
           c.allow_new_state ? "allow-new-state" : "resume-parts");
}

void Rules::check_outputs() const {
  if (good("export_dtype") && c.export_dtype != TrainConfig().export_dtype && c.export_weights.empty())
    refuse("--export-dtype {}: nothing is exported; give --export-weights", c.export_dtype);
  if (good("max_skipped_steps") && !c.skip_non_finite &&
      c.max_skipped_steps != TrainConfig().max_skipped_steps)
    refuse("--max-skipped-steps {}: no step is skipped with --skip-non-finite false", c.max_skipped_steps);
  if (good("trace_steps") && c.trace_steps != TrainConfig().trace_steps && c.trace.empty() &&
      c.timeline.empty())
    refuse("--trace-steps {}: nothing is traced; give --trace or --timeline", c.trace_steps);
}

/// Rules among several fields, where each is inside its own bounds.
void check_together(const Rules& rules) {
  const TrainConfig& c = rules.c;
  if (c.lr == 0) rules.refuse("--lr 0: must be greater than 0; --steps 0 is the way not to train");
  if (c.data.empty() && !c.has_tokens()) rules.refuse("--data: the path is empty; name a file or a folder");
  rules.check_ranks();
  rules.check_experts();
  rules.check_frozen();
  rules.check_machine();
  rules.check_checkpoints();
  rules.check_outputs();
  if (!rules.good("ns_steps", "muon_mode")) return;
  for (std::string& problem : optimizer_problems(c)) rules.problems.push_back(std::move(problem));
}

/// Rules of --tokens and --model.
void check_data_and_model(const TrainConfig& c, const Given& given, std::vector<std::string>& problems) {
  const auto collect = [&](auto parse, const std::string& list, const char* flag) {
    try {
      if (!list.empty()) parse(list, flag);
    } catch (const sherd::InvalidArgument& e) {
      problems.push_back(e.what());
    }
  };
  collect(sherd::parse_token_list, c.tokens, "--tokens");
  collect(sherd::parse_token_list, c.sft, "--sft");
  collect(sherd::parse_unweighted_token_list, c.valid_tokens, "--valid-tokens");
  collect(sherd::parse_evaluation_list, c.eval_data, "--eval-data");
  if (!c.eval_data.empty() && !c.valid_tokens.empty())
    problems.push_back("--eval-data: --valid-tokens is what is evaluated; give one of the two");
  if (c.has_tokens() && given.flags.has("data"))
    problems.push_back(fmt::format("--data: {} is what is trained on; give one of the two",
                                   c.sft.empty() ? "--tokens" : "--sft"));
  if (!c.tokens.empty() && !c.sft.empty())
    problems.push_back("--sft: --tokens is what is trained on; give one of the two");
  if (c.packing && c.sft.empty())
    problems.push_back("--packing: windows have no examples to pack; give --sft");
  if (c.packing && c.model.empty())
    problems.push_back("--packing: the byte model's learned positions do not restart in a row; give --model");
  if (!c.has_tokens() && !c.model.empty() && (c.trains() || c.eval_only))
    problems.push_back(
        fmt::format("--model {}: takes tokens; give --tokens or --sft FILE (scripts/tokenize.py makes them), "
                    "or --steps 0",
                    c.model));
  if (c.tokens.empty() && ((c.valid_tokens.empty() && c.eval_data.empty()) || !c.sft.empty()) &&
      c.token_format != TrainConfig().token_format)
    problems.push_back(
        fmt::format("--token-format {}: token files are missing; give --tokens", c.token_format));
  std::vector<std::string> own;
  for (const std::string_view name :
       settings_where([](const proto::Setting& s) { return needs(s, proto::NEEDS_BYTE_MODEL); }))
    if (given.by_anyone(name)) own.push_back(sherd::flag_of(name));
  if (!c.model.empty() && !own.empty())
    problems.push_back(fmt::format("{}: --model {} has sizes of its own", fmt::join(own, ", "), c.model));
  if (!c.model.empty() && c.sample_bytes() > 0 && c.prompt_tokens.empty())
    problems.push_back(
        "--sample: of a --model begins with tokens; give --prompt-tokens LIST (a text's, by "
        "scripts/tokenize.py --prompt)");
  if (!c.model.empty() && !c.prompt.empty())
    problems.push_back(
        "--prompt: text for a --model is not encoded here; give --prompt-tokens \"$(scripts/tokenize.py "
        "--tokenizer "
        "tokenizer.json --prompt TEXT)\"");
  if (given.flags.has("sequence_parallel") && c.sequence_parallel && c.tp == 1)
    problems.push_back(
        "--sequence-parallel: rows are split over the ranks of --tp, of which there is one; give --tp N");
  if (c.model.empty()) {
    if (c.mtp_weight > 0)
      problems.push_back(
          fmt::format("--mtp-weight {}: the byte model has no head for multi-token prediction; give --model",
                      c.mtp_weight));
    if (c.from_scratch) problems.push_back("--from-scratch: the byte model always is; give --model");
    if (!c.export_hf.empty())
      problems.push_back(
          "--export-hf: the byte model is none of transformers'; give --model, or --export-weights");
    if (!c.prompt_tokens.empty())
      problems.push_back("--prompt-tokens: the byte model's prompt is text; give --prompt");
    if (!c.tokenizer.empty()) problems.push_back("--tokenizer: the byte model needs none; give --model");
  }
}

}  // namespace

void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad, const Given& given,
                 std::vector<std::string>& problems) {
  check_together({config, bad, given, problems});
  check_data_and_model(config, given, problems);
  check_training(config, bad, given.flags, problems);
  check_guards(config, bad, given.flags, problems);
  check_without_training(config, given.flags, problems);
  for (std::string& problem : idle_optimizer_flags(config, given.flags))
    problems.push_back(std::move(problem));
}

}  // namespace train_gpt
