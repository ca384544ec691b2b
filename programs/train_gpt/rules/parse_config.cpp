#include "train_gpt/rules/parse_config.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/comm/backend.h>
#include <sherd/comm/backend_choice.h>
#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/kernels/device/build.h>
#include <sherd/train/plan/hardware_profile.h>
#include <sherd/train/settings/command_line.h>
#include <sherd/train/settings/config_file.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/model/saved_model.h"
#include "train_gpt/rules/config_rules.h"
#include "train_gpt/rules/inheritance.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

constexpr const char* kAbout =
    "train_gpt: trains a byte-level GPT or a --model on CPUs or GPUs, sharded by --strategy.\n\n"
    "Usage: train_gpt [flags]\n\n";

std::string help_with_defaults(bool all) {
  TrainConfig defaults;
  return sherd::help_text(kAbout, fields_of(defaults), all) +
         "\nExit codes: 0: success, or stopped by a signal or --max-wall after a save; 1: failure; 2: wrong "
         "flags.\n"
         "Under `sherd run`, 3: a failure that a restart would repeat; 4: a checkpoint could not be "
         "written.\n";
}

/// Replaces --comm auto by its choice.
void choose_comm(CommandLine& line, std::vector<std::string>& problems) {
  TrainConfig& c = line.config;
  if (c.comm) return;
  try {
    TrainConfig undecided = c;
    undecided.comm = TrainConfig().comm;
    const auto situation = sherd::BackendSituation::of(launch_options(undecided));
    const sherd::BackendChoice choice = sherd::choose_backend(situation);
    c.comm = choice.backend;
    line.comm_choice = with_flags(fmt::format("comm: {}, because {}", word_of(*c.comm), choice.reason));
  } catch (const sherd::Error& e) {
    problems.push_back(with_flags(e.what()));
  }
}

void check_hardware(const TrainConfig& c, std::vector<std::string>& problems) {
  if (c.hardware.empty()) return;
  try {
    (void)sherd::hardware_profile(c.hardware);
  } catch (const sherd::Error& e) {
    problems.push_back(fmt::format("--hardware: {}", e.what()));
  }
}

/// Processes of a job that NCCL or MPI joins are its ranks. Without --ranks the run has all of them.
void take_ranks_of_job(TrainConfig& c, const sherd::GivenFlags& given) {
  if (given.has("ranks") || c.ranks != TrainConfig().ranks || c.comm == sherd::BackendKind::local ||
      c.bootstrap != sherd::Bootstrap::env)
    return;
  if (const int processes = sherd::job_in_environment().processes; processes > 0) c.ranks = processes;
}

/// take_sizes(). @throws sherd::InvalidArgument, naming the configuration, for sizes outside of the settings' bounds.
void take_sizes_in_bounds(TrainConfig& c, const ModelSource& source, bool balance_given) {
  const TrainConfig before = c;
  take_sizes(c, source, balance_given);
  std::vector<std::string> wrong;
  for (const sherd::FieldGroup& group : fields_of(c))
    for (const sherd::Field& field : group.fields)
      for (const std::string_view size : {"dim", "layers", "heads", "experts", "expert_top_k"})
        if (field.name == size && !sherd::check_value(field).empty())
          wrong.push_back(
              fmt::format("{} {}: {}", size, sherd::show_value(field), sherd::check_value(field)));
  if (wrong.empty()) return;
  c = before;
  throw sherd::InvalidArgument(
      fmt::format("'{}': {}; take a smaller model", source.config.source, fmt::join(wrong, "; ")));
}

