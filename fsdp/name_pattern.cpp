#include <sherd/fsdp/name_pattern.h>

#include <fmt/format.h>
#include <re2/re2.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

constexpr int64_t kMostMemory = 256 << 10;  // of a pattern's programs and its cache of states
constexpr size_t kShownBytes = 100;         // of a pattern or a name, in errors

re2::RE2::Options options_of_names() {
  re2::RE2::Options o;
  o.set_encoding(re2::RE2::Options::EncodingLatin1);
  o.set_max_mem(kMostMemory);
  o.set_never_capture(true);
  o.set_log_errors(false);
  return o;
}

/// Returns why RE2 refuses a pattern, and the remedy.
std::string refusal_of(const re2::RE2& regex) {
  const std::string part = printable(regex.error_arg(), kShownBytes);
  switch (regex.error_code()) {
    case re2::RE2::ErrorBadPerlOp:
    case re2::RE2::ErrorBadNamedCapture:
      return fmt::format(
          "'{}': lookahead, lookbehind and named groups are not supported; join the wanted names by '|', or "
          "write '!' before a pattern of the other names",
          part);
    case re2::RE2::ErrorBadEscape:
      return fmt::format(
          "'{}': back references and this escape are not supported; repeat the text, and write a backslash "
          "before punctuation only",
          part);
    case re2::RE2::ErrorRepeatSize:
      return fmt::format("'{}': more than 1000 repetitions, nested ones multiplied; use * or +", part);
    case re2::RE2::ErrorPatternTooLarge:
      return fmt::format("its compiled form has more than {} bytes; use * or + for counts", kMostMemory);
    default:
      break;
  }
  return fmt::format("{}; write a backslash before punctuation that stands for itself",
                     printable(regex.error(), kShownBytes));
}

}  // namespace

struct NamePattern::Compiled {
  explicit Compiled(const std::string& pattern)
      : text(pattern),
        complement(pattern.starts_with('!')),
        regex(std::string_view(pattern).substr(complement ? 1 : 0), options_of_names()) {}

  std::string text;
  bool complement;
  re2::RE2 regex;
};

NamePattern::NamePattern(const std::string& pattern) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(
        fmt::format("'{}': not a regular expression: {}", printable(pattern, kShownBytes), why));
  };
  if (pattern.size() > kMostBytes)
    refuse(fmt::format("{} bytes are more than {}; write a shorter one, such as [0-9]+ for all layers",
                       pattern.size(), kMostBytes));
  compiled_ = std::make_shared<const Compiled>(pattern);
  if (!compiled_->regex.ok()) refuse(refusal_of(compiled_->regex));
}

const std::string& NamePattern::text() const { return compiled_->text; }

bool NamePattern::matches(std::string_view name) const {
  if (name.size() > kMostNameBytes)
    throw InvalidArgument(fmt::format("the name '{}' has {} bytes, more than {}; shorten it",
                                      printable(name, kShownBytes), name.size(), kMostNameBytes));
  return re2::RE2::PartialMatch(name, compiled_->regex) != compiled_->complement;
}

}  // namespace sherd
