// Adapters as a folder of PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sherd/checkpoint/file_copies.h>
#include <sherd/checkpoint/files/file_system.h>
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

struct AdapterConfig {
  /// The file, for messages.
  std::string source;
  int64_t rank = 0;
  double alpha = 0;
  /// Modules with a pair, as the file names them: full names, endings of names, or one regular expression.
  std::vector<std::string> targets;
  /// Settings that training does not follow (dropout), a line each, for a program to print once.
  std::vector<std::string> notes;
};

/// Returns whether a folder holds adapters (adapter_config.json) and no weights of a model or checkpoint.
bool is_adapter_folder(const std::filesystem::path& folder, FileSystem& files = FileSystem::posix());

/// Reads `folder`/adapter_config.json. @throws InvalidArgument in one line that names the file and every key with which the
/// adapters are not those of nn::LoraOptions (another peft_type, DoRA, ranks by module, ...); IoError.
AdapterConfig read_adapter_config(const std::filesystem::path& folder,
                                  FileSystem& files = FileSystem::posix());

/// @throws InvalidArgument naming both values where rank or alpha differ.
void require_same(const AdapterConfig& config, const nn::LoraOptions& lora);

/// Fills the adapters of a sharded model from a folder that export_adapters() or PEFT wrote; its other parameters keep their
/// values. Every rank reads adapter_config.json, and its elements of the weights. Collective, as import_weights().
/// @throws InvalidArgument as read_adapter_config(), require_same() and import_weights(): modules and shapes must be the
/// model's, whatever options.allow_missing and allow_unexpected are; IoError.
LoadReport import_adapters(ModuleBase& model, const std::filesystem::path& folder,
                           const nn::LoraOptions& lora, LoadOptions options = {},
                           FileSystem& files = FileSystem::posix());

/// Returns the copies of the files that import_adapters() reads, with digests as weights_copies(). @throws IoError,
/// CorruptCheckpoint.
std::vector<FileCopy> adapter_copies(const std::filesystem::path& folder,
                                     FileSystem& files = FileSystem::posix());

}  // namespace sherd::hf
