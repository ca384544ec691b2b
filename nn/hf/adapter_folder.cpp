#include <sherd/nn/hf/adapter_folder.h>

#include <string_view>

#include <nlohmann/json.hpp>

#include <sherd/kernels/device/error.h>

namespace sherd::hf {
namespace {

constexpr std::string_view kFirstOfPair = ".lora_A.weight";

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
  if (names.empty()) throw InvalidArgument("the model has no adapters to export; give LoraOptions::rank");
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
  options.file = "adapter_model.safetensors";
  options.files = {{"adapter_config.json", adapter_config_text(model, lora, base)}};
  return export_weights(model, path, adapter_forms(model), options);
}

}  // namespace sherd::hf
