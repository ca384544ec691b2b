// Values in JSON as values of fields.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_object.h>
#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/train/settings/saved_settings.h>

namespace sherd {
namespace {

using nlohmann::json;

/// Sets the value if the JSON value is of its type; returns whether it is.
template <class T>
bool set_from_json(T* value, const json& saved) {
  bool fits = false;
  if constexpr (std::is_same_v<T, std::string>) {
    fits = saved.is_string();
  } else if constexpr (std::is_same_v<T, bool>) {
    fits = saved.is_boolean();
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    fits = saved.is_number_unsigned();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    fits = saved.is_number_integer();
  } else if constexpr (std::is_same_v<T, double>) {
    fits = saved.is_number();
  } else if (saved.is_null()) {  // an optional number
    value->reset();
    return true;
  } else {
    fits = std::is_same_v<T, std::optional<double>> ? saved.is_number() : saved.is_number_integer();
  }
  if constexpr (kIsOptional<T>) {
    if (fits) *value = saved.get<typename T::value_type>();
  } else {
    if (fits) *value = saved.get<T>();
  }
  return fits;
}

/// Same as set_from_json(), within the field's words and bounds. Otherwise returns the problem and leaves the
/// field unchanged.
std::string take(const Field& field, const json& saved) {
  return std::visit(
      [&](auto value) -> std::string {
        if constexpr (std::is_same_v<decltype(value), WordTarget>) {
          return saved.is_string() ? set_from_text(field, saved.get<std::string>()) : "the value is unknown";
        } else {
          const auto before = *value;
          if (!set_from_json(value, saved)) return "the value is unknown";
          std::string wrong = check_value(field);
          if (!wrong.empty()) *value = before;
          return wrong;
        }
      },
      field.target);
}

/// The bytes of a text in hexadecimal; nothing of another text.
std::optional<std::string> bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    uint8_t byte = 0;
    const std::string_view digits = hex.substr(i, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

/// The saved value of a field; of a text that is not UTF-8 the bytes that kHexEnding has.
json saved_value(const json& config, const std::string& name) {
  const auto hex = config.find(name + kHexEnding);
  if (hex == config.end() || !hex->is_string() || !config[name].is_string()) return config[name];
  const auto bytes = bytes_of_hex(hex->get_ref<const std::string&>());
  return bytes ? json(*bytes) : config[name];
}

}  // namespace

std::vector<std::string_view> take_saved_settings(const SavedTraining& saved,
                                                  std::span<const FieldGroup> groups,
                                                  std::span<const std::string_view> names,
                                                  std::vector<std::string>& problems) {
  std::vector<std::string_view> set;
  const auto found = saved.training.info.find("config");
  if (found == saved.training.info.end() || found->second.empty()) return set;
  json config;
  try {
    config = parse_object(found->second, fmt::format("{}, its settings", saved.checkpoint.string()),
                          "resume another checkpoint, or import the weights of this one alone");
  } catch (const InvalidArgument& e) {
    problems.push_back(printable(e.what(), std::string::npos));
    return set;
  }
  for (const FieldGroup& group : groups) {
    for (const Field& field : group.fields) {
      if (std::find(names.begin(), names.end(), field.name) == names.end() || !config.contains(field.name))
        continue;
      const json value = saved_value(config, field.name);
      const std::string wrong = take(field, value);
      if (wrong.empty()) {
        set.push_back(field.name);
      } else {
        problems.push_back(fmt::format("{} was saved with {} {}: {}; give the flag",
                                       printable(saved.checkpoint.string(), std::string::npos),
                                       flag_of(field), shown_value(value), wrong));
      }
    }
  }
  return set;
}

}  // namespace sherd
