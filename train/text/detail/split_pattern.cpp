#include <sherd/train/text/detail/split_pattern.h>

#include <algorithm>
#include <array>
#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

constexpr size_t kMaxRegex = 64 << 10;  // the longest of published files have some 2 KB

/// Reader of Oniguruma's syntax; writes PCRE2's.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  std::string read() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        if (c == '[' || take_if("&&")) refuse("a class within a class, or an intersection");
        in_class_ = c != ']';
        copy(1);
      } else if (c == '[') {
        in_class_ = true;
        copy(in_.substr(at_).starts_with("[^") ? 2 : 1);
        if (in_.substr(at_).starts_with("]")) refuse("an empty class");
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        repeat();
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw InvalidArgument(fmt::format("has '{}' at byte {}, {}, which is not supported",
                                      printable(in_.substr(at_), 20), at_, what));
  }

  void copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  bool take_if(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  size_t count_of(size_t from, std::string_view characters) const {
    return std::min(in_.find_first_not_of(characters, from), in_.size()) - from;
  }

  void group() {
    constexpr std::array kKnown = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    if (take_if("(*")) refuse("a verb");
    if (take_if("(?") &&
        std::none_of(kKnown.begin(), kKnown.end(), [&](auto known) { return take_if(known); }))
      refuse("a group of another kind");
    copy(take_if("(?") ? in_.find_first_of(":=!>", at_) + 1 - at_ : 1);
  }

  // {n}, {n,} and {n,m}.
  void repeat() {
    size_t n = count_of(at_ + 1, "0123456789");
    const size_t low = n;
    bool range = false;
    if (low > 0 && in_.substr(at_ + 1 + n).starts_with(",")) {
      range = true;
      n += 1 + count_of(at_ + 2 + n, "0123456789");
    }
    const std::string_view rest = in_.substr(std::min(at_ + 1 + n, in_.size()));
    if (low == 0 || !rest.starts_with("}")) refuse("a '{' that is not a count");
    if (rest.starts_with("}+") || (!range && rest.starts_with("}?"))) refuse("a sign behind a count");
    copy(n + 2);
  }

  void escape() {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    const size_t digits = count_of(at_ + 2, "0123456789abcdefABCDEF");
    const auto is_punctuation = [](char p) {
      return (p >= '!' && p <= '/') || (p >= ':' && p <= '@') || (p >= '[' && p <= '`') ||
             (p >= '{' && p <= '~');
    };
    if (c == 'p' || c == 'P') {
      property(c);
    } else if (c == 's' || c == 'S') {  // PCRE2's \s has U+180E, which no longer is a space
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (is_punctuation(c) || std::string_view("dDrntf").find(c) != std::string_view::npos) {
      copy(2);
    } else if (c == 'u' && digits >= 4) {
      out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
      at_ += 6;
    } else if (c == 'x' && digits >= 2 && in_[at_ + 2] < '8') {
      copy(4);
    } else if (c == 'x' && in_.substr(at_ + 2).starts_with("{")) {
      const size_t inner = count_of(at_ + 3, "0123456789abcdefABCDEF");
      if (inner == 0 || !in_.substr(at_ + 3 + inner).starts_with("}")) refuse("an escape");
      copy(inner + 4);
    } else {
      refuse("an escape");
    }
  }

  void property(char sign) {
    constexpr std::string_view kCategories =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cn "
        "Co Cs ";
    const size_t end = in_.find('}', at_);
    const std::string_view name =
        end == in_.npos || in_.substr(at_ + 2, 1) != "{" ? "" : in_.substr(at_ + 3, end - at_ - 3);
    const bool is_word = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    });
    if (!is_word) refuse("a property");
    const bool category = kCategories.find(fmt::format(" {} ", name)) != std::string_view::npos;
    out_ += fmt::format("\\{}{{{}{}}}", sign, category ? "" : "sc:", name);
    at_ = end + 1;
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

std::string error_text(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <class T, void (*release)(T*)>
using Owned = std::unique_ptr<T, decltype([](T* p) { release(p); })>;
using CompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;

}  // namespace

SplitPattern SplitPattern::regex(std::string_view pattern) {
  if (pattern.size() > kMaxRegex)
    throw InvalidArgument(fmt::format("has {} bytes; at most {} are read", pattern.size(), kMaxRegex));
  // As in Oniguruma, ^ and $ are ends of lines, and a line ends with "\n" alone.
  return {Translation(pattern).read(), PCRE2_UCP | PCRE2_MULTILINE};
}

SplitPattern SplitPattern::literal(std::string_view text) {
  if (text.empty()) throw InvalidArgument("is empty");
  return {text, PCRE2_LITERAL};
}

SplitPattern::SplitPattern(std::string_view pattern, uint32_t options) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | options, &error, &at, context.get());
  if (!code) throw InvalidArgument(fmt::format("is refused by PCRE2: {}", error_text(error)));
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it matching is slower
}

std::vector<SplitPattern::Part> SplitPattern::parts(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  const MatchContext limits(pcre2_match_context_create(nullptr));
  if (!data || !limits) throw std::bad_alloc();
  // Linear in the text: patterns of published files go back over a word once or twice.
  const auto limit = [](size_t of) { return static_cast<uint32_t>(std::min<size_t>(of, UINT32_MAX)); };
  pcre2_set_match_limit(limits.get(), limit(1'000'000 + 64 * text.size()));
  pcre2_set_heap_limit(limits.get(), limit(8192 + text.size() / 4));  // KiB
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  std::vector<Part> parts;
  size_t from = 0, previous = 0;
  bool matched = false;
  while (from <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code, subject, text.size(), from, options | PCRE2_NO_UTF_CHECK, data.get(),
                         limits.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw InvalidArgument(fmt::format(
          "has a pattern that takes PCRE2 too long for this text ({}); shorten the text", error_text(found)));
    // An empty match right behind a match does not count.
    if (bounds[0] == bounds[1] && matched && bounds[1] == previous) {
      from += from < text.size() ? utf8_character(text.substr(from)) : 1;
      continue;
    }
    if (bounds[0] != previous) parts.push_back({previous, bounds[0], false});
    parts.push_back({bounds[0], bounds[1], true});
    from = previous = bounds[1];
    matched = true;
  }
  if (previous != text.size()) parts.push_back({previous, text.size(), false});
  return parts;
}

std::vector<std::string_view> split(std::string_view text, const SplitPattern& pattern,
                                    SplitBehavior behavior, bool invert) {
  std::vector<SplitPattern::Part> parts = pattern.parts(text), merged;
  const bool backward = behavior == SplitBehavior::MergedWithNext;
  if (backward) std::reverse(parts.begin(), parts.end());
  bool previous = false;
  for (SplitPattern::Part& part : parts) {
    part.match ^= invert;
    if (behavior == SplitBehavior::Removed && part.match) continue;
    const bool joins = behavior == SplitBehavior::Contiguous                       ? part.match == previous
                       : behavior == SplitBehavior::MergedWithPrevious || backward ? part.match && !previous
                                                                                   : false;
    previous = part.match;
    if (!joins || merged.empty()) {
      merged.push_back(part);
    } else {
      merged.back().begin = std::min(merged.back().begin, part.begin);
      merged.back().end = std::max(merged.back().end, part.end);
    }
  }
  if (backward) std::reverse(merged.begin(), merged.end());
  std::vector<std::string_view> out;
  out.reserve(merged.size());
  for (const SplitPattern::Part& part : merged) out.push_back(text.substr(part.begin, part.end - part.begin));
  return out;
}

}  // namespace sherd
