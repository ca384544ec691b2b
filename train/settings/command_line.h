// Command line of a program whose settings are a table of fields.
//
// In order: read_flags(), then read_config_file() (config_file.h) where a file is named, then set_given(), so
// that flags win over the file and the file over defaults; then check_values() and the program's own rules;
// throw_problems() last, so that one message names everything that is wrong.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/settings/fields.h>

namespace sherd {

/// Flags of a command line, not applied to the fields yet.
struct GivenFlags {
  struct Flag {
    const Field* field;
    std::string text;  // from the last of equal flags; "true" for a switch
  };
  std::vector<Flag> flags;  // in the order of the table
  std::string config_file;  // --config FILE; empty: none
  bool help = false;        // --help, -h or --help-all: the rest is ignored
  bool help_all = false;
  bool version = false;

  /// Returns whether the flag of the field with this name was given.
  bool has(std::string_view name) const;
};

/// Splits a command line. Appends unknown flags, missing values and words that belong to no flag to
/// `problems`. The result refers to `groups`, which stay where they are.
GivenFlags read_flags(int argc, const char* const* argv, std::span<const FieldGroup> groups,
                      std::vector<std::string>& problems);

/// Sets the fields whose flags were given; appends values that cannot be parsed to `problems`.
/// @returns the names of settings whose text is refused, which keep their value.
std::set<std::string_view> set_given(const GivenFlags& given, std::vector<std::string>& problems);

/// Checks every field's value, wherever it comes from. @returns the names of those that are outside their
/// words or bounds, after appending a line on each: rules among several fields then check valid values
/// alone.
std::set<std::string_view> check_values(std::span<const FieldGroup> groups, const GivenFlags& given,
                                        std::vector<std::string>& problems);

/// @throws InvalidArgument that holds all problems, a line each; returns when the list is empty.
void throw_problems(const std::vector<std::string>& problems);

}  // namespace sherd
