#include <sherd/train/settings/fields.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>

namespace sherd {
namespace {

bool is_switch(const Field& field) { return field.value[0] == '\0'; }

std::vector<std::string_view> allowed_words(const Field& field) {
  std::vector<std::string_view> words;
  std::string_view rest = field.value;
  if (rest.find('|') == rest.npos) return words;
  while (true) {
    const size_t bar = rest.find('|');
    words.push_back(rest.substr(0, bar));
    if (bar == rest.npos) return words;
    rest.remove_prefix(bar + 1);
  }
}

/// Whether the text is one of the field's words; true for a field without.
bool is_allowed(const Field& field, std::string_view text) {
  const auto words = allowed_words(field);
  return words.empty() || std::find(words.begin(), words.end(), text) != words.end();
}

/// The word that this spelling stands for.
std::string canonical(const Field& field, const std::string& text) {
  std::string_view rest = field.aliases;
  while (!rest.empty()) {
    const std::string_view alias = rest.substr(0, rest.find('|'));
    const size_t equals = alias.find('=');
    if (alias.substr(0, equals) == text) return std::string(alias.substr(equals + 1));
    rest.remove_prefix(std::min(alias.size() + 1, rest.size()));
  }
  return text;
}

/// The text in lines of kHelpColumns that begin at column 28, broken after blanks and bars; `line` is the first one's begin.
std::string wrapped(std::string line, std::string_view text) {
  constexpr size_t kColumn = 28;
  std::string lines;
  line.resize(std::max(line.size() + 1, kColumn), ' ');
  bool has_words = false;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, std::min(text.find_first_of(" |"), text.size() - 1) + 1);
    const size_t shown = part.size() - (part.ends_with(' ') ? 1 : 0);
    if (has_words && line.size() + shown > kHelpColumns) {
      lines += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
      line.assign(kColumn, ' ');
    }
    line += part;
    has_words = true;
    text.remove_prefix(part.size());
  }
  return lines + line + '\n';
}

std::string help_of(const Field& field) {
  const bool words = !allowed_words(field).empty();
  const std::string value = show_value(field);
  const std::string standard = value.empty() || is_switch(field) ? "" : fmt::format(" [{}]", value);
  const std::string flag =
      fmt::format("  {}{}{}", flag_of(field), words || is_switch(field) ? "" : " ", words ? "" : field.value);
  if (!words) return wrapped(flag, field.help + standard);
  return wrapped(flag, field.help) + wrapped("", field.value + standard);
}

/// The whole text as a number.
template <class T>
bool parse_number(std::string_view text, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  value = parsed;
  return true;
}

bool parse_bytes(std::string_view text, int64_t& value) {
  int shift = 0;
  if (!text.empty()) {
    const size_t suffix = std::string_view("KMGkmg").find(text.back());
    if (suffix != std::string_view::npos) {
      shift = 10 * static_cast<int>(suffix % 3 + 1);
      text.remove_suffix(1);
    }
  }
  int64_t number = 0;
  if (!parse_number(text, number) || text.starts_with('-')) return false;
  if (number > (std::numeric_limits<int64_t>::max() >> shift)) return false;
  value = number << shift;
  return true;
}

std::string bounds_of(const Field& field) {
  if (field.above_low)
    return fmt::format("must be greater than {:.15g} and at most {:.15g}", field.low, field.high);
  if (field.below_high)
    return fmt::format("must be less than {:.15g} and at least {:.15g}", field.high, field.low);
  return fmt::format("must be from {:.15g} to {:.15g}", field.low, field.high);
}

std::string check_bounds(const Field& field, double number) {
  const bool excluded =
      (field.above_low && number == field.low) || (field.below_high && number == field.high);
  if (number >= field.low && number <= field.high && !excluded) return "";  // false for a NaN
  return std::isfinite(number) ? bounds_of(field) : bounds_of(field) + ", and finite";
}

/// Whether the text begins with a number of its type's form, which std::from_chars() then finds too large or too small.
template <class T>
bool is_out_of_range(std::string_view text) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

