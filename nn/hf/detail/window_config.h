// Blocks with windows in config.json, and rotary settings by kind of block. Private to nn/hf.
#pragma once

#include <nlohmann/json.hpp>

#include <sherd/nn/hf/detail/config_object.h>
#include <sherd/nn/hf/detail/families.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// Reads "sliding_window" and "layer_types" of a family with a window_pattern. `layers` is read before.
void read_layer_kinds(ConfigObject& c, const Family& family, nn::ModelDescription& d);
/// Reads the rotary settings of blocks without and with a window: "rope_parameters" with an object for each kind, or
/// the keys of versions before 5.
void read_rope_by_kind(ConfigObject& c, const Family& family, nn::ModelDescription& d);
/// Reads what Gemma 3 has besides: the scale of scores; refuses soft-capping and attention to later positions.
void read_gemma(ConfigObject& c, nn::ModelDescription& d);
/// Add these as keys of a config.json.
void add_gemma(const nn::ModelDescription& d, nlohmann::json& text);
void add_layer_kinds(const nn::ModelDescription& d, nlohmann::json& text);
void add_rope_by_kind(const nn::ModelDescription& d, nlohmann::json& text);

}  // namespace sherd::hf
