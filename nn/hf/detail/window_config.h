// Blocks with windows in config.json, and what Gemma 3 has beyond llama. Private to nn/hf.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/nn/hf/detail/families.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// Reads which blocks of a family with windows have one, and its positions. `layers` is read before.
void read_windows(JsonObject& c, const Family& family, nn::ModelDescription& d);
/// Reads what Gemma 3 has besides: the scale of scores; refuses soft-capping and attention to later positions.
void read_gemma(JsonObject& c, nn::ModelDescription& d);
/// Add these as keys of a config.json.
void add_windows(const nn::ModelDescription& d, const Family& family, nlohmann::json& text);
void add_gemma(const nn::ModelDescription& d, nlohmann::json& text);

}  // namespace sherd::hf
