// Encoding: as the package `tokenizers` does it (tests/golden/tokenizers), and what is refused. interop.encode compares more.
#include <sherd/train/text/tokenizer.h>

#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/train/text/detail/normal_form.h>
#include <sherd/train/text/detail/split_pattern.h>

#include "support/message_of.h"

namespace sherd {
namespace {

using nlohmann::json;

std::string golden_tokenizer(const std::string& name) {
  return std::string(GOLDEN_FOLDER) + "/tokenizers/" + name + ".json";
}

TEST(Tokenizer, EncodesAsThePackageDoes) {
  for (const std::string name : {"byte_level", "sentence_piece", "words"}) {
    const auto tokenizer = Tokenizer::load(golden_tokenizer(name));
    const json file = json::parse(std::ifstream(golden_tokenizer(name + "_encoded")));
    for (const json& c : file.at("cases")) {
      const auto text = c.at("text").get<std::string>();
      ASSERT_EQ(tokenizer->encode(text, false), c.at("ids").get<std::vector<int32_t>>())
          << name << " " << text;
      ASSERT_EQ(tokenizer->encode(text), c.at("with_special").get<std::vector<int32_t>>())
          << name << " " << text;
    }
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = Tokenizer::load(golden_tokenizer("words"));
  const std::string text = "Several threads, 123 words \u00e9.\n";
  std::vector<std::vector<int32_t>> tokens(4);
  std::vector<std::jthread> threads;
  for (auto& own : tokens)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) own = tokenizer->encode(text);
    });
  threads.clear();
  for (const auto& own : tokens) EXPECT_EQ(own, tokenizer->encode(text));
  EXPECT_EQ(tokenizer->decode(tokens[0], true), text);
}

// Quadratic work would take hours.
TEST(Tokenizer, LongWordsTakeNoLongTime) {
  const auto words = Tokenizer::load(golden_tokenizer("words")),
             pieces = Tokenizer::load(golden_tokenizer("sentence_piece"));
  std::string marks;
  for (const char* mark : {"\u0301", "\u0323"})
    for (int i = 0; i < 100'000; ++i) marks += mark;
  for (const std::string& text : {std::string(300'000, 'a'), std::string(300'000, ' '), marks}) {
    EXPECT_EQ(words->decode(words->encode(text), true).size(), text.size());
    EXPECT_EQ(pieces->decode(pieces->encode(text, false)), text);
  }
  const std::string capitals(20'000'000, 'A');  // goes back over all of them
  EXPECT_EQ(SplitPattern::regex("\\p{Lu}*\\p{Ll}+|\\p{Lu}+").parts(capitals).size(), 1u);
}

json byte_file() {
  json file = json::parse(std::ifstream(golden_tokenizer("words")));
  file["added_tokens"] = json::array();
  return file;
}

std::string no_encoding(const json& file) {
  const auto tokenizer = Tokenizer::parse(file.dump(), "t.json");
  EXPECT_FALSE(tokenizer->decode({2, 3}).empty());
  return message_of<NotSupported>([&] { (void)tokenizer->encode("a"); });
}

TEST(Tokenizer, PartsThatCannotEncodeAreNamed) {
  const auto with = [](const char* pointer, const json& value) {
    json file = byte_file();
    file[json::json_pointer(pointer)] = value;
    return no_encoding(file);
  };
  const auto steps = [](const char* key, const json& step) {
    return json{{"type", "Sequence"}, {key, json::array({step})}};
  };
  const auto split = [](const json& pattern, const char* behavior) {
    return json{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
  };
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}),
              AllOf(HasSubstr("'t.json' has the normalizer 'Lowercase'"), HasSubstr("NFC")));
  EXPECT_THAT(with("/normalizer", steps("normalizers", {{"type", "Strip"}})),
              HasSubstr("normalizer 'Strip'"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Whitespace"}}), HasSubstr("pre_tokenizer 'Whitespace'"));
  EXPECT_THAT(with("/pre_tokenizer", split({{"Regex", "\\w+"}}, "Isolated")),
              AllOf(HasSubstr("whose pattern '\\w+'"), HasSubstr("'\\w+' at byte 0")));
  EXPECT_THAT(with("/pre_tokenizer", split({{"Regex", "(a"}}, "Isolated")), HasSubstr("refused by PCRE2"));
  EXPECT_THAT(with("/pre_tokenizer", split({{"String", ""}}, "Isolated")), HasSubstr("is empty"));
  EXPECT_THAT(with("/pre_tokenizer", split({{"String", "a"}}, "Doubled")), HasSubstr("behavior 'Doubled'"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}),
              HasSubstr("not one character"));
  EXPECT_THAT(with("/post_processor", {{"type", "RobertaProcessing"}}),
              HasSubstr("post_processor 'RobertaProcessing'"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("the dropout 0.1"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("the end_of_word_suffix \"</w>\""));
  EXPECT_THAT(with("/model/continuing_subword_prefix", "##"), HasSubstr("the continuing_subword_prefix"));
  EXPECT_THAT(with("/model/merges", json::array({"a b c"})), HasSubstr("is not a pair"));
  EXPECT_THAT(with("/model/merges", json::array({"a none"})), HasSubstr("needs the token 'anone'"));
  EXPECT_THAT(with("/model/merges", 3), HasSubstr("merges that are not an array"));
  json plain = byte_file();
  plain["model"]["dropout"] = 0.0;
  plain["model"]["end_of_word_suffix"] = "";
  plain["truncation"] = {{"max_length", 1}};
  plain["post_processor"] = nullptr;
  EXPECT_GT(Tokenizer::parse(plain.dump(), "t")->encode("several words").size(), 1u);
}

TEST(Tokenizer, TextThatCannotBeEncodedIsRefused) {
  const auto tokenizer = Tokenizer::load(golden_tokenizer("words"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)tokenizer->encode("a\u00e9\xFFz"); }),
              AllOf(HasSubstr("byte 3, 0xff"), HasSubstr("not UTF-8")));
  EXPECT_THROW((void)tokenizer->encode("\xED\xA0\x80"), InvalidArgument);  // a surrogate
  json file = byte_file();
  const auto refused = [&](const char* words) {
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { (void)Tokenizer::parse(file.dump(), "t.json")->encode("a b"); }),
        AllOf(HasSubstr("'t.json'"), HasSubstr(words)));
  };
  json steps = json::array();
  for (int i = 0; i < 40; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaa"}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  refused("correct the 'content'");
  file = byte_file();
  file["model"]["unk_token"] = "<none>";
  file["model"]["vocab"].erase("a");
  file["model"]["merges"] = json::array();
  refused("lacks the unk_token '<none>'");
}

