// Names of layout policies, and the cost that whole parameters are balanced by.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/dtensor/layout.h>

namespace sherd {
namespace {

constexpr EnumTable<LayoutPolicy, 3> kPolicies{"ragged", "even_rows", "whole_param"};
constexpr EnumTable<Packing, 3> kPackings{"lpt", "size_match", "ping_pong"};

double matrix_cost(int64_t rows, int64_t cols) {
  const auto small = static_cast<double>(std::min(rows, cols));
  return static_cast<double>(std::max(rows, cols)) * small * small;
}

/// Products modulo 2^64 decide for a power of 2, also of sizes that pass 64 bits.
bool divides_row(int64_t granule, const Shape& shape) {
  uint64_t row = 1;
  for (size_t i = 1; i < shape.size(); ++i) row *= static_cast<uint64_t>(shape[i]);
  return row % static_cast<uint64_t>(granule) == 0;
}

}  // namespace

const char* name_of(LayoutPolicy policy) { return kPolicies.name(policy); }
const char* name_of(Packing packing) { return kPackings.name(packing); }

std::string to_string(LayoutChoice choice) {
  const std::string policy = name_of(choice.policy);
  return choice.policy == LayoutPolicy::whole_param ? policy + ":" + name_of(choice.packing) : policy;
}

LayoutChoice parse_layout(std::string_view text) {
  std::vector<std::string> legal;
  const auto offer = [&](const std::string& name) {
    legal.push_back(name);
    return name == text;
  };
  for (LayoutPolicy policy : {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param})
    if (offer(name_of(policy))) return {policy, Packing::lpt};
  for (Packing packing : {Packing::lpt, Packing::size_match, Packing::ping_pong}) {
    const LayoutChoice choice{LayoutPolicy::whole_param, packing};
    if (offer(to_string(choice))) return choice;
  }
  throw InvalidArgument(fmt::format("layout '{}' is unknown; use {}", text, fmt::join(legal, ", ")));
}

double packing_cost(const LayoutParam& param) {
  if (param.cost > 0) return param.cost;
  const Shape& s = param.shape;
  return s.size() == 2 ? matrix_cost(s[0], s[1]) : static_cast<double>(numel_of(s));
}

std::string complaints_about(const LayoutParam& param) {
  std::string bad;
  for (int64_t d : param.shape)
    if (d < 0) {
      bad += fmt::format("\n  parameter '{}' of shape {}: a size is negative", param.name,
                         to_string(param.shape));
      break;
    }
  if (!(param.cost >= 0 && std::isfinite(param.cost)))
    bad += fmt::format("\n  parameter '{}': cost {} is negative or not finite", param.name, param.cost);
  if (!std::has_single_bit(static_cast<uint64_t>(param.granule)) ||
      (bad.empty() && !divides_row(param.granule, param.shape)))
    bad += fmt::format("\n  parameter '{}' of shape {}: granule {} is not a power of 2 that divides a row",
                       param.name, to_string(param.shape), param.granule);
  return bad;
}

}  // namespace sherd
