// Table of a program's settings: name, location, allowed values and help of each.
//
// The table is the only list: flags, the config file, --help and the record in metrics and checkpoints are
// made from it. Messages of train/ name a setting by its flag: `save_every` is --save-every. Programs that
// use a part of train/ name its settings as that part's header does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <sherd/base/enum_table.h>

namespace sherd {

/// Value whose words are those of an enumeration. Without a value an optional one has the word "auto".
struct WordTarget {
  void* value;
  std::string_view (*word)(const void* value);
  /// @pre `word` is one of the words.
  void (*set)(void* value, std::string_view word);
};

struct Field {
  using Target = std::variant<std::string*, int64_t*, uint64_t*, double*, bool*, std::optional<double>*,
                              std::optional<int64_t>*, WordTarget>;

  /// "grad_accum"; the flag is "--grad-accum".
  const char* name;
  /// Location of the value; the program's own, which outlives the field. Its initial content is the default.
  /// An optional number without a value is chosen by the program, and shown as empty.
  Target target;
  /// Placeholder of the value in --help. "a|b" is the list of allowed words; "BYTES" allows the suffixes K, M
  /// and G; empty: a switch without value.
  const char* value;
  const char* help;
  /// Inclusive bounds of numbers; unsigned numbers have no bounds.
  double low = 0;
  double high = 0;
  /// Other spellings of words, "other=word|..."; the word is kept.
  const char* aliases = "";
  /// Listed by --help; the others by --help-all alone. Without such fields --help lists all.
  bool first_day = false;
  /// Exclude the bound itself.
  bool above_low = false, below_high = false;
};

/// True if the value of a field is an optional number.
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

/// Returns the target for an enumeration's value, or an optional one, with the words of the table.
template <const auto& table, class T>
WordTarget word_target(T& value) {
  return {&value,
          [](const void* at) -> std::string_view {
            const T& stored = *static_cast<const T*>(at);
            if constexpr (kIsOptional<T>)
              return stored ? table.name(*stored) : "auto";
            else
              return table.name(stored);
          },
          [](void* at, std::string_view word) {
            T& stored = *static_cast<T*>(at);
            if constexpr (kIsOptional<T>)
              if (word == "auto") return stored.reset();
            stored = table.parse("word", word);
          }};
}

/// Fields under one heading of --help.
struct FieldGroup {
  const char* title;
  std::vector<Field> fields;
};

/// "--grad-accum"
std::string flag_of(std::string_view name);
std::string flag_of(const Field& field);

/// Sets the field from text; returns the error, empty on success.
[[nodiscard]] std::string set_from_text(const Field& field, const std::string& text);

/// Checks that the value is one of the allowed words and inside the bounds; returns the error, empty on
/// success.
[[nodiscard]] std::string check_value(const Field& field);

/// Returns the value as flags and messages show it.
std::string show_value(const Field& field);

/// Columns of a line of help.
inline constexpr size_t kHelpColumns = 110;

/// Returns what --help or, with `all`, --help-all prints: `about`, the flags of every program, then each group with the
/// flags' help, words and values, which are the defaults where nothing was set.
std::string help_text(std::string_view about, std::span<const FieldGroup> groups, bool all);

/// Returns all values as one JSON object, names as in the table and in its order. Metrics and checkpoints store it. In a
/// path that is not UTF-8, other bytes are replaced; a further member, `NAME_hex`, has all of its bytes.
std::string config_text(std::span<const FieldGroup> groups);

/// Ending of a member's name in config_text(): its value is a text's bytes in hexadecimal.
inline constexpr const char* kHexEnding = "_hex";

}  // namespace sherd
