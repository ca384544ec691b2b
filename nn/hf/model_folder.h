// A Hugging Face folder as a program takes it in: what it describes, and how its weights are stored.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <sherd/checkpoint/stored_folder.h>
#include <sherd/checkpoint/stored_forms.h>

#include <sherd/nn/hf/model_config.h>

namespace sherd::hf {

/// Stored forms of a model that nn::causal_model() builds from `description`: the family's names with and
/// without the prefix of the trunk, experts one by one and fused, and other tensors in folders of the family.
/// A head for multi-token prediction has copies of embedding and head, as its makers store it. Adapters
/// (LoraOptions) are not part of a folder: import leaves them as they are, and export leaves them out.
///
///     const ModelConfig config = read_model_config(folder);
///     ... causal_model(config.description), fully_shard() ...
///     import_weights(model, folder, stored_forms(config.description));
///     export_weights(model, out, forms, {.like = StoredFolder::open(folder)});            // as it came in
///     export_weights(model, out, forms, {.files = {{"config.json", text}}});                // model_config_text()
StoredForms stored_forms(const nn::ModelDescription& description);

/// Compares a description with the blocks and bytes that stored weights have, from headers alone: before a model is
/// built of it that costs gigabytes, and minutes, only to be refused. Of models that are built at once, or that are not
/// far from what is stored, the comparison is left to import_weights(), which names each tensor.
/// @param weights what import_weights() reads; where that fails nothing is compared.
/// @throws InvalidArgument naming config.json, its key, and what the weights have.
void require_sizes(const ModelConfig& config, const std::filesystem::path& weights);

}  // namespace sherd::hf
