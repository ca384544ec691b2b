#include <sherd/nn/hf/detail/window_config.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/nn/hf/detail/config_values.h>

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;

// The class wants an integer.
json whole_or_not(double value) {
  return value == std::floor(value) && value < 1e15 ? json(static_cast<int64_t>(value)) : json(value);
}

}  // namespace

void read_windows(JsonObject& c, const Family& family, ModelDescription& d) {
  const bool by_layer = family.window_by_layer || family.window_pattern > 0;
  const auto types = by_layer ? c.texts("layer_types") : std::vector<std::string>();
  if (!types.empty() && static_cast<int64_t>(types.size()) != d.layers)
    return c.refuse("layer_types", fmt::format("the model has {} blocks; give one for each", d.layers));
  const int64_t pattern =
      is_gemma(d) ? size(c, "sliding_window_pattern", family.window_pattern) : family.window_pattern;
  const int64_t first = family.window_by_layer ? c.integer("max_window_layers", 28, 0, kMaxSize) : 0;
  const bool off = family.window_switch && !c.flag("use_sliding_window", false);
  // A null means: without a window; so does an absent key of a class without a default window.
  const bool none = is_null(c, "sliding_window") || (!c.has("sliding_window") && family.window == 0);
  d.windowed.clear();
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string type = types.empty() ? "" : types[static_cast<size_t>(i)];
    if (!types.empty() && type != kFullAttention && type != kSlidingAttention)
      return c.refuse("layer_types", "only \"full_attention\" and \"sliding_attention\" are known");
    const bool by_place = pattern > 0 ? (i + 1) % pattern != 0 : !off && !none && i >= first;
    d.windowed.push_back(types.empty() ? by_place : type == kSlidingAttention);
  }
  if (std::find(d.windowed.begin(), d.windowed.end(), true) == d.windowed.end())
    d.windowed.clear();
  else if (off)
    c.refuse("layer_types", "blocks other than \"full_attention\" need use_sliding_window; set both alike");
  else if (none)
    c.refuse("sliding_window", "blocks of \"sliding_attention\" need a window; give its positions");
  else
    d.window = size(c, "sliding_window", family.window);
}

void read_gemma(JsonObject& c, ModelDescription& d) {
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

void add_windows(const ModelDescription& d, const Family& family, json& text) {
  const auto first = std::find(d.windowed.begin(), d.windowed.end(), true);
  const bool any = first != d.windowed.end();
  text["sliding_window"] = any ? json(d.window) : json();
  if (family.window_switch) text["use_sliding_window"] = any;
  if (family.window_by_layer && any) text["max_window_layers"] = first - d.windowed.begin();
  if (family.window_pattern == 0 && !(family.window_by_layer && any)) return;
  json types = json::array();
  for (int64_t i = 0; i < d.layers; ++i)
    types.push_back(d.has_window(i) ? kSlidingAttention : kFullAttention);
  text["layer_types"] = types;
}

}  // namespace sherd::hf
