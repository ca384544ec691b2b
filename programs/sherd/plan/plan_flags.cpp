#include "plan_flags.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include <sherd/kernels/device/error.h>
#include <sherd/nn/models/presets.h>

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
    return line.config;
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

/// Stage of a model that is planned only: its ranks, and what the byte model of train_gpt cannot say.
void take_planned(PlanRequest& r, const std::string& name, RunFlags& run, int64_t pipeline) {
  r.shape = planned_shape(name);
  r.pipeline = static_cast<int>(pipeline);
  r.notes.push_back(
      r.shape->kv_lora > 0
          ? fmt::format("{} is planned by a model of its own, whose attention pads no values", name)
          : fmt::format("{} is planned only: its attention has no kernel here", name));
  const int64_t ep = number_above_zero(run.take("--expert-parallel"), "--expert-parallel");
  const int64_t world = run.number("--ranks", 1);
  if (world % pipeline != 0)
    throw InvalidArgument(fmt::format("--pipeline {}: must divide --world {}", pipeline, world));
  const int64_t ranks = world / pipeline;
  if (ranks % ep != 0 || r.shape->experts % ep != 0)
    throw InvalidArgument(fmt::format("--expert-parallel {}: must divide {} ranks{} and {} experts", ep,
                                      ranks, pipeline > 1 ? " of a stage" : "", r.shape->experts));
  if (run.number("--tp", 1) > 1)
    throw InvalidArgument(fmt::format("--tp: {} is not planned with tensor parallelism; leave it out", name));
  run.take("--ranks");
  run.set("--ranks", std::to_string(ranks));
  run.set_unless_given("--seq", sequence_of(name));
  run.set_unless_given("--batch", std::to_string(ranks * run.number("--grad-accum", 1)));
  r.config = run.parse();
  r.config.experts = r.shape->experts;
  r.config.expert_top_k = r.shape->top_k;
  r.config.expert_parallel = ep;
  if (pipeline > 1)
    r.notes.push_back(
        fmt::format("pipelines are planned only: a middle stage of {}, 1F1B, transfers between "
                    "stages not counted",
                    pipeline));
}

void take_model(PlanRequest& r, const std::optional<std::string>& model, RunFlags& run, int64_t pipeline) {
  if (pipeline > 1)
    throw InvalidArgument(
        "--pipeline: is planned for deepseek-v3, kimi-k2 and gpt-oss-120b alone; leave it out");
  if (model) {
    run.set_unless_given("--seq", sequence_of(*model));
    run.set("--model", folder_of(*model));
    run.add("--from-scratch");
    run.set_unless_given("--tokens", "planned");  // no data is read
  }
  const int64_t data_ranks = std::max<int64_t>(1, run.number("--ranks", 1) / run.number("--tp", 1));
  run.set_unless_given("--batch", std::to_string(data_ranks * run.number("--grad-accum", 1)));
  r.config = run.parse();
}

}  // namespace

std::string aliases_help() {
  std::string text;
  for (const Alias& a : kAliases) text += fmt::format("  {:<16}as {} of train_gpt\n", a.name, a.flag);
  return text;
}

PlanRequest parse_plan(const PlanFlags& flags) {
  PlanRequest r{.config = {}, .hardware = hardware_profile(flags.hardware)};
  RunFlags run(flags.run);
  const bool gpu = r.hardware.peak_flops >= 10e12;
  if (gpu) run.set_unless_given("--precision", "bf16");
  const std::optional<std::string> model = run.take("--model");
  if (model && is_planned(*model))
    take_planned(r, *model, run, flags.pipeline);
  else
    take_model(r, model, run, flags.pipeline);
  if (gpu) r.config.device = "cuda";
  if (gpu)
    r.notes.push_back("scratch memory of GPU kernels and libraries, and a CUDA context, are not counted");
  if (r.config.experts > 0) r.notes.push_back("experts get equal shares of the rows");
  return r;
}

}  // namespace sherd::tools
