#include "inheritance.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <sherd/kernels/device/error.h>
#include <sherd/train/settings/saved_settings.h>

#include "config_fields.h"

namespace train_gpt {
namespace {

constexpr std::string_view kOfTheModel[] = {"model", "from_scratch", "dim",     "layers",
                                            "heads", "seq",          "experts", "expert_top_k"};
constexpr std::string_view kOfTokens[] = {"tokens", "token_format", "valid_tokens", "order"};
constexpr std::string_view kOfOneRun[] = {"ranks",           "replicas",    "outer",        "tp",
                                          "expert_parallel", "stop_at",     "init_weights", "strict_weights",
                                          "muon_transient",  "explain_plan"};

bool contains(const auto& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

std::vector<std::string_view> inherited_settings(bool weights_alone) {
  if (weights_alone) return {std::begin(kOfTheModel), std::end(kOfTheModel)};
  std::vector<std::string_view> names = {"eval_every", "eval_windows"};
  for (const char* title : {"Data", "Ranks and sharding", "Model", "Training", "Muon"})
    for (const std::string_view name : names_of_group(title))
      if (!contains(kOfOneRun, name)) names.push_back(name);
  return names;
}

Inherited inherit(TrainConfig& config, const std::function<bool(std::string_view)>& given,
                  std::vector<std::string>& problems, std::string& unread) {
  if (config.resume.empty()) return {};
  sherd::SavedTraining saved;
  try {
    saved = sherd::saved_training(config.resume);
  } catch (const sherd::Error& e) {
    unread = e.what();
    return {};
  }
  const bool weights_alone = config.resume_parts == "model";
  std::vector<std::string_view> names = inherited_settings(weights_alone);
  std::erase_if(names, given);
  if (given("data")) std::erase_if(names, [](std::string_view name) { return contains(kOfTokens, name); });
  // Where first weights come from is asked anew, unless they are those of the same model in the checkpoint.
  if (given("model") || config.resume_parts == "optimizer") std::erase(names, "from_scratch");
  const std::vector<sherd::FieldGroup> fields = fields_of(config);
  Inherited inherited{.names = sherd::take_saved_settings(saved, fields, names, problems), .flags = {}, .model = saved_model(saved)};
  // What that run was started with may be another seed than what it went on with.
  if (contains(inherited.names, "seed")) config.seed = saved.training.seed;
  TrainConfig standard;
  const std::vector<sherd::FieldGroup> defaults = fields_of(standard);
  for (size_t g = 0; g < fields.size(); ++g) {
    for (size_t i = 0; i < fields[g].fields.size(); ++i) {
      const sherd::Field& field = fields[g].fields[i];
      const std::string value = sherd::show_value(field);
      if (contains(inherited.names, field.name) && value != sherd::show_value(defaults[g].fields[i]))
        inherited.flags.push_back(fmt::format("{} {}", sherd::flag_of(field), value));
    }
  }
  return inherited;
}

}  // namespace train_gpt
