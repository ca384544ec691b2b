// Additions of DeepSeek-V3 to llama in config.json: latent attention and routing in groups. Private to nn/hf.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

/// Defaults for absent keys of a mixture with routes_in_groups().
struct GroupDefaults {
  int64_t dense_layers = 3, groups = 8, top_groups = 4;
  double scaling = 2.5;
};

/// Reads latent attention. `heads` is read before.
void read_latent(JsonObject& c, nn::ModelDescription& d);
/// Reads the mixture of a family with routes_in_groups(), and dense layers. `layers` is read before.
/// @param notes gets a line for each setting that training does not follow
void read_groups(JsonObject& c, const GroupDefaults& otherwise, nn::ModelDescription& d,
                 std::vector<std::string>& notes);
/// The same as keys of a config.json, without those that llama has.
void add_latent(const nn::ModelDescription& d, nlohmann::json& text);
void add_groups(const nn::ModelDescription& d, nlohmann::json& text);

}  // namespace sherd::hf
