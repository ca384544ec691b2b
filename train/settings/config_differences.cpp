#include <sherd/train/settings/config_differences.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/printable.h>
#include <sherd/train/settings/fields.h>

namespace sherd {
namespace {

std::string show(const nlohmann::json& value) {
  return value.is_string() ? fmt::format("'{}'", printable(value.get_ref<const std::string&>()))
                           : shown_value(value);
}

}  // namespace

std::vector<std::string> config_differences(const TrainingState& saved, const std::string& config,
                                            std::span<const std::string_view> names) {
  std::vector<std::string> differences;
  const auto found = saved.info.find("config");
  if (found == saved.info.end()) return differences;
  const auto then = read_json_or_null(found->second);
  const auto now = read_json_or_null(config);
  if (!then.is_object()) return differences;
  for (const std::string_view name : names) {
    const std::string key(name);
    if (then.contains(key) && then[key] != now.at(key))
      differences.push_back(
          fmt::format("{} {} (here {})", flag_of(name), show(then[key]), show(now.at(key))));
  }
  return differences;
}

std::string shortened(std::vector<std::string> list, size_t most) {
  const size_t more = list.size() - std::min(list.size(), most);
  list.resize(list.size() - more);
  return fmt::format("{}{}", fmt::join(list, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace sherd