/// Takes sizes of --model's own, before anything is checked against them. Returns the model; none without or where it is
/// refused.
std::optional<ModelSource> take_model(CommandLine& line, const std::optional<SavedModel>& saved,
                                      bool model_given, bool balance_given,
                                      std::vector<std::string>& problems) {
  TrainConfig& c = line.config;
  if (c.model.empty()) return std::nullopt;
  try {
    choose_model_text(c, saved, model_given, line.notes);
    const ModelSource source = model_source(c);
    line.notes.insert(line.notes.end(), source.config.notes.begin(), source.config.notes.end());
    if (source.config.mtp_layers > 0 && c.mtp_weight == 0)
      line.notes.push_back(
          fmt::format("\"num_nextn_predict_layers\" is {}: multi-token prediction is not trained; "
                      "--mtp-weight X trains it. "
                      "Its weights, where the folder has them, are kept as they are",
                      source.config.mtp_layers));
    take_sizes_in_bounds(c, source, balance_given);
    return source;
  } catch (const sherd::InvalidArgument& e) {
    problems.push_back(e.what());
    return std::nullopt;
  }
}

/// Drops outputs that a config file names and that a run without training does not write.
void drop_outputs_of_training(TrainConfig& c) {
  for (std::string* const output : {&c.save, &c.loss_svg, &c.trace, &c.timeline}) output->clear();
  c.explain_plan = false;
  c.recompute = Recompute::none;
  if (!c.sample_only) return;
  for (std::string* const measured : {&c.metrics, &c.log_dir}) measured->clear();
}

}  // namespace

CommandLine parse_config(int argc, const char* const* argv) {
  std::vector<std::string> problems;
  CommandLine line;
  const std::vector<sherd::FieldGroup> fields = fields_of(line.config);
  const sherd::GivenFlags given = sherd::read_flags(argc, argv, fields, problems);
  if (given.help) return {.config = {}, .help = help_with_defaults(given.help_all)};
  if (given.version && problems.empty()) return {.config = {}, .help = sherd::version_text("train_gpt")};
  proto::TrainConfig message;
  if (!given.config_file.empty()) {
    try {
      sherd::read_config_file(given.config_file, message, fields, problems);
    } catch (const sherd::IoError& e) {
      problems.push_back(fmt::format("--config: {}; name a file of options", e.what()));
    }
  }
  std::set<std::string_view> bad = sherd::set_given(given, problems);
  for (const auto& [field, text] : given.flags) {
    const std::string_view name = field->name;
    if (text.empty() && (name == "save" || name == "resume"))
      problems.push_back(
          fmt::format("{}: the path is empty; leave the flag out, or name a folder", flag_of(*field)));
  }
  const auto is_given = [&](std::string_view name) {
    const auto* const described = message.GetDescriptor()->FindFieldByName(std::string(name));
    return given.has(name) || message.GetReflection()->HasField(message, described);
  };
  std::string unread;
  Inherited inherited = inherit(line.config, is_given, problems, unread);
  line.inherited = std::move(inherited.flags);
  choose_comm(line, problems);
  check_hardware(line.config, problems);
  take_ranks_of_job(line.config, given);
  const auto& names = inherited.names;
  const bool balance_inherited = std::find(names.begin(), names.end(), "moe_aux") != names.end();
  const std::optional<ModelSource> source = take_model(line, inherited.model, is_given("model"),
                                                       is_given("moe_aux") || balance_inherited, problems);
  // Weights that were trained before: the rate of a new model would wreck them.
  constexpr double kFineTuningRate = 2e-5;
  const TrainConfig& c = line.config;
  const bool is_inherited = std::find(names.begin(), names.end(), "lr") != names.end();
  if (!c.model.empty() && !c.from_scratch && c.resume.empty() && !is_given("lr") && !is_inherited)
    line.config.lr = kFineTuningRate;
  bad.merge(sherd::check_values(fields, given, problems));
  check_rules(line.config, bad, {given, is_given, names, c.resume}, problems, source ? &*source : nullptr);
  if (!problems.empty() && !unread.empty())
    problems.push_back(
        fmt::format("--resume {}: its settings cannot be read: {}", line.config.resume, unread));
  for (const std::string_view name : kChosen)
    if (!c.strategy && (name == "strategy" || !is_given(name))) line.config.chosen.emplace_back(name);
  sherd::throw_problems(problems);
  if (line.config.eval_only || line.config.sample_only) drop_outputs_of_training(line.config);
  for (std::string& idle : idle_variables(line.config)) line.notes.push_back(std::move(idle));
  return line;
}

}  // namespace train_gpt