TEST(SplitPattern, OnigurumasSyntaxIsFollowedOrRefused) {
  const auto words = [](const char* pattern, std::string_view text) {
    return split(text, SplitPattern::regex(pattern), SplitBehavior::Isolated);
  };
  using Words = std::vector<std::string_view>;
  EXPECT_EQ(words("\\s+", "a \u180e\u3000b"),
            (Words{"a", " ", "\u180e", "\u3000", "b"}));                   // U+180E is a format character
  EXPECT_EQ(words("^x|x$", "x\nx x"), (Words{"x", "\n", "x", " ", "x"}));  // ends of lines
  EXPECT_EQ(words("\\u00e9|[\\x41-\\x{43}]{2,3}", "\u00e9ABCA"), (Words{"\u00e9", "ABC", "A"}));
  EXPECT_EQ(words("\\p{Han}+", "\u65e5\u672c\u3001a"),
            (Words{"\u65e5\u672c", "\u3001a"}));  // scripts, not their extensions
  EXPECT_EQ(words("(?i:'s)", "it'S'\u017f"), (Words{"it", "'S", "'\u017f"}));
  EXPECT_EQ(words("b*", "abba"), (Words{"", "a", "bb", "a", ""}));
  for (const char* pattern :
       {"\\bx",    "\\h",    "\\v",  "\\Qa\\E",     "\\1",   "\\x80",         "\\pL",    "\\p{^L}", "\\",
        "[a[b]]",  "[a&&b]", "[]a]", "[[:alpha:]]", "(?i)a", "(?m:.)",        "(?<n>a)", "(*UCP)a", "a{2}?",
        "a{2,3}+", "a{,3}",  "a{",   "(?P<n>a)",    "(?",    "\\p{Nonsense}", "a**",     "[a"})
    EXPECT_THROW((void)SplitPattern::regex(pattern), InvalidArgument) << pattern;
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { (void)SplitPattern::regex("(a+)+$").parts(std::string(5000, 'a') + "b"); }),
              HasSubstr("takes PCRE2 too long"));
}

TEST(NormalForm, IsThatOfUnicode) {
  const std::string text = "A\u030a \ufb01 \u1e9b\u0323 a\u0301\u0323 \uac00";
  EXPECT_EQ(normalized(text, NormalForm::NFC), "\u00c5 \ufb01 \u1e9b\u0323 \u1ea1\u0301 \uac00");
  EXPECT_EQ(normalized(text, NormalForm::NFD),
            "A\u030a \ufb01 \u017f\u0323\u0307 a\u0323\u0301 \u1100\u1161");
  EXPECT_EQ(normalized(text, NormalForm::NFKC), "\u00c5 fi \u1e69 \u1ea1\u0301 \uac00");
  EXPECT_EQ(normalized(text, NormalForm::NFKD), "A\u030a fi s\u0323\u0307 a\u0323\u0301 \u1100\u1161");
}

}  // namespace
}  // namespace sherd
