// config.json of deepseek_v3 and kimi_k2. Private to nn/hf.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sherd/nn/hf/detail/config_object.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// Reads what these families have beyond others: latent attention, dense layers and the mixture. Sizes that all families
/// have, dim, layers, heads, are read before.
/// @param notes gets a line for each setting that training does not follow
void read_deepseek(ConfigObject& c, nn::ModelDescription& d, std::vector<std::string>& notes);
/// The same as keys of a config.json, without those that llama has.
void add_deepseek(const nn::ModelDescription& d, nlohmann::json& text);

/// Rotary settings of rope_type "yarn".
YarnScaling read_yarn(ConfigObject& rope, int64_t positions);
nlohmann::json yarn_text(const YarnScaling& yarn);

}  // namespace sherd::hf
