#include "config.h"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/kernels/device/program.h>
#include <sherd/train/command_line.h>
#include <sherd/train/config_file.h>

#include "config.pb.h"
#include "config_fields.h"
#include "config_rules.h"

namespace train_gpt {
namespace {

constexpr const char* kAbout =
    "train_gpt: trains a byte-level GPT on CPUs or GPUs, sharded the way --strategy says.\n\n"
    "Usage: train_gpt [flags]\n\n";

std::string help_with_defaults() {
  TrainConfig defaults;
  return sherd::help_text(kAbout, fields_of(defaults));
}

/// Processes of a job that NCCL joins are its ranks; who does not say how many there are means all of them.
void take_ranks_of_job(TrainConfig& c, const sherd::GivenFlags& given) {
  if (given.has("ranks") || c.ranks != TrainConfig().ranks || c.comm != "nccl" || c.bootstrap != "env")
    return;
  if (const int processes = sherd::job_in_environment().processes; processes > 0) c.ranks = processes;
}

}  // namespace

std::string default_data_folder() { return SHERD_DEFAULT_DATA; }

CommandLine parse_config(int argc, const char* const* argv) {
  std::vector<std::string> problems;
  CommandLine line;
  const std::vector<sherd::FieldGroup> fields = fields_of(line.config);
  const sherd::GivenFlags given = sherd::read_flags(argc, argv, fields, problems);
  if (given.help) return {.config = {}, .help = help_with_defaults()};
  if (given.version && problems.empty()) return {.config = {}, .help = sherd::version_text("train_gpt")};
  if (!given.config_file.empty()) {
    proto::TrainConfig message;
    sherd::read_config_file(given.config_file, message, fields, problems);
  }
  sherd::set_given(given, problems);
  for (const auto& [field, text] : given.flags) {
    const std::string_view name = field->name;
    if (text.empty() && (name == "save" || name == "resume"))
      problems.push_back(
          fmt::format("{}: the path is empty; leave the flag out, or name a folder", flag_of(*field)));
  }
  take_ranks_of_job(line.config, given);
  check_rules(line.config, sherd::check_values(fields, given, problems), given, problems);
  sherd::throw_problems(problems);
  return line;
}

sherd::DType dtype_named(std::string_view word) {
  if (word == "bf16") return sherd::DType::bf16;
  return word == "fp16" ? sherd::DType::f16 : sherd::DType::f32;
}

std::string config_text(const TrainConfig& config) {
  TrainConfig copy = config;
  return sherd::config_text(fields_of(copy));
}

nlohmann::ordered_json to_json(const TrainConfig& config) {
  return nlohmann::ordered_json::parse(config_text(config));
}

}  // namespace train_gpt
