#include "plan_flags.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/nn/models/presets.h>
#include <sherd/train/settings/fields.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/rules/parse_config.h"
#include "train_gpt/run/strategy_choice.h"

namespace sherd::tools {
namespace {

struct Alias {
  const char* name;
  const char* flag;
};
constexpr Alias kAliases[] = {{"--preset", "--model"},
                              {"--world", "--ranks"},
                              {"--sequence", "--seq"},
                              {"--accumulation", "--grad-accum"}};

/// The flags of a run as a list of names with values.
class RunFlags {
 public:
  explicit RunFlags(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
      words_.push_back(word.substr(0, equals));
      if (words_.back().starts_with("--"))
        for (const Alias& a : kAliases)
          if (words_.back() == a.name) words_.back() = a.flag;
      if (equals != std::string::npos) words_.push_back(word.substr(equals + 1));
    }
  }

  std::optional<std::string> value(const std::string& flag) const {
    const auto at = std::ranges::find(words_, flag);
    if (at == words_.end() || at + 1 == words_.end()) return {};
    return *(at + 1);
  }
  bool has(const std::string& flag) const { return std::ranges::find(words_, flag) != words_.end(); }
  /// Removes a flag with its value, and returns that.
  std::optional<std::string> take(const std::string& flag) {
    const std::optional<std::string> taken = value(flag);
    const auto at = std::ranges::find(words_, flag);
    if (taken) words_.erase(at, at + 2);
    return taken;
  }
  void add(const std::string& flag) { words_.push_back(flag); }
  void set(const std::string& flag, const std::string& to) { words_.insert(words_.end(), {flag, to}); }
  void set_unless_given(const std::string& flag, const std::string& to) {
    if (!has(flag)) set(flag, to);
  }
  int64_t number(const std::string& flag, int64_t otherwise) const {
    const std::string text = value(flag).value_or("");
    int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    return error == std::errc() && end == text.data() + text.size() && n > 0 ? n : otherwise;
  }

  train_gpt::TrainConfig parse() const {
    std::vector<const char*> argv = {"sherd plan"};
    for (const std::string& w : words_) argv.push_back(w.c_str());
    const train_gpt::CommandLine line = train_gpt::parse_config(static_cast<int>(argv.size()), argv.data());
    if (line.help)
      throw InvalidArgument("--help-all and --version are flags of train_gpt; see sherd plan --help");
    if (line.config.trains()) return line.config;
    throw InvalidArgument(
        fmt::format("{}: a plan is of a training step; leave it out, or give --steps of at least 1",
                    line.config.eval_only     ? "--eval-only"
                    : line.config.sample_only ? "--sample-only"
                                              : "--steps 0"));
  }

 private:
  std::vector<std::string> words_;
};

/// A folder for train_gpt's --model, which may be named by its config.json.
std::string folder_of(const std::string& model) {
  const std::filesystem::path path = model;
  return path.filename() == "config.json" ? path.parent_path().string() : model;
}

int64_t number_above_zero(const std::optional<std::string>& text, const char* flag) {
  if (!text) return 1;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), n);
  if (error != std::errc() || end != text->data() + text->size() || n < 1)
    throw InvalidArgument(fmt::format("{} '{}': must be a whole number of at least 1", flag, *text));
  return n;
}

/// Sequences of a preset, where --seq does not say: kSequence tokens, or as many as it has positions.
std::string sequence_of(const std::string& model) {
  constexpr int64_t kSequence = 4096;
  const std::vector<std::string> names = nn::preset_names();
  const bool known = std::ranges::find(names, model) != names.end();
  return std::to_string(known ? std::min(kSequence, nn::preset(model).positions) : kSequence);
}

/// Sets the batch to one sequence for each data rank and microbatch, unless it is given.
void set_batch(RunFlags& run) {
  const int64_t data_ranks = run.number("--ranks", 1) / run.number("--tp", 1) / run.number("--context", 1);
  run.set_unless_given("--batch",
                       std::to_string(std::max<int64_t>(1, data_ranks) * run.number("--grad-accum", 1)));
}

/// Sets the ranks of one stage, and returns what the plan of stages assumes.
std::string take_stage(PlanRequest& r, const std::optional<std::string>& model, RunFlags& run,
                       int64_t stages) {
  if (!model)
    throw InvalidArgument(
        "--pipeline: stages are planned of a --model (--preset) alone; give one, or leave it out");
  const int64_t world = run.number("--ranks", 1);
  if (world % stages != 0)
    throw InvalidArgument(fmt::format("--pipeline {}: must divide --world {}", stages, world));
  run.take("--ranks");
  run.set("--ranks", std::to_string(world / stages));
  r.pipeline = static_cast<int>(stages);
  return fmt::format(
      "pipelines are planned only: a middle stage of {}, with an embedding and a head of one token; 1F1B; "
      "transfers between stages not counted",
      stages);
}

/// @throws InvalidArgument for a model whose middle stage is not blocks alone.
void check_stage(const PlanRequest& r) {
  if (r.config.layers < r.pipeline)
    throw InvalidArgument(fmt::format("--pipeline {}: the model has {} blocks; use at most as many stages",
                                      r.pipeline, r.config.layers));
  if (train_gpt::model_source(r.config).config.description.family == nn::ModelFamily::gpt2)
    throw InvalidArgument(fmt::format(
        "--pipeline {}: a stage of family gpt2 would have the learned positions; leave it out", r.pipeline));
}

