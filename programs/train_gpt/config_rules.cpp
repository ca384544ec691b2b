#include "config_rules.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/kernels/device/error.h>
#include <sherd/train/data/token_list.h>

#include "config_fields.h"
#include "model.h"
#include "muon_config.h"
#include "training_rules.h"

namespace train_gpt {
namespace {

/// What the tensor-parallel ranks cannot share evenly, as a list; empty when they can.
std::string undivided(const TrainConfig& c, int64_t tp, const std::set<std::string_view>& bad) {
  std::vector<std::string> list;
  if (!bad.contains("heads") && c.heads % tp != 0) list.push_back(fmt::format("--heads {}", c.heads));
  if (!bad.contains("dim") && 4 * c.dim % tp != 0) list.push_back(fmt::format("4 x --dim {}", c.dim));
  if (GptShape::kVocab % tp != 0) list.push_back(fmt::format("the {} byte values", GptShape::kVocab));
  return fmt::format("{}", fmt::join(list, " and "));
}

/// Flags of the experts that say something else than their default, as a list.
std::string idle_expert_flags(const TrainConfig& c, const std::set<std::string_view>& bad) {
  const TrainConfig standard;
  std::vector<std::string> list;
  if (!bad.contains("expert_parallel") && c.expert_parallel != standard.expert_parallel)
    list.push_back(fmt::format("--expert-parallel {}", c.expert_parallel));
  if (!bad.contains("expert_top_k") && c.expert_top_k != standard.expert_top_k)
    list.push_back(fmt::format("--expert-top-k {}", c.expert_top_k));
  if (!bad.contains("moe_aux") && c.moe_aux != standard.moe_aux)
    list.push_back(fmt::format("--moe-aux {}", c.moe_aux));
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Flags of NCCL that say something else than their default, as a list.
std::string idle_nccl_flags(const TrainConfig& c, const std::set<std::string_view>& bad) {
  std::vector<std::string> list;
  // MPI's own ranks meet by it anyway.
  if (!bad.contains("bootstrap") && c.bootstrap == "mpi" && c.comm != "mpi")
    list.push_back("--bootstrap " + c.bootstrap);
  if (c.nccl_exact_order) list.push_back("--nccl-exact-order");
  if (c.nccl_check_calls) list.push_back("--nccl-check-calls");
  if (c.nccl_register_buffers) list.push_back("--nccl-register-buffers");
  if (c.nccl_windows) list.push_back("--nccl-windows");
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Flags of Muon on the command line, as a list; a file of settings may hold some for whoever switches it on.
std::string idle_muon_flags(const sherd::GivenFlags& given) {
  const auto muon = names_of_group("Muon");
  std::vector<std::string> list;
  for (const auto& [field, text] : given.flags)
    if (std::find(muon.begin(), muon.end(), field->name) != muon.end()) list.push_back(flag_of(*field));
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Whether matrices lie in buckets that span blocks (FullyShardOptions::layout).
bool has_buckets(const TrainConfig& c) {
  const bool splits_state = c.strategy == "optim" || c.strategy == "optim_grads" ||
                            (c.strategy == "no_shard" && c.outer == "optim" && c.replicas > 1);
  return c.layout.starts_with("whole_param") && splits_state;
}

/// Rules among several fields, where each is inside its own bounds; `bad` names those that are not.
void check_together(const TrainConfig& c, const std::set<std::string_view>& bad, const Given& given,
                    std::vector<std::string>& problems) {
  const auto good = [&](auto... names) { return !(bad.contains(names) || ...); };
  if (c.lr == 0) problems.push_back("--lr 0: must be greater than 0; --steps 0 is the way not to train");
  if (c.comm_timeout == 0) problems.push_back("--comm-timeout 0: must be greater than 0 seconds");
  if (c.data.empty() && c.tokens.empty()) problems.push_back("--data: the path is empty; name a file or a folder");
  const int64_t tp = good("tp") ? c.tp : 1;
  if (good("ranks", "tp") && c.ranks % tp != 0) {
    problems.push_back(fmt::format("--tp {}: must divide --ranks {}", tp, c.ranks));
  } else if (good("ranks", "replicas") && c.ranks % (c.replicas * tp) != 0) {
    const std::string product = tp == 1 ? "" : fmt::format(" x --tp {} = {}", tp, c.replicas * tp);
    problems.push_back(fmt::format("--replicas {}{}: must divide --ranks {}", c.replicas, product, c.ranks));
  }
  if (const std::string wrong = undivided(c, tp, bad); !wrong.empty() && c.model.empty()) {
    problems.push_back(fmt::format("--tp {}: must divide {}", tp, wrong));
  }
  if (c.model.empty() && good("dim", "heads") && c.dim % c.heads != 0) {
    problems.push_back(fmt::format("--dim {}: must be a multiple of --heads {}, e.g. {}", c.dim, c.heads,
                                   (c.dim / c.heads + 1) * c.heads));
  }
  if (const std::string idle = idle_expert_flags(c, bad); c.experts == 0 && !idle.empty())
    problems.push_back(fmt::format("{}: there are no experts; give --experts", idle));
  if (c.experts > 0 && good("experts", "expert_top_k") && c.expert_top_k > c.experts)
    problems.push_back(
        fmt::format("--expert-top-k {}: there are only --experts {}", c.expert_top_k, c.experts));
  if (c.experts > 0 && good("experts", "expert_parallel") && c.experts % c.expert_parallel != 0)
    problems.push_back(
        fmt::format("--expert-parallel {}: must divide --experts {}", c.expert_parallel, c.experts));
  if (c.experts > 0 && good("ranks", "expert_parallel") && c.ranks % c.expert_parallel != 0)
    problems.push_back(
        fmt::format("--expert-parallel {}: must divide --ranks {}", c.expert_parallel, c.ranks));
  if (c.sequence_parallel && c.model.empty())
    problems.push_back(
        "--sequence-parallel: the byte model keeps all rows on every rank; give --model, or leave it out");
  if (c.model.empty() && c.experts > 0 && tp > 1)
    problems.push_back(fmt::format("--tp {}: blocks with --experts are not cut; use one of the two", tp));
  // One of a checkpoint waits for a run that has buckets again.
  if (good("bucket_size", "strategy", "layout") && given.by_anyone("bucket_size") &&
      c.bucket_size != TrainConfig().bucket_size && !has_buckets(c))
    problems.push_back(fmt::format("--bucket-size {}: there are no buckets that span blocks; give --layout whole_param "
                                   "and --strategy optim or optim_grads",
                                   c.bucket_size));
  if (c.comm == "nccl" && c.device == "cpu")
    problems.push_back("--comm nccl: moves memory between GPUs; give --device cuda, or leave --comm local");
  if (c.comm == "mpi" && c.device == "cuda")
    problems.push_back("--comm mpi: moves memory of CPUs; give --comm nccl, or leave --device cpu");
  if (c.mpi_library_order && c.comm != "mpi" && c.comm != "auto")
    problems.push_back("--mpi-library-order: of MPI alone; give --comm mpi");
  if (const std::string idle = idle_nccl_flags(c, bad); c.comm != "nccl" && !idle.empty())
    problems.push_back(fmt::format("{}: of NCCL alone; give --comm nccl", idle));
  if (good("symmetric_products") && c.symmetric_products != TrainConfig().symmetric_products &&
      c.device == "cpu")
    problems.push_back(
        fmt::format("--symmetric-products {}: of GPUs alone; give --device cuda", c.symmetric_products));
  if (c.tf32 && c.device == "cpu")
    problems.push_back(
        "--tf32: products on the cpu are never rounded so; give --device cuda, or leave it out");
  if (c.save.empty() && c.overwrite) problems.push_back("--overwrite: nothing is saved without --save DIR");
  if (c.save.empty() && (c.save_every > 0 || c.keep > 0))
    problems.push_back(fmt::format("{} {}: nothing is saved without --save DIR",
                                   c.save_every > 0 ? "--save-every" : "--keep",
                                   c.save_every > 0 ? c.save_every : c.keep));
  if (!c.resume.empty() && !c.init_weights.empty() && c.resume_parts != "optimizer")
    problems.push_back("--init-weights: --resume brings weights, too; give one of the two");
  if (!c.resume.empty() && c.resume_parts == "optimizer" && c.steps == 0)
    problems.push_back("--resume-parts optimizer: with --steps 0 there is no optimizer to load into");
  if (c.resume.empty() && (c.allow_new_state || c.resume_parts != "all"))
    problems.push_back(fmt::format("--{}: there is nothing to resume without --resume PATH",
                                   c.allow_new_state ? "allow-new-state" : "resume-parts"));
  if (good("export_dtype") && c.export_dtype != TrainConfig().export_dtype && c.export_weights.empty())
    problems.push_back(
        fmt::format("--export-dtype {}: nothing is exported; give --export-weights", c.export_dtype));
  if (good("max_skipped_steps") && !c.skip_non_finite &&
      c.max_skipped_steps != TrainConfig().max_skipped_steps)
    problems.push_back(fmt::format("--max-skipped-steps {}: no step is skipped with --skip-non-finite false",
                                   c.max_skipped_steps));
  if (good("trace_steps") && c.trace_steps != TrainConfig().trace_steps && c.trace.empty() &&
      c.timeline.empty())
    problems.push_back(
        fmt::format("--trace-steps {}: nothing is traced; give --trace or --timeline", c.trace_steps));
  if (good("ns_steps", "muon_mode"))
    for (std::string& problem : muon_problems(c)) problems.push_back(std::move(problem));
  const bool split = good("ranks", "grad_accum", "batch") && c.ranks % tp == 0;
  const int64_t shares = split ? c.ranks / tp * c.grad_accum : 1;
  // Evaluation and generated text need no equal shares.
  if (c.trains() && c.batch % shares != 0) {
    problems.push_back(fmt::format(
        "--batch {}: must be a multiple of --ranks {}{} x --grad-accum {} = {}, so that every rank "
        "takes an equal share "
        "of each microbatch; e.g. {}",
        c.batch, c.ranks, tp == 1 ? "" : fmt::format(" / --tp {}", tp), c.grad_accum, shares,
        (c.batch / shares + 1) * shares));
  }
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
  collect(sherd::parse_unweighted_token_list, c.valid_tokens, "--valid-tokens");
  if (!c.tokens.empty() && given.flags.has("data"))
    problems.push_back("--data: --tokens is what is trained on; give one of the two");
  if (c.tokens.empty() && !c.model.empty() && (c.trains() || c.eval_only))
    problems.push_back(fmt::format("--model {}: takes tokens; give --tokens FILE (scripts/tokenize.py makes one), "
                                   "or --steps 0",
                                   c.model));
  if (c.tokens.empty() && c.valid_tokens.empty() && c.token_format != TrainConfig().token_format)
    problems.push_back(fmt::format("--token-format {}: there are no token files; give --tokens", c.token_format));
  std::vector<std::string> own;
  for (const char* name : {"dim", "layers", "heads", "experts", "expert_top_k"})
    if (given.by_anyone(name))
      own.push_back(name == std::string_view("expert_top_k") ? "--expert-top-k" : fmt::format("--{}", name));
  if (!c.model.empty() && !own.empty())
    problems.push_back(fmt::format("{}: --model {} has sizes of its own", fmt::join(own, ", "), c.model));
  if (!c.model.empty() && c.sample_bytes() > 0 && c.prompt_tokens.empty())
    problems.push_back("--sample: of a --model begins with tokens; give --prompt-tokens (a text's, by scripts/tokenize.py)");
  if (!c.model.empty() && !c.prompt.empty())
    problems.push_back("--prompt: text is not made into tokens here; give --prompt-tokens, by scripts/tokenize.py");
  if (given.flags.has("sequence_parallel") && c.sequence_parallel && c.tp == 1)
    problems.push_back(
        "--sequence-parallel: rows are split over the ranks of --tp, of which there is one; give --tp N");
  if (c.model.empty()) {
    if (c.from_scratch) problems.push_back("--from-scratch: the byte model always is; give --model");
    if (!c.export_hf.empty())
      problems.push_back("--export-hf: the byte model is none of transformers'; give --model, or --export-weights");
    if (!c.prompt_tokens.empty()) problems.push_back("--prompt-tokens: the byte model's prompt is text; give --prompt");
    if (!c.tokenizer.empty()) problems.push_back("--tokenizer: the byte model needs none; give --model");
  }
}

}  // namespace

void check_rules(const TrainConfig& config, const std::set<std::string_view>& bad, const Given& given,
                 std::vector<std::string>& problems) {
  check_together(config, bad, given, problems);
  check_data_and_model(config, given, problems);
  check_training(config, bad, given.flags, problems);
  check_guards(config, bad, given.flags, problems);
  check_without_training(config, given.flags, problems);
  if (const std::string idle = idle_muon_flags(given.flags); !idle.empty() && !uses_muon(config))
    problems.push_back(
        fmt::format("{}: no parameter goes to Muon; give --optimizer muon, or --route REGEX=muon", idle));
}

}  // namespace train_gpt
