#include "config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/kernels/device/error.h>
#include <sherd/kernels/device/program.h>

#include "config_fields.h"
#include "config_file.h"
#include "model.h"
#include "muon_config.h"

namespace train_gpt {
namespace {

using Problems = std::vector<std::string>;

struct RawFlags {
  std::map<const Field*, std::string> values;  // of the flags that were given
  std::string config_file;
  bool help = false, version = false;
};

RawFlags read_flags(int argc, const char* const* argv, Problems& problems) {
  RawFlags raw;
  std::map<const Field*, std::pair<CLI::Option*, std::string>> options;
  CLI::App app;
  app.allow_extras();
  app.set_help_flag("-h,--help");
  app.add_flag("--version", raw.version);
  CLI::Option* config_option = app.add_option("--config", raw.config_file)->take_last();
  for (const FieldGroup& group : field_groups()) {
    for (const Field& field : group.fields) {
      auto& [option, text] = options[&field];
      const bool is_switch = field.value[0] == '\0';
      option = is_switch ? app.add_flag(flag_of(field)) : app.add_option(flag_of(field), text)->take_last();
      if (is_switch) text = "true";
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    raw.help = true;
    return raw;
  } catch (const CLI::ParseError& e) {
    problems.push_back(e.what());
    return raw;
  }
  bool after_unknown_flag = false;
  for (const std::string& extra : app.remaining()) {
    const bool is_flag = extra.starts_with('-');
    if (is_flag) problems.push_back(fmt::format("{}: unknown flag; --help lists all", extra));
    if (!is_flag && !after_unknown_flag) problems.push_back(fmt::format("'{}': expected a flag", extra));
    after_unknown_flag = is_flag;
  }
  for (const auto& [field, option] : options) {
    if (option.first->count() > 0) raw.values[field] = option.second;
  }
  if (config_option->count() > 0 && raw.config_file.empty())
    problems.push_back("--config: the file's name is empty");
  return raw;
}

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
  if (!bad.contains("bootstrap") && c.bootstrap == "mpi") list.push_back("--bootstrap " + c.bootstrap);
  if (c.nccl_exact_order) list.push_back("--nccl-exact-order");
  if (c.nccl_check_calls) list.push_back("--nccl-check-calls");
  if (c.nccl_register_buffers) list.push_back("--nccl-register-buffers");
  if (c.nccl_windows) list.push_back("--nccl-windows");
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Flags of Muon on the command line, as a list; a file of settings may hold some for whoever switches it on.
std::string idle_muon_flags(const RawFlags& raw) {
  std::vector<std::string> list;
  for (const FieldGroup& group : field_groups()) {
    if (group.title != std::string_view("Muon")) continue;
    for (const Field& field : group.fields)
      if (raw.values.contains(&field)) list.push_back(flag_of(field));
  }
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Rules among several fields, where each is inside its own bounds; `bad` names those that are not.
void check_together(const TrainConfig& c, const std::set<std::string_view>& bad, Problems& problems) {
  const auto good = [&](auto... names) { return !(bad.contains(names) || ...); };
  if (c.lr == 0) problems.push_back("--lr 0: must be greater than 0; --steps 0 is the way not to train");
  if (c.comm_timeout == 0) problems.push_back("--comm-timeout 0: must be greater than 0 seconds");
  if (c.data.empty()) problems.push_back("--data: the path is empty; name a file or a folder");
  const int64_t tp = good("tp") ? c.tp : 1;
  if (good("ranks", "tp") && c.ranks % tp != 0) {
    problems.push_back(fmt::format("--tp {}: must divide --ranks {}", tp, c.ranks));
  } else if (good("ranks", "replicas") && c.ranks % (c.replicas * tp) != 0) {
    const std::string product = tp == 1 ? "" : fmt::format(" x --tp {} = {}", tp, c.replicas * tp);
    problems.push_back(fmt::format("--replicas {}{}: must divide --ranks {}", c.replicas, product, c.ranks));
  }
  if (const std::string wrong = undivided(c, tp, bad); !wrong.empty()) {
    problems.push_back(fmt::format("--tp {}: must divide {}", tp, wrong));
  }
  if (good("dim", "heads") && c.dim % c.heads != 0) {
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
  if (c.experts > 0 && tp > 1)
    problems.push_back(fmt::format("--tp {}: blocks with --experts are not cut; use one of the two", tp));
  if (c.comm == "nccl" && c.device == "cpu")
    problems.push_back("--comm nccl: moves memory between GPUs; give --device cuda, or leave --comm local");
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
  if (c.batch % shares != 0) {
    problems.push_back(fmt::format(
        "--batch {}: must be a multiple of --ranks {}{} x --grad-accum {} = {}, so that every rank "
        "takes an equal share "
        "of each microbatch; e.g. {}",
        c.batch, c.ranks, tp == 1 ? "" : fmt::format(" / --tp {}", tp), c.grad_accum, shares,
        (c.batch / shares + 1) * shares));
  }
}

/// "--lr", or "run.txt: lr" when the file gave it: a bad value is never a default.
std::string source_of(const Field& field, const RawFlags& raw) {
  return raw.values.contains(&field) ? flag_of(field) : fmt::format("{}: {}", raw.config_file, field.name);
}

/// Processes of a job that NCCL joins are its ranks; who does not say how many there are means all of them.
void take_ranks_of_job(TrainConfig& c, const RawFlags& raw) {
  const bool said = std::any_of(raw.values.begin(), raw.values.end(),
                                [](const auto& v) { return v.first->name == std::string_view("ranks"); });
  if (said || c.ranks != TrainConfig().ranks || c.comm != "nccl" || c.bootstrap != "env") return;
  if (const int processes = sherd::job_in_environment().processes; processes > 0) c.ranks = processes;
}

void throw_if_any(const Problems& problems) {
  if (problems.empty()) return;
  throw sherd::InvalidArgument(
      fmt::format("{} in the arguments:\n  {}",
                  problems.size() == 1 ? "a problem" : fmt::format("{} problems", problems.size()),
                  fmt::join(problems, "\n  ")));
}

}  // namespace

CommandLine parse_config(int argc, const char* const* argv) {
  Problems problems;
  const RawFlags raw = read_flags(argc, argv, problems);
  if (raw.help) return {.config = {}, .help = help_text()};
  if (raw.version && problems.empty()) return {.config = {}, .help = sherd::version_text("train_gpt")};
  CommandLine line;
  if (!raw.config_file.empty()) read_config_file(raw.config_file, line.config, problems);
  for (const auto& [field, text] : raw.values) {
    const std::string wrong = text.starts_with("--") ? "this is a flag where a value should be"
                                                     : set_from_text(*field, line.config, text);
    if (!wrong.empty()) problems.push_back(fmt::format("{} {}: {}", flag_of(*field), text, wrong));
  }
  for (const auto& [field, text] : raw.values) {
    const std::string_view name = field->name;
    if (text.empty() && (name == "save" || name == "resume"))
      problems.push_back(
          fmt::format("{}: the path is empty; leave the flag out, or name a folder", flag_of(*field)));
  }
  take_ranks_of_job(line.config, raw);
  std::set<std::string_view> bad;
  for (const FieldGroup& group : field_groups()) {
    for (const Field& field : group.fields) {
      const std::string wrong = check_value(field, line.config);
      if (wrong.empty()) continue;
      bad.insert(field.name);
      problems.push_back(
          fmt::format("{} {}: {}", source_of(field, raw), show_value(field, line.config), wrong));
    }
  }
  check_together(line.config, bad, problems);
  if (const std::string idle = idle_muon_flags(raw); !idle.empty() && !uses_muon(line.config))
    problems.push_back(
        fmt::format("{}: no parameter goes to Muon; give --optimizer muon, or --route REGEX=muon", idle));
  throw_if_any(problems);
  return line;
}

sherd::DType dtype_named(std::string_view word) {
  if (word == "bf16") return sherd::DType::bf16;
  return word == "fp16" ? sherd::DType::f16 : sherd::DType::f32;
}

nlohmann::ordered_json to_json(const TrainConfig& config) {
  nlohmann::ordered_json json;
  for (const FieldGroup& group : field_groups()) {
    for (const Field& field : group.fields) {
      std::visit([&](auto member) { json[field.name] = config.*member; }, field.member);
    }
  }
  return json;
}

std::string config_text(const TrainConfig& config) {
  return to_json(config).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

double learning_rate(const TrainConfig& config, int64_t step) {
  if (step < config.warmup) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  }
  if (config.lr_schedule == "constant" || config.steps <= config.warmup) return config.lr;
  const double progress = static_cast<double>(std::min(step, config.steps) - config.warmup) /
                          static_cast<double>(config.steps - config.warmup);
  return config.lr * (0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace train_gpt
