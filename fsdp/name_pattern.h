// Pattern of full names of parameters and modules.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sherd {

/// Regular expression that is searched anywhere in a name, in time linear in the name's length. Flags, options and settings
/// recorded in checkpoints have this syntax:
///
/// - characters, `.`, `[a-z]`, `[^a-z]`, `\d` `\w` `\s` and their complements, `\.` and other escaped punctuation;
/// - `a|b`, `(a)`, `(?:a)`; `*` `+` `?`, and `{n}` `{n,}` `{n,m}` up to 1000, nested ones multiplied;
/// - `^`, `$`: begin and end of the name; `\b`, `\B`: at the edge of a word, or not;
/// - a leading `!`: the names in which the rest is not found, such as `!^model\.layers\.61\.`.
///
/// Case counts, and a character is a byte. It is RE2's syntax, which has no lookahead, no lookbehind and no back references.
/// Copies share the compiled form; several threads may match at once.
class NamePattern {
 public:
  /// A stranger's checkpoint may have a hostile one. Names have some 50 bytes: a list of 20 full names fits.
  static constexpr size_t kMostBytes = 1000;
  /// The longest name that is searched, 80 times a usual one.
  static constexpr size_t kMostNameBytes = 4096;

  /// @throws InvalidArgument "'PATTERN': not a regular expression: WHY; REMEDY" for a pattern of more than kMostBytes, one
  /// whose compiled form takes more than 256 KiB (some 5400 instructions; a usual pattern has 50), and one of another syntax.
  explicit NamePattern(const std::string& pattern);

  /// Returns the pattern as it was given.
  const std::string& text() const;
  /// Returns whether the name has a match. @throws InvalidArgument for a name of more than kMostNameBytes.
  bool matches(std::string_view name) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace sherd
