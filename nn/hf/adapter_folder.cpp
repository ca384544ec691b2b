#include <sherd/nn/hf/adapter_folder.h>

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/detail/links.h>

namespace sherd::hf {
namespace {

using nlohmann::json;
using Kind = FileSystem::Kind;

constexpr std::string_view kFirstOfPair = ".lora_A.weight";
constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr int64_t kMaxAdapterConfig = int64_t{16} << 20;

// Keys with which the product is another one, or more is trained than pairs. Each may be absent, null, false or empty.
constexpr const char* kNotFollowed[] = {"use_rslora",
                                        "use_dora",
                                        "use_qalora",
                                        "use_bdlora",
                                        "lora_bias",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "layer_replication",
                                        "target_parameters",
                                        "arrow_config",
                                        "kasa_config",
                                        "monteclora_config",
                                        "velora_config",
                                        "trainable_token_indices",
                                        "alora_invocation_tokens"};
// Ways to begin that leave the base weights as they are.
constexpr std::string_view kPlainBeginnings[] = {"gaussian", "orthogonal", "eva"};

bool is_nothing(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

// "q_proj" of "model.layers.0.self_attn.q_proj"; each once. One alone may be a regular expression.
std::string kinds_of(const std::vector<std::string>& targets) {
  if (targets.size() == 1) return printable(targets[0]);
  std::set<std::string> kinds;
  for (const std::string& target : targets) kinds.insert(target.substr(target.rfind('.') + 1));
  return printable(fmt::format("{}", fmt::join(kinds, ", ")));
}

}  // namespace

StoredForms adapter_forms(const ModuleBase& model) {
  StoredForms forms;
  forms.holds = nn::is_adapter;
  StoredNames& names = forms.forms.emplace_back();
  for (const auto& [name, p] : model.named_parameters()) {
    if (!nn::is_adapter(name)) continue;
    const Shape shape = p.global_shape();
    const Box all{Shape(shape.size(), 0), shape};
    names[name] = {{"base_model.model." + name, shape, all, all}};
  }
  if (names.empty()) throw InvalidArgument("the model has no adapters; give LoraOptions::rank");
  return forms;
}

std::string adapter_config_text(const ModuleBase& model, const nn::LoraOptions& lora,
                                const std::string& base) {
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  for (const auto& [name, p] : model.named_parameters())
    if (name.ends_with(kFirstOfPair)) targets.push_back(name.substr(0, name.size() - kFirstOfPair.size()));
  const nlohmann::ordered_json config = {{"base_model_name_or_path", base},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", false},
                                         {"inference_mode", true},
                                         {"lora_alpha", lora.alpha},
                                         {"lora_dropout", 0.0},
                                         {"peft_type", "LORA"},
                                         {"r", lora.rank},
                                         {"target_modules", targets},
                                         {"task_type", "CAUSAL_LM"}};
  return config.dump(2) + "\n";
}

bool export_adapters(ModuleBase& model, const std::filesystem::path& path, const nn::LoraOptions& lora,
                     const std::string& base, Existing existing) {
  ExportOptions options{.existing = existing};
  options.file = kAdapterWeights;
  options.files = {{kAdapterConfig, adapter_config_text(model, lora, base)}};
  return export_weights(model, path, adapter_forms(model), options);
}

bool is_adapter_folder(const std::filesystem::path& folder, FileSystem& files) {
  if (files.kind(folder) != Kind::folder || files.kind(folder / kAdapterConfig) != Kind::file) return false;
  return std::ranges::all_of(std::initializer_list<const char*>{"manifest.binpb", "model.safetensors",
                                                                "model.safetensors.index.json"},
                             [&](const char* name) { return files.kind(folder / name) == Kind::none; });
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder, FileSystem& files) {
  require_inside(folder, kAdapterConfig);
  AdapterConfig config{.source = (folder / kAdapterConfig).string()};
  JsonObject c =
      JsonObject::parse(read_whole(files, folder / kAdapterConfig, kMaxAdapterConfig), config.source);
  if (c.text("peft_type", std::nullopt) != "LORA") c.refuse("peft_type", "\"LORA\" alone is supported");
  config.rank = c.integer("r", std::nullopt, 1, 65536);
  config.alpha = c.number("lora_alpha", std::nullopt, 0, 1e6);
  if (c.text("bias", "none") != "none") c.refuse("bias", "biases are not trained; \"none\" is supported");
  for (const char* key : kNotFollowed)
    if (!is_nothing(c.raw(key)))
      c.refuse(key, "adapters have one plain pair for each matrix; train without it");
  const json& begins = c.raw("init_lora_weights");
  if (begins.is_string() &&
      std::ranges::find(kPlainBeginnings, begins.get<std::string>()) == std::end(kPlainBeginnings))
    c.refuse("init_lora_weights", "it may change the base weights; convert the adapters to plain ones");
  const json& targets = c.raw("target_modules");
  if (targets.is_string())
    config.targets = {targets.get<std::string>()};
  else
    config.targets = c.texts("target_modules");
  if (const double dropout = c.number("lora_dropout", 0, 0, 1); dropout > 0)
    config.notes.push_back(fmt::format("'{}': lora_dropout {} is not applied", config.source, dropout));
  c.require_none();
  return config;
}

void require_same(const AdapterConfig& config, const nn::LoraOptions& lora) {
  std::vector<std::string> differ;
  if (config.rank != lora.rank)
    differ.push_back(fmt::format("rank {}, and LoraOptions::rank is {}", config.rank, lora.rank));
  if (config.alpha != lora.alpha)
    differ.push_back(fmt::format("alpha {}, and LoraOptions::alpha is {}", config.alpha, lora.alpha));
  if (!differ.empty())
    throw InvalidArgument(fmt::format("'{}': the adapters have {}; give those of the adapters",
                                      printable(config.source), fmt::join(differ, "; ")));
}

std::vector<FileCopy> adapter_copies(const std::filesystem::path& folder, FileSystem& files) {
  const std::string text = read_whole(files, folder / kAdapterConfig, kMaxAdapterConfig);
  std::vector<FileCopy> copies = weights_copies(folder / kAdapterWeights, files);
  copies.push_back({kAdapterConfig, (folder / kAdapterConfig).string(),
                    checksum(text.data(), static_cast<int64_t>(text.size()))});
  return copies;
}

LoadReport import_adapters(ModuleBase& model, const std::filesystem::path& folder,
                           const nn::LoraOptions& lora, LoadOptions options, FileSystem& files) {
  const AdapterConfig config = read_adapter_config(folder, files);
  require_same(config, lora);
  require_inside(folder, kAdapterWeights);
  if (files.kind(folder / kAdapterWeights) == Kind::none)
    throw IoError(fmt::format("cannot read '{}': it is missing; save the adapters as safetensors",
                              (folder / kAdapterWeights).string()));
  options.allow_missing = options.allow_unexpected = false;
  options.cause = fmt::format(
      "its targets are {}, and LoraOptions::targets is '{}'; give one that matches the modules of the "
      "adapters, "
      "and the model that they were trained with",
      kinds_of(config.targets), lora.targets);
  LoadReport report = import_weights(model, folder / kAdapterWeights, adapter_forms(model), options, files);
  report.notes.insert(report.notes.end(), config.notes.begin(), config.notes.end());
  return report;
}

}  // namespace sherd::hf
