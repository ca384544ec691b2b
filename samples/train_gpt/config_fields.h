// The one list of train_gpt's flags: names, places in TrainConfig, bounds and help.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config.h"

namespace train_gpt {

struct Field {
  using Member = std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, uint64_t TrainConfig::*,
                              double TrainConfig::*, bool TrainConfig::*>;
  /// "grad_accum"; the flag is "--grad-accum".
  const char* name;
  Member member;
  /// Stands for the value in --help. "a|b" is the list of allowed words; "BYTES" takes the suffixes K, M and
  /// G; empty: a switch without value.
  const char* value;
  const char* help;
  /// Inclusive bounds of numbers.
  double low = 0;
  double high = 0;
};

/// Fields under one heading of --help.
struct FieldGroup {
  const char* title;
  std::vector<Field> fields;
};

std::span<const FieldGroup> field_groups();

/// "--grad-accum"
std::string flag_of(const Field& field);

/// Sets the field from text; returns what is wrong with the text, empty when it was taken.
std::string set_from_text(const Field& field, TrainConfig& config, const std::string& text);

/// The value is one of the allowed words and inside the bounds: empty, otherwise what is wrong.
std::string check_value(const Field& field, const TrainConfig& config);

/// The value as flags and messages show it.
std::string show_value(const Field& field, const TrainConfig& config);

std::string help_text();

}  // namespace train_gpt
