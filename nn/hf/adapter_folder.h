// Adapters as a folder that PEFT reads.
#pragma once

#include <string>

#include <sherd/checkpoint/weights.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/models/lora.h>

namespace sherd::hf {

/// Forms of the adapters alone, by PEFT's names: "base_model.model." before the full name.
StoredForms adapter_forms(const ModuleBase& model);

/// Returns adapter_config.json of these adapters, as PeftModel.from_pretrained() reads it. Its target_modules are the names
/// of the modules that have one.
/// @param base where the model's own weights are from [base_model_name_or_path]
std::string adapter_config_text(const ModuleBase& model, const nn::LoraOptions& lora,
                                const std::string& base);

/// Writes the folder: adapter_config.json and adapter_model.safetensors, in f32. Collective; the errors, and what is
/// returned, are those of export_weights(). @throws InvalidArgument for a model without adapters.
bool export_adapters(ModuleBase& model, const std::filesystem::path& path, const nn::LoraOptions& lora,
                     const std::string& base, Existing existing = Existing::refuse);

}  // namespace sherd::hf
