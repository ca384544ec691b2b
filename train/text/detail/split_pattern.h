// Patterns that split text into words before a tokenizer merges, with Oniguruma's meaning.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// A regular expression of a tokenizer.json or a plain string, compiled by PCRE2 (10.40 or newer). Immutable.
class SplitPattern {
 public:
  /// Compiles a pattern in the syntax that `tokenizers` reads, Oniguruma's. @throws InvalidArgument with the end of
  /// a sentence ("... '\w' at byte 3 ...") for what PCRE2 refuses, and for what both engines do not read alike: \w, \b, \h
  /// and other escapes but \p{CATEGORY or script}, \s, \d, \r, \n, \t, \f, \xHH below 80, \x{H}, \uHHHH; nested and intersected
  /// classes; {n}? and {n,m}+; options other than (?i:). Folding of case is by single characters.
  static SplitPattern regex(std::string_view pattern);
  /// Finds the text itself. @throws InvalidArgument for an empty one.
  static SplitPattern literal(std::string_view text);

  struct Part {
    size_t begin, end;  // bytes
    bool match;
  };
  /// Returns the matches and what is between them, in order. @param text valid UTF-8. @throws InvalidArgument when
  /// the pattern takes far more steps than the text has bytes.
  std::vector<Part> parts(std::string_view text) const;

 private:
  SplitPattern(std::string_view pattern, uint32_t options);
  std::shared_ptr<const void> code_;  // pcre2_code
};

/// What happens to matches, by the names of `tokenizers`.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

/// Returns the parts of `text`, which may be empty. @param invert what is between matches is the match.
std::vector<std::string_view> split(std::string_view text, const SplitPattern& pattern,
                                    SplitBehavior behavior, bool invert = false);

}  // namespace sherd
