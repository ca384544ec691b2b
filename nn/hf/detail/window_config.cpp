#include <sherd/nn/hf/detail/window_config.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/nn/hf/detail/config_values.h>
#include <sherd/nn/hf/detail/deepseek_config.h>

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;
using nn::RopeDescription;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

RopeDescription read_rope_of_kind(ConfigObject& rope, double theta, const ModelDescription& d) {
  RopeDescription r;
  r.theta = rope.number("rope_theta", theta, kTiny, kHuge);
  const char* type_key = spelling(rope, {"rope_type", "type"});
  const std::string type = rope.text(type_key, "default");
  if (type == "linear" && is_gemma(d)) {
    r.factor = rope.number("factor", std::nullopt, 1, kHuge);
  } else if (type == "yarn" && takes_yarn(d)) {
    r.yarn = read_yarn(rope, d.positions);
    // The class looks for this key outside of the kinds.
    require_flag(rope, "truncate", true, true, "transformers rounds the bounds all the same; set it to true");
  } else if (type != "default") {
    rope.refuse(
        type_key,
        fmt::format("only the rotary embeddings \"default\" and \"{}\" are computed; train a model with "
                    "one of these",
                    is_gemma(d) ? "linear" : "yarn"));
  }
  return r;
}

json rope_of_kind_text(const RopeDescription& r) {
  json text = r.yarn ? yarn_text(*r.yarn) : json{{"rope_type", "default"}};
  if (r.factor != 1) text = {{"rope_type", "linear"}, {"factor", r.factor}};
  text["rope_theta"] = r.theta;
  return text;
}

// The class wants an integer.
json whole_or_not(double value) {
  return value == std::floor(value) && value < 1e15 ? json(static_cast<int64_t>(value)) : json(value);
}

}  // namespace

void read_layer_kinds(ConfigObject& c, const Family& family, ModelDescription& d) {
  const std::vector<std::string> types = c.texts("layer_types");
  const int64_t pattern =
      is_gemma(d) ? size(c, "sliding_window_pattern", family.window_pattern) : family.window_pattern;
  d.windowed.clear();
  if (!types.empty() && static_cast<int64_t>(types.size()) != d.layers)
    return c.refuse("layer_types", fmt::format("the model has {} blocks; give one for each", d.layers));
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string type =
        types.empty() ? (i + 1) % pattern == 0 ? kFull : kSliding : types[static_cast<size_t>(i)];
    if (type != kFull && type != kSliding)
      return c.refuse("layer_types", "only \"full_attention\" and \"sliding_attention\" are known");
    d.windowed.push_back(type == kSliding);
  }
  if (std::find(d.windowed.begin(), d.windowed.end(), true) == d.windowed.end())
    d.windowed.clear();
  else if (c.contains("sliding_window") && !c.has("sliding_window"))
    c.refuse("sliding_window", "blocks of \"sliding_attention\" need a window; give its positions");
  else
    d.window = size(c, "sliding_window", family.window);
}

void read_rope_by_kind(ConfigObject& c, const Family& family, ModelDescription& d) {
  ConfigObject all = c.object("rope_parameters");
  if (c.has("rope_parameters") && !all.has(kFull) && !all.has(kSliding) &&
      c.raw("rope_parameters") != json::object())
    return c.refuse(
        "rope_parameters",
        "this family has an object \"full_attention\" and one \"sliding_attention\" in it; write both");
  // As transformers: what versions before 5 wrote is of blocks without a window.
  ConfigObject before = c.object("rope_scaling"), full = all.has(kFull) ? all.object(kFull) : before;
  if (all.has(kFull) && c.has("rope_scaling"))
    for (const auto& [key, value] : c.raw("rope_scaling").items())
      if (full.raw(key.c_str()) != value)
        return c.refuse("rope_scaling", "rope_parameters.full_attention says otherwise; leave one of them");
  ConfigObject sliding = all.object(kSliding);
  const double outside = c.number("rope_theta", family.theta, kTiny, kHuge);
  d.rope = read_rope_of_kind(full, outside, d);
  const char* key = family.window_theta_key;
  if (key == nullptr && outside != family.theta && !sliding.has("rope_theta"))
    return c.refuse(
        "rope_theta",
        fmt::format("transformers 5 takes it for blocks without a window alone, and {} for the others; "
                    "write rope_parameters by kind of block",
                    family.window_theta));
  const double of_windows =
      key == nullptr ? family.window_theta : c.number(key, family.window_theta, kTiny, kHuge);
  d.window_rope = read_rope_of_kind(sliding, of_windows, d);
}

void read_gemma(ConfigObject& c, ModelDescription& d) {
  d.query_scalar = c.number("query_pre_attn_scalar", 256, kTiny, kHuge);
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (c.has(key)) c.refuse(key, "soft-capping is not computed; train a model without it");
  require_flag(c, "use_bidirectional_attention", false, false, "only causal attention is computed");
}

void add_gemma(const ModelDescription& d, json& text) {
  text.erase("hidden_act");
  text["hidden_activation"] = "gelu_pytorch_tanh";
  text["query_pre_attn_scalar"] =
      whole_or_not(d.query_scalar > 0 ? d.query_scalar : static_cast<double>(d.head_dim));
  text["rope_local_base_freq"] = d.window_rope.value_or(d.rope).theta;
  text["final_logit_softcapping"] = text["attn_logit_softcapping"] = json();
}

void add_layer_kinds(const ModelDescription& d, json& text) {
  json types = json::array();
  for (int64_t i = 0; i < d.layers; ++i) types.push_back(d.has_window(i) ? kSliding : kFull);
  text["layer_types"] = types;
  text["sliding_window"] = d.window > 0 ? json(d.window) : json();
}

void add_rope_by_kind(const ModelDescription& d, json& text) {
  json scaling = rope_of_kind_text(d.rope);
  scaling.erase("rope_theta");
  text["rope_scaling"] = scaling["rope_type"] == "default" ? json() : scaling;
  text["rope_theta"] = d.rope.theta;
  text["rope_parameters"] = {{kFull, rope_of_kind_text(d.rope)},
                             {kSliding, rope_of_kind_text(d.window_rope.value_or(d.rope))}};
}

}  // namespace sherd::hf
