#include <sherd/nn/hf/detail/rope_config.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/nn/hf/detail/config_values.h>

namespace sherd::hf {
namespace {

using nlohmann::json;
using nn::ModelDescription;
using nn::RopeDescription;

constexpr RopeType kRopeTypes[] = {RopeType::plain,  RopeType::linear, RopeType::dynamic,
                                   RopeType::llama3, RopeType::yarn,   RopeType::longrope};

constexpr unsigned types(std::initializer_list<RopeType> all) {
  unsigned bits = 0;
  for (const RopeType type : all) bits |= 1u << static_cast<unsigned>(type);
  return bits;
}
constexpr unsigned kLlama3 = types({RopeType::llama3}), kYarn = types({RopeType::yarn}),
                   kLong = types({RopeType::longrope}),
                   kAll = types({RopeType::linear, RopeType::dynamic}) | kLlama3 | kYarn | kLong;

/// A number of a scaling: the types that have the key, and what its class takes where it is absent.
struct ScalingKey {
  const char* name;
  double RopeScaling::*value;
  unsigned types;
  std::optional<double> otherwise;  // none: it must be there
  double low;
  bool of(RopeType type) const { return (types & 1u << static_cast<unsigned>(type)) != 0; }
};
constexpr ScalingKey kScalingKeys[] = {
    {"factor", &RopeScaling::factor, kAll, std::nullopt, 1},
    {"low_freq_factor", &RopeScaling::low_freq_factor, kLlama3, std::nullopt, kTiny},
    {"high_freq_factor", &RopeScaling::high_freq_factor, kLlama3, std::nullopt, kTiny},
    {"beta_fast", &RopeScaling::beta_fast, kYarn, 32, kTiny},
    {"beta_slow", &RopeScaling::beta_slow, kYarn, 1, kTiny},
    {"mscale", &RopeScaling::mscale, kYarn, 0, 0},
    {"mscale_all_dim", &RopeScaling::mscale_all_dim, kYarn, 0, 0},
    {"attention_factor", &RopeScaling::attention_factor, kYarn | kLong, 0, kTiny}};

constexpr const char* kOriginal = "original_max_position_embeddings";
bool has_original(RopeType type) {
  return (1u << static_cast<unsigned>(type) & (kLlama3 | kYarn | kLong)) != 0;
}

void read_lists(JsonObject& rope, int64_t columns, RopeScaling& s) {
  for (const auto& [key, list] :
       {std::pair{"short_factor", &s.short_factor}, {"long_factor", &s.long_factor}}) {
    *list = rope.numbers(key, kTiny, kHuge);
    if (std::ssize(*list) != columns / 2 && !rope.refused(key))
      rope.refuse(key, fmt::format("of the {} rotated columns of a head every two need a factor; give {}",
                                   columns, columns / 2));
  }
}

// Returns transformers' default for an absent factor of longrope, and for a null one of yarn: the ratio of
// the lengths.
std::optional<double> factor_of_lengths(JsonObject& rope, const ModelDescription& d, const RopeScaling& s) {
  const bool is_long = s.type == RopeType::longrope;
  if (!is_long && !(s.type == RopeType::yarn && is_null(rope, "factor"))) return std::nullopt;
  const double ratio =
      static_cast<double>(d.positions) / static_cast<double>(s.original_max_position_embeddings);
  return ratio >= 1 ? std::optional(ratio) : is_long ? std::optional(1.0) : std::nullopt;
}

// Keys of one object but "rope_theta". `original`: what is said outside of it.
RopeScaling read_scaling(JsonObject& rope, const ModelDescription& d, int64_t columns,
                         std::optional<int64_t> original) {
  RopeScaling s;
  const char* type_key = spelling(rope, {"rope_type", "type"});
  const std::string name = rope.text(type_key, "default");
  const auto type = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                 [&](RopeType t) { return to_string(t) == name; });
  if (type == std::end(kRopeTypes)) {
    std::vector<std::string_view> names;
    for (const RopeType t : kRopeTypes) names.push_back(to_string(t));
    rope.refuse(type_key,
                fmt::format("the rotary embeddings that are computed are {}; train a model with one of these",
                            fmt::join(names, ", ")));
    return s;
  }
  s.type = *type;
  if (has_original(s.type))
    s.original_max_position_embeddings = original.value_or(size(rope, kOriginal, d.positions));
  for (const ScalingKey& key : kScalingKeys) {
    if (!key.of(s.type)) continue;
    std::optional<double> otherwise = key.otherwise;
    if (key.value == &RopeScaling::factor) otherwise = factor_of_lengths(rope, d, s);
    s.*key.value = rope.number(key.name, otherwise, key.low, kHuge);
  }
  if (s.type == RopeType::llama3 && rope.has("low_freq_factor") && rope.has("high_freq_factor") &&
      !(s.low_freq_factor < s.high_freq_factor))
    rope.refuse("low_freq_factor",
                fmt::format("it must be smaller than high_freq_factor, which is {}", s.high_freq_factor));
  if (s.type == RopeType::yarn) s.truncate = rope.flag("truncate", true);
  if (s.type == RopeType::yarn && s.beta_slow > s.beta_fast)
    rope.refuse("beta_slow", fmt::format("it must be at most beta_fast, which is {}", s.beta_fast));
  if (s.type == RopeType::longrope) read_lists(rope, columns, s);
  // Its class multiplies scores by it for every type but "default".
  if (is_deepseek(d) && s.type != RopeType::plain && s.type != RopeType::yarn &&
      rope.number("mscale_all_dim", 0, 0, kHuge) != 0)
    rope.refuse("mscale_all_dim", "scores are scaled with \"yarn\" alone; remove it");
  return s;
}

// Reads the rotated part of each head; columns as the class counts them.
void read_rotated_part(JsonObject& c, JsonObject& rope, ModelDescription& d) {
  const double outside = c.number("partial_rotary_factor", 0.5, kTiny, 1);
  const double part = rope.number("partial_rotary_factor", outside, kTiny, 1);
  const auto columns_of_head = static_cast<int64_t>(static_cast<double>(d.head_dim) * part);
  if (columns_of_head < 2 || columns_of_head % 2 != 0)
    (rope.has("partial_rotary_factor") ? rope : c)
        .refuse("partial_rotary_factor",
                fmt::format("{} of the {} columns of a head have no two halves to rotate", columns_of_head,
                            d.head_dim));
  d.rope.columns = columns_of_head == d.head_dim ? 0 : columns_of_head;
}

// The part of a head's columns from which the class counts as many again, rounding down.
double rotated_part(const ModelDescription& d) {
  if (d.rope.columns == 0) return 1;
  const auto columns = static_cast<double>(d.rope.columns), all = static_cast<double>(d.head_dim);
  return static_cast<int64_t>(all * (columns / all)) == d.rope.columns ? columns / all
                                                                       : (columns + 0.5) / all;
}

void read_one_rope(JsonObject& c, const Family& family, ModelDescription& d) {
  // Same as transformers: a non-empty rope_scaling replaces rope_parameters.
  const bool scaled = c.has("rope_scaling") && c.raw("rope_scaling") != json::object();
  const char* key = scaled ? "rope_scaling" : "rope_parameters";
  JsonObject rope = c.object(key);
  const double outside = c.number("rope_theta", family.theta, kTiny, kHuge);
  d.rope.theta = rope.number("rope_theta", outside, kTiny, kHuge);
  for (JsonObject* o : {&c, &rope}) {
    if (d.family == ModelFamily::glm4_moe) break;
    if (o->number("partial_rotary_factor", 1, -kHuge, kHuge) != 1)
      o->refuse("partial_rotary_factor",
                "only the rotation of whole heads is computed; train a model without this key");
  }
  if (d.family == ModelFamily::glm4_moe) read_rotated_part(c, rope, d);
  if (is_gpt_oss(d) && !scaled && !c.has("rope_parameters")) {
    d.rope.scaling = {
        .type = RopeType::yarn, .factor = 32, .original_max_position_embeddings = 4096, .truncate = false};
    return;
  }
  if (rope.has(kFullAttention) || rope.has(kSlidingAttention))
    return c.refuse(
        key, "rotary settings by kind of block are not computed; train a model with one setting for all");
  // Same as transformers: this key has priority over the inner one.
  const auto original = c.has(kOriginal) ? std::optional(size(c, kOriginal)) : std::nullopt;
  d.rope.scaling = read_scaling(rope, d, d.rotated(d.rope), original);
}

RopeDescription read_rope_of_kind(JsonObject& rope, double theta, const ModelDescription& d) {
  RopeDescription r;
  r.theta = rope.number("rope_theta", theta, kTiny, kHuge);
  r.scaling = read_scaling(rope, d, d.head_dim, std::nullopt);
  if (r.scaling.type == RopeType::yarn)  // the class looks for this key outside of the kinds
    require_flag(rope, "truncate", true, true, "transformers rounds the bounds all the same; set it to true");
  return r;
}

void read_rope_by_kind(JsonObject& c, const Family& family, ModelDescription& d,
                       std::vector<std::string>& notes) {
  JsonObject all = c.object("rope_parameters");
  if (c.has("rope_parameters") && !all.has(kFullAttention) && !all.has(kSlidingAttention) &&
      c.raw("rope_parameters") != json::object())
    return c.refuse(
        "rope_parameters",
        "this family has an object \"full_attention\" and one \"sliding_attention\" in it; write both");
  // Same as transformers: values written by versions before 5 are for blocks without a window.
  JsonObject before = c.object("rope_scaling"),
             full = all.has(kFullAttention) ? all.object(kFullAttention) : before;
  if (all.has(kFullAttention) && c.has("rope_scaling"))
    for (const auto& [key, value] : c.raw("rope_scaling").items())
      if (full.raw(key.c_str()) != value)
        return c.refuse("rope_scaling", "rope_parameters.full_attention says otherwise; leave one of them");
  JsonObject sliding = all.object(kSlidingAttention);
  const double outside = c.number("rope_theta", family.theta, kTiny, kHuge);
  // Its "rope_type" is "default" before "rope_scaling" is added, so that "type" is not looked at.
  const std::string type = before.text("type", "default");
  if (!all.has(kFullAttention) && !before.has("rope_type") && type != "default") {
    notes.push_back(
        fmt::format("\"rope_scaling.type\" is \"{}\": transformers 5 reads \"rope_type\" alone in this "
                    "family, so angles are not scaled; write \"rope_type\" to scale them",
                    type));
    d.rope.theta = before.number("rope_theta", outside, kTiny, kHuge);
  } else {
    d.rope = read_rope_of_kind(full, outside, d);
  }
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

json rope_text(const RopeDescription& r) {
  const RopeScaling& s = r.scaling;
  json text = {{"rope_type", to_string(s.type)}, {"rope_theta", r.theta}};
  for (const ScalingKey& key : kScalingKeys)
    if (key.of(s.type) && (key.otherwise != 0 || s.*key.value != 0)) text[key.name] = s.*key.value;
  if (has_original(s.type)) text[kOriginal] = s.original_max_position_embeddings;
  if (s.type == RopeType::yarn && !s.truncate) text["truncate"] = false;
  if (s.type == RopeType::longrope)
    text["short_factor"] = s.short_factor, text["long_factor"] = s.long_factor;
  return text;
}

}  // namespace

void read_rope(JsonObject& c, const Family& family, ModelDescription& d, std::vector<std::string>& notes) {
  family.rope_by_kind ? read_rope_by_kind(c, family, d, notes) : read_one_rope(c, family, d);
}

// Both forms: versions before 5 read rope_theta and rope_scaling.
void add_rope(const ModelDescription& d, const Family& family, json& text) {
  const json rope = rope_text(d.rope);
  json scaling = rope;
  scaling.erase("rope_theta");
  text["rope_scaling"] = d.rope.scaling.type == RopeType::plain ? json() : scaling;
  text["rope_theta"] = d.rope.theta;
  text["rope_parameters"] = rope;
  if (family.rope_by_kind)
    text["rope_parameters"] = {{kFullAttention, rope},
                               {kSlidingAttention, rope_text(d.window_rope.value_or(d.rope))}};
  if (d.family == ModelFamily::glm4_moe)
    text["partial_rotary_factor"] = text["rope_parameters"]["partial_rotary_factor"] = rotated_part(d);
}

}  // namespace sherd::hf