template <class T>
std::string parse_as(const Field& field, const std::string& text, T& number) {
  T parsed{};
  if (!parse_number(text, parsed)) {
    if constexpr (std::is_same_v<T, uint64_t>) return "must be a whole number from 0 to 2^64 - 1";
    if (is_out_of_range<T>(text)) return bounds_of(field) + "; this has no 64-bit representation";
    return std::is_same_v<T, int64_t> ? "must be a whole number" : "must be a number";
  }
  if (parsed == 0 && text.starts_with('-') && field.low <= 0)
    return bounds_of(field) + "; write 0 without a sign";
  number = parsed;
  return "";
}

}  // namespace

std::string flag_of(std::string_view name) {
  std::string flag = fmt::format("--{}", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string flag_of(const Field& field) { return flag_of(field.name); }

std::string set_from_text(const Field& field, const std::string& text) {
  return std::visit(
      [&](auto value) -> std::string {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, WordTarget>) {
          const std::string word = canonical(field, text);
          if (!is_allowed(field, word)) return fmt::format("must be one of {}", field.value);
          value.set(value.value, word);
          return "";
        } else if constexpr (std::is_same_v<T, std::string>) {
          *value = canonical(field, text);
          return "";
        } else if constexpr (std::is_same_v<T, bool>) {
          if (text != "true" && text != "false") return "must be true or false";
          *value = text == "true";
          return "";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          const bool bytes = field.value == std::string_view("BYTES");
          if (bytes)
            return parse_bytes(text, *value) ? ""
                                             : "must be a number of bytes such as 1500000, 64K, 200M or 2G";
          return parse_as(field, text, *value);
        } else if constexpr (kIsOptional<T>) {
          typename T::value_type number = 0;
          std::string wrong = parse_as(field, text, number);
          if (wrong.empty()) *value = number;
          return wrong;
        } else {
          return parse_as(field, text, *value);
        }
      },
      field.target);
}

std::string check_value(const Field& field) {
  return std::visit(
      [&](auto value) -> std::string {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return is_allowed(field, *value) ? "" : fmt::format("must be one of {}", field.value);
        } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          return check_bounds(field, static_cast<double>(*value));
        } else if constexpr (kIsOptional<T>) {
          return value->has_value() ? check_bounds(field, static_cast<double>(**value)) : "";
        } else {
          return "";
        }
      },
      field.target);
}

std::string show_value(const Field& field) {
  return std::visit(
      [](auto value) -> std::string {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, WordTarget>)
          return std::string(value.word(value.value));
        else if constexpr (kIsOptional<T>)
          return value->has_value() ? fmt::format("{}", **value) : "";
        else
          return fmt::format("{}", *value);
      },
      field.target);
}

std::string help_text(std::string_view about, std::span<const FieldGroup> groups, bool all) {
  size_t listed = 0;
  for (const FieldGroup& group : groups)
    listed +=
        static_cast<size_t>(std::ranges::count_if(group.fields, [](const Field& f) { return f.first_day; }));
  const bool some = !all && listed > 0;
  std::string text(about);
  text += wrapped("  --config FILE",
                  "Protobuf text of the options below, underscores for dashes; flags have priority");
  text += wrapped("  --help", listed > 0 ? "most used options" : "all options");
  if (listed > 0) text += wrapped("  --help-all", "all options");
  text += wrapped("  --version", "version and compiled backends");
  for (const FieldGroup& group : groups) {
    std::string fields;
    for (const Field& field : group.fields)
      if (!some || field.first_day) fields += help_of(field);
    if (!fields.empty()) text += fmt::format("\n{}\n{}", group.title, fields);
  }
  return text;
}

std::string config_text(std::span<const FieldGroup> groups) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const FieldGroup& group : groups)
    for (const Field& field : group.fields)
      std::visit(
          [&](auto value) {
            using T = std::remove_pointer_t<decltype(value)>;
            if constexpr (std::is_same_v<T, WordTarget>)
              json[field.name] = value.word(value.value);
            else if constexpr (kIsOptional<T>)
              json[field.name] = value->has_value() ? nlohmann::ordered_json(**value) : nullptr;
            else
              json[field.name] = *value;
            if constexpr (std::is_same_v<T, std::string>)
              if (!is_utf8(*value))
                json[std::string(field.name) + kHexEnding] = fmt::format(
                    "{:02x}",
                    fmt::join(std::span(reinterpret_cast<const unsigned char*>(value->data()), value->size()),
                              ""));
          },
          field.target);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace sherd
