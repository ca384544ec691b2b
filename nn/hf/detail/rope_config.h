// Rotary settings in config.json, of one kind of block or by kind. Private to nn/hf.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/nn/hf/detail/families.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// Reads "rope_parameters", of families with rope_by_kind with an object for each kind of block in it, or the keys of versions
/// before 5: "rope_scaling" and those outside. Sizes of heads and positions are read before.
/// @param notes gets a line for each setting that training does not follow
void read_rope(JsonObject& c, const Family& family, nn::ModelDescription& d, std::vector<std::string>& notes);
/// Adds both forms as keys of a config.json.
void add_rope(const nn::ModelDescription& d, const Family& family, nlohmann::json& text);

}  // namespace sherd::hf
