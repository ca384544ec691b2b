#include "param_file.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <sherd/base/detail/json_object.h>

namespace sherd::tools {
namespace {

constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max();
constexpr const char* kParamsRemedy = "write a list of objects, one for each parameter";

const std::map<std::string, DType> kDtypes = {
    {"fp32", DType::f32},      {"float32", DType::f32}, {"f32", DType::f32},     {"bf16", DType::bf16},
    {"bfloat16", DType::bf16}, {"fp16", DType::f16},    {"float16", DType::f16}, {"f16", DType::f16}};
const std::map<std::string, Master> kMasters = {
    {"f32", Master::f32}, {"bf16", Master::bf16}, {"split", Master::split}};
const std::map<std::string, Algorithm> kOptimizers = {{"muon", Algorithm::muon}, {"adamw", Algorithm::adamw}};

template <class T>
T read_word(JsonObject& entry, const char* key, const std::map<std::string, T>& words) {
  const auto found = words.find(entry.name(key));
  if (found != words.end()) return found->second;
  if (entry.refused(key)) return words.begin()->second;
  std::string known;
  for (const auto& [word, value] : words) known += (known.empty() ? "use " : ", ") + word;
  entry.refuse(key, known);
  return words.begin()->second;
}

// Also without its zeros, which hide how large the other sizes are.
bool fits(const Shape& shape) {
  int64_t product = 1;
  return std::ranges::none_of(
      shape, [&](int64_t d) { return __builtin_mul_overflow(product, std::max<int64_t>(d, 1), &product); });
}

void check_shape(JsonObject& entry, const ParamEntry& p) {
  if (!fits(p.shape)) return entry.refuse("shape", "more than 2^63 - 1 elements; split the parameter");
  const bool matrix = p.shape.size() == 2 || p.shape.size() == 3;
  if (p.optimizer == Algorithm::muon && !matrix)
    entry.refuse("shape", "muon updates matrices (2-D) and stacks of them (3-D) only; use adamw");
  if (p.blocks.empty()) return;
  if (!matrix) return entry.refuse("blocks", "only matrices have them; leave the key out");
  const int64_t rows = p.shape[p.shape.size() - 2];
  int64_t sum = 0;
  for (const int64_t b : p.blocks)
    if (__builtin_add_overflow(sum, b, &sum)) sum = kMostElements;
  if (sum != rows) entry.refuse("blocks", fmt::format("they add up to {} of the {} rows", sum, rows));
}

ParamEntry read_entry(JsonObject& entry) {
  ParamEntry p;
  p.name = entry.name("name");
  p.unit = entry.name("unit");
  p.dtype = read_word(entry, "dtype", kDtypes);
  p.optimizer = read_word(entry, "optimizer", kOptimizers);
  if (entry.has("master")) p.master = read_word(entry, "master", kMasters);
  if (p.master != Master::f32 && p.dtype != DType::bf16)
    entry.refuse("master", "of a parameter in bf16 alone; weights in another dtype have f32");
  p.tied = entry.flag("tied", false);
  p.shape = entry.integers("shape", 0, kMostElements, 0);
  p.blocks = entry.integers("blocks", 0, kMostElements);
  if (!entry.refused("shape")) check_shape(entry, p);
  entry.refuse_others();
  return p;
}

}  // namespace

std::vector<ParamEntry> parse_params(std::string_view text, const std::string& source) {
  JsonObject file = JsonObject::parse_list(text, source, kParamsRemedy);
  std::vector<ParamEntry> params;
  std::map<std::string, std::string> first_use;
  int64_t total = 0;
  file.each("", 1, [&](JsonObject& entry) {
    const ParamEntry& p = params.emplace_back(read_entry(entry));
    const auto [first, is_new] = first_use.try_emplace(p.name, entry.place());
    if (!is_new && !p.name.empty())
      entry.refuse("name", fmt::format("{} has this name, too; give each parameter its own", first->second));
    if (!entry.refused("shape") && __builtin_add_overflow(total, numel_of(p.shape), &total))
      entry.refuse("shape", "with those before it more than 2^63 - 1 elements; describe a smaller model");
  });
  file.require_none();
  return params;
}

std::vector<ParamEntry> read_params(const std::string& path) {
  return parse_params(read_text(path, "name a JSON file"), path);
}

}  // namespace sherd::tools
