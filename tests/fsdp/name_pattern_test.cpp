// Patterns of names: syntax, refusals, bounds and hostile patterns.
#include <sherd/fsdp/name_pattern.h>

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return NamePattern(pattern).matches(name);
}

std::string refusal(const std::string& pattern) {
  return message_of<InvalidArgument>([&] { (void)NamePattern(pattern); });
}

TEST(NamePattern, IsSearchedAnywhereInTheBytesOfAName) {
  const std::string name = "model.layers.12.self_attn.q_proj.weight";
  for (const char* const in : {"q_proj|v_proj", "[qv]_proj", R"(layers\.1[0-9]\.)", "^model", "weight$",
                               R"(\b12\b)", "", ".", "a{0,2}ttn", R"((^|[.])self_attn([.]|$))",
                               "^[a-z]+.layers.[0-9]+.self_attn", R"(\.\d+\.\w+_attn\.[^.]+\.weight$)"})
    EXPECT_TRUE(matches(in, name)) << in;
  for (const char* const out : {"Q_PROJ", "^layers", "q_proj$", "x", R"(layers\.1\.)", "12{2}"})
    EXPECT_FALSE(matches(out, name)) << out;
  EXPECT_TRUE(matches("^\xc3\xa9.$", "\xc3\xa9\xff")) << "one byte that is not UTF-8";
}

TEST(NamePattern, ALeadingMarkTakesTheOtherNames) {
  const NamePattern others(R"(!^model\.layers\.61\.)");
  EXPECT_TRUE(others.matches("model.layers.6.mlp"));
  EXPECT_TRUE(others.matches("model.embed_tokens"));
  EXPECT_FALSE(others.matches("model.layers.61.mlp"));
  EXPECT_FALSE(matches("!", "any"));
  EXPECT_TRUE(matches("a!", "a!")) << "elsewhere the mark is a character";
  EXPECT_EQ(others.text(), R"(!^model\.layers\.61\.)");
}

TEST(NamePattern, WhatItDoesNotHaveIsRefusedWithTheRemedy) {
  for (const char* const around : {"^(?!a)b", "(?=a)", "(?<=a)", "(?<!a)b", "a(?!"})
    EXPECT_THAT(refusal(around), AllOf(HasSubstr("not a regular expression: '(?"),
                                       HasSubstr("lookahead, lookbehind and named groups are not supported"),
                                       HasSubstr("or write '!' before a pattern of the other names")))
        << around;
  EXPECT_THAT(refusal(R"((a)\1)"),
              AllOf(HasSubstr(R"('\1': back references)"), HasSubstr("repeat the text")));
  EXPECT_THAT(refusal("("), HasSubstr("'(': not a regular expression: missing )"));
  EXPECT_THAT(refusal("!["), HasSubstr("'![': not a regular expression: missing ]"));
  for (const char* const wrong : {")", "*", "[z-a]", "\\", "a**", "[]", R"(\k)", "(?P<a"})
    EXPECT_THAT(refusal(wrong), HasSubstr("not a regular expression: ")) << wrong;
  EXPECT_THAT(refusal("\x1b[2J("), HasSubstr(R"('\u001b[2J(')"));
}

TEST(NamePattern, IsBounded) {
  const std::string longest(NamePattern::kMostBytes, 'a');
  EXPECT_FALSE(matches(longest, "a"));
  EXPECT_THAT(refusal(longest + "a"),
              AllOf(HasSubstr("aaa...': not a regular expression: 1001 bytes are more than 1000"),
                    HasSubstr("write a shorter one")));
  EXPECT_LT(refusal(std::string(20000, '(')).size(), 300u);
  EXPECT_FALSE(matches(std::string(499, '(') + std::string(499, ')') + "a", "b") ||
               matches(std::string(498, '(') + "a" + std::string(498, ')'), "b"));
  EXPECT_THAT(refusal("a{1001}"), HasSubstr("more than 1000 repetitions"));
  EXPECT_THAT(refusal("((a{99}){99}){99}"), HasSubstr("more than 1000 repetitions"));
  std::string large;
  for (char c = 'a'; c <= 'z'; ++c) large += fmt::format("{}{{1000}}|", c);
  EXPECT_THAT(refusal(large), HasSubstr("compiled form has more than 262144 bytes"));
  EXPECT_TRUE(matches("a$", std::string(NamePattern::kMostNameBytes, 'a')));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { (void)matches("a", std::string(NamePattern::kMostNameBytes + 1, 'a')); }),
              HasSubstr("has 4097 bytes, more than 4096; shorten it"));
}

// A backtracking matcher takes exponential time on these, and quadratic on others; here the largest take some 0.2 s.
TEST(NamePattern, HostilePatternsTakeTimeInProportionToTheName) {
  std::string branches, optional;
  while (branches.size() + 12 <= NamePattern::kMostBytes) branches += "([ab]{50}|b)";
  while (optional.size() + 2 <= NamePattern::kMostBytes / 2) optional += "a?";
  const std::vector<std::string> hostile = {R"(((((\w*)*)*)*)*Z)",
                                            "^(a+)+$",
                                            "(a|a)*c",
                                            "(.*.*.*.*.*.*c){3}$",
                                            "(a+a+)+c",
                                            "[ab]*a[ab]{200}c",
                                            "(?:a?){1000}c",
                                            ".*a.{900}b.{900}c",
                                            branches + "c",
                                            optional + std::string(optional.size() / 2, 'a') + "c"};
  std::mt19937 random(1);
  std::string mixed;
  while (mixed.size() < NamePattern::kMostNameBytes) mixed += "ab"[random() % 2];
  for (const std::string& pattern : hostile) {
    const NamePattern compiled(pattern);
    for (size_t bytes = 512; bytes <= NamePattern::kMostNameBytes; bytes *= 2) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_FALSE(compiled.matches(mixed.substr(0, bytes)));
      EXPECT_FALSE(compiled.matches(std::string(bytes - 1, 'a') + "b"));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      EXPECT_LT(seconds, 20) << pattern << " on " << bytes
                             << " bytes";  // a hundred times what a loaded machine took
    }
  }
}

// std::regex is the reference, on patterns small enough for it.
TEST(NamePattern, FindsWhatTheStandardLibraryFinds) {
  constexpr std::array kParts = {"a",   "b",   ".", "\\.", "0",     "[0-9]", "[^a]", "\\d",
                                 "\\w", "\\b", "^", "$",   "(",     ")",     "(?:",  "|",
                                 "*",   "+",   "?", "{2}", "{1,2}", "ab",    "[ab]"};
  std::mt19937 random(5);
  int compared = 0, found = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string pattern, name;
    for (size_t n = 1 + random() % 6; n > 0; --n) pattern += kParts[random() % kParts.size()];
    for (size_t n = random() % 8; n > 0; --n) name += "ab.0_"[random() % 5];
    std::optional<bool> want;
    try {
      want = std::regex_search(name, std::regex(pattern));
    } catch (const std::regex_error&) {
    }
    try {
      const bool got = matches(pattern, name);
      if (!want) continue;  // such as a{, which stands for itself here
      EXPECT_EQ(got, *want) << pattern << " in '" << name << "'";
      ++compared;
      found += got ? 1 : 0;
    } catch (const InvalidArgument&) {
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace sherd::test