void take_model(PlanRequest& r, const std::optional<std::string>& model, RunFlags& run,
                const PlanFlags& flags) {
  if (flags.pipeline > 1) r.notes.push_back(take_stage(r, model, run, flags.pipeline));
  if (model) {
    run.set_unless_given("--seq", sequence_of(*model));
    run.set("--model", folder_of(*model));
    run.add("--from-scratch");
    run.set_unless_given("--tokens", "planned");  // no data is read
  }
  set_batch(run);
  try {
    r.config = run.parse();
  } catch (const InvalidArgument& e) {
    if (r.pipeline == 1) throw;
    throw InvalidArgument(fmt::format("{} (--ranks: of one of {} stages)", e.what(), r.pipeline));
  }
  if (r.pipeline > 1) check_stage(r);
}

/// A model of which the parameters alone are known, in place of the byte model.
void take_listed(PlanRequest& r, RunFlags& run, const PlanFlags& flags) {
  if (run.has("--model")) throw InvalidArgument("--params and --model (--preset): give one of them");
  if (flags.pipeline > 1)
    throw InvalidArgument("--pipeline: a list of parameters does not describe stages; leave it out");
  for (const char* const flag : {"--tp", "--context", "--experts", "--expert-parallel"})
    if (run.has(flag))
      throw InvalidArgument(fmt::format("{}: a model of --params is planned without; leave it out", flag));
  const int64_t top_k = number_above_zero(run.take("--expert-top-k"), "--expert-top-k");
  const auto listed = std::make_shared<const ListedModel>(ListedModel{read_listed(flags.params), top_k});
  const bool muon =
      std::ranges::any_of(listed->params, [](const ParamEntry& e) { return e.optimizer == Algorithm::muon; });
  if (muon) run.set_unless_given("--optimizer", "muon");
  const std::string optimizer = run.value("--optimizer").value_or("adamw");
  if (optimizer != "adamw") run.set_unless_given("--route", listed_routes(*listed, optimizer));
  set_batch(run);
  r.config = run.parse();
  r.listed = listed;
  r.notes.push_back(
      "of the model the list of parameters is known alone: activations are the outputs of its products, and "
      "attention is left out");
  if (std::ranges::any_of(listed->params, [](const ParamEntry& e) { return e.shape.size() > 2; }))
    r.notes.push_back(
        fmt::format("stacks of matrices are experts, of which a token takes {} (--expert-top-k)", top_k));
}

}  // namespace

std::string aliases_help() {
  std::string text;
  for (const Alias& a : kAliases) text += fmt::format("  {:<16}as {} of train_gpt\n", a.name, a.flag);
  return text;
}

/// Takes what a search may not change. The batch is that of a step, however the ranks of the base divide it.
/// @returns the batch, if it is given.
std::optional<int64_t> take_constraints(PlanRequest& r, RunFlags& run, const PlanFlags& flags) {
  if (!flags.search) {
    if (flags.keep_bits || flags.max_tp > 0)
      throw InvalidArgument(fmt::format("{}: a constraint of --search; give both",
                                        flags.keep_bits ? "--keep-bits" : "--max-tp"));
    return {};
  }
  if (flags.max_tp > 0 && run.has("--tp"))
    throw InvalidArgument("--max-tp: --tp is given and not searched for; leave one of the two out");
  r.constraints.keep_bits = flags.keep_bits;
  r.constraints.max_tp = flags.max_tp;
  for (const std::string& name : train_gpt::kSearched)
    if (run.has(flag_of(name))) r.constraints.fixed.insert(name);
  if (run.has("--sequence-parallel")) r.constraints.fixed.insert("sequence_parallel");
  if (run.has("--muon-allow-inexact")) r.constraints.fixed.insert("muon_mode");
  const std::optional<std::string> batch = run.take("--batch");
  if (!batch) return {};
  const int64_t given = number_above_zero(batch, "--batch");
  set_batch(run);
  return given;
}

/// Replaces --strategy auto by its choice. --search tries every strategy as it is.
void choose(PlanRequest& r, const PlanFlags& flags) {
  const std::vector<std::string> chosen = std::exchange(r.config.chosen, {});
  if (flags.search) {
    for (const std::string& name : chosen) r.constraints.fixed.erase(name);
    r.config.strategy = train_gpt::TrainConfig().strategy;
    return;
  }
  if (flags.several)
    throw InvalidArgument(
        "--strategy auto: the choice for these ranks alone; leave --compare and --sweep out, or name a "
        "strategy");
  if (r.pipeline > 1 || r.listed)
    throw InvalidArgument("--strategy auto: of runs of train_gpt alone; leave --pipeline and --params out");
  r.config.chosen = chosen;
  const train_gpt::StrategyChoice choice =
      choose_strategy(r.config, {.hardware = r.hardware, .forecast = forecast_options(r)});
  r.config = choice.config;
  r.notes.push_back(choice.reason);
}

PlanRequest parse_plan(const PlanFlags& flags) {
  PlanRequest r{.config = {}, .hardware = hardware_profile(flags.hardware)};
  RunFlags run(flags.run);
  const std::optional<int64_t> batch = take_constraints(r, run, flags);
  const bool gpu = r.hardware.products_16.back().rate >= 10e12;  // of large products
  if (gpu) run.set_unless_given("--precision", "bf16");
  const bool listed = !flags.params.empty();
  const std::optional<std::string> model = listed ? std::nullopt : run.take("--model");
  if (listed)
    take_listed(r, run, flags);
  else
    take_model(r, model, run, flags);
  if (gpu) r.config.device = DeviceKind::cuda;
  if (batch) r.config.batch = *batch;
  r.constraints.memory_bytes = r.config.memory_limit;
  if (!r.config.strategy) choose(r, flags);
  if (gpu)
    r.notes.push_back("scratch memory of GPU kernels and libraries, and a CUDA context, are not counted");
  if (r.config.experts > 0) r.notes.push_back("experts get equal shares of the rows");
  return r;
}

}  // namespace sherd::tools
