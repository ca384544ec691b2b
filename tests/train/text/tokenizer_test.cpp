// Decoding: as the package `tokenizers` does it (tests/golden/tokenizers), piece by piece, and files of all
// sorts.
#include <sherd/train/text/tokenizer.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/train/text/utf8.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using nlohmann::json;

std::string golden(const std::string& name) { return std::string(GOLDEN_FOLDER) + "/tokenizers/" + name; }

TEST(Tokenizer, DecodesAsThePackageDoes) {
  for (const std::string name : {"byte_level", "sentence_piece", "words"}) {
    const auto tokenizer = Tokenizer::load(golden(name + ".json"));
    const json file = json::parse(std::ifstream(golden(name + "_decoded.json")));
    for (const json& c : file.at("cases")) {
      const auto ids = c.at("ids").get<std::vector<int32_t>>();
      ASSERT_EQ(tokenizer->decode(ids), c.at("text").get<std::string>()) << name << " " << c.at("ids");
      ASSERT_EQ(tokenizer->decode(ids, true), c.at("without_special").get<std::string>())
          << name << " " << c.at("ids");
    }
  }
}

TEST(TextStream, HoldsIncompleteCharactersBack) {
  const auto tokenizer = Tokenizer::load(golden("byte_level.json"));
  const auto byte = [&](const char* character) { return static_cast<int32_t>(tokenizer->find(character)); };
  TextStream stream(tokenizer);
  // U+1F600 is F0 9F 98 80, which the table writes as these characters.
  EXPECT_EQ(stream.add(byte("\u00f0")), "");
  EXPECT_EQ(stream.add(byte("\u0141")), "");
  EXPECT_EQ(stream.add(byte("\u013a")), "");
  EXPECT_EQ(stream.add(byte("\u0122")), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.add(byte("\u00f0")), "");
  EXPECT_EQ(stream.add(byte("a")),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.add(byte("\u00f0")), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, GivesTheSameTextInPieces) {
  for (const std::string name : {"byte_level", "sentence_piece"}) {
    const auto tokenizer = Tokenizer::load(golden(name + ".json"));
    const json file = json::parse(std::ifstream(golden(name + "_decoded.json")));
    TextStream stream(tokenizer);
    for (const json& c : file.at("cases")) {
      std::string text;
      for (const int32_t id : c.at("ids").get<std::vector<int32_t>>()) {
        const std::string piece = stream.add(id);
        std::string characters;
        EXPECT_EQ(take_characters(piece, characters), "");
        EXPECT_EQ(characters, piece);
        text += piece;
      }
      ASSERT_EQ(text + stream.finish(), c.at("text").get<std::string>());
    }
  }
}

TEST(TextStream, UnknownTokensAreReplaced) {
  const auto tokenizer = Tokenizer::load(golden("byte_level.json"));
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(static_cast<int32_t>(tokenizer->size())), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.add(2'000'000'000), "\xEF\xBF\xBD");
  EXPECT_THROW((void)stream.add(-1), InvalidArgument);
  EXPECT_EQ(tokenizer->find("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer->find("no such token"), -1);
}

TEST(Utf8, WrongBytesAreReplacedOneBeginningAtATime) {
  const auto shown = [](std::string_view bytes) {
    std::string text;
    const std::string_view rest = take_characters(bytes, text);
    return text + "|" + std::string(rest);
  };
  const std::string bad(kReplacementCharacter);
  EXPECT_EQ(shown("abc"), "abc|");
  EXPECT_EQ(shown("\xC3\xA9"), "\xC3\xA9|");
  EXPECT_EQ(shown("\xC3"), "|\xC3");
  EXPECT_EQ(shown("\xC3x"), bad + "x|");
  EXPECT_EQ(shown("\x80\xBF"), bad + bad + "|");
  EXPECT_EQ(shown("\xC0\xAF"), bad + bad + "|");                      // longer than needed
  EXPECT_EQ(shown("\xED\xA0\x80"), bad + bad + bad + "|");            // a surrogate
  EXPECT_EQ(shown("\xF4\x90\x80\x80"), bad + bad + bad + bad + "|");  // above U+10FFFF
  EXPECT_EQ(shown("\xF0\x9F\x98x"), bad + "x|");
  EXPECT_EQ(shown("\xF0\x9F\x98"), "|\xF0\x9F\x98");
  EXPECT_EQ(shown("\xFF"), bad + "|");
}

std::string refusal(const json& file) {
  return message_of<IoError>([&] { (void)Tokenizer::parse(file.dump(), "t.json"); });
}

json small_file() {
  return {{"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
          {"added_tokens", json::array({{{"id", 2}, {"content", "<eos>"}, {"special", true}}})}};
}

TEST(Tokenizer, OtherFilesAreRefusedByName) {
  EXPECT_EQ(Tokenizer::parse(small_file().dump(), "t")->decode({0, 1, 2, 0}, true), "aba");
  const auto with = [](const char* pointer, const json& value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_THAT(with("/decoder/type", "WordPiece"),
              AllOf(HasSubstr("t.json"), HasSubstr("'WordPiece'"), HasSubstr("ByteLevel")));
  EXPECT_THAT(with("/decoder/type", 3), HasSubstr("'type' that is not a string"));
  EXPECT_THAT(with("/decoder", nullptr), HasSubstr("'null'"));
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({{{"type", "CTC"}}})}}),
              HasSubstr("Sequence with CTC"));
  EXPECT_THAT(
      with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({{{"type", "ByteFallback"}}})}}),
      HasSubstr("without Fuse"));
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}},
             fuse = {{"type", "Fuse"}};
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({fuse, strip})}}),
              HasSubstr("stop 0"));
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({strip, fuse})}}),
              HasSubstr("Sequence with Strip"));
  const json expression = {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", ""}};
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({expression, fuse})}}),
              HasSubstr("Regex"));
  const json endless = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
  EXPECT_THAT(with("/decoder", {{"type", "Sequence"}, {"decoders", json::array({endless, fuse})}}),
              HasSubstr("empty string"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("\"Unigram\""));
  EXPECT_THAT(with("/model/type", json::array({"BPE"})), HasSubstr("type [\"BPE\"]"));
  EXPECT_THAT(with("/model", 3), HasSubstr("lacks 'vocab' in model"));
  EXPECT_THAT(with("/model/vocab", json::array({1})), HasSubstr("not an object"));
  EXPECT_THAT(with("/added_tokens", 5), HasSubstr("not an array"));
}

TEST(Tokenizer, HostileNumbersAreRefused) {
  for (const json& number :
       {json(-1), json(1.5), json("7"), json(2'000'000'000), json(18446744073709551615u), json(nullptr)}) {
    json file = small_file();
    file["model"]["vocab"]["b"] = number;
    EXPECT_THAT(refusal(file), AllOf(HasSubstr("the token 'b'"), HasSubstr(number.dump()))) << number;
    file = small_file();
    file["added_tokens"][0]["id"] = number;
    EXPECT_THAT(refusal(file), HasSubstr("the token '<eos>'")) << number;
  }
  json twice = small_file();
  twice["model"]["vocab"]["b"] = 0;
  EXPECT_THAT(refusal(twice), HasSubstr("the number 0 to 'a' and to 'b'"));
  json special = small_file();
  special["added_tokens"][0]["special"] = "yes";
  EXPECT_THAT(refusal(special), HasSubstr("'special'"));
}

// Dumping such a value into a message once took a stack frame for each level.
TEST(Tokenizer, DeeplyNestedFilesAreRefusedInAShortLine) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& text : {"{\"decoder\":" + deep + "}", "{\"decoder\":{\"type\":" + deep + "}}",
                                  R"({"decoder":{"type":"ByteLevel"},"model":)" + deep + "}"}) {
    const std::string message = message_of<IoError>([&] { (void)Tokenizer::parse(text, "t.json"); });
    EXPECT_THAT(message, HasSubstr("nested more than 64 deep"));
    EXPECT_LT(message.size(), 200u);
  }
  json file = small_file();
  file["decoder"]["type"] = std::string(10'000, 'x') + "\x1b[2J";
  EXPECT_LT(refusal(file).size(), 400u);
  file["decoder"]["type"] = "a\x1b[2J\n";
  EXPECT_THAT(refusal(file), HasSubstr("'a\\u001b[2J\\u000a'"));
}

TEST(Tokenizer, ReplaceStepsDoNotMultiplyAFile) {
  const auto replace = [](const std::string& what, const std::string& with) {
    return json{{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
  };
  const auto with = [](std::vector<json> steps) {
    json file = small_file();
    for (int i = 0; i < 500; ++i) file["model"]["vocab"][std::to_string(i) + "aa"] = i + 3;
    steps.push_back({{"type", "Fuse"}});
    file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
    return file;
  };
  EXPECT_THAT(refusal(with({replace("a", std::string(1 << 20, 'b'))})),
              AllOf(HasSubstr("shorten the 'content'"), HasSubstr("1048576 bytes")));
  std::vector<json> chain;  // each doubles the text
  for (int i = 0; i < 60; ++i) chain.push_back(replace("a", "aa"));
  EXPECT_THAT(refusal(with(chain)), HasSubstr("shorten the 'content'"));
  chain.assign(65, replace("b", "b"));
  EXPECT_THAT(refusal(with(chain)), HasSubstr("more than 64 Replace steps"));
  EXPECT_THAT(refusal(with({replace(std::string(2000, 'a'), "b")})), HasSubstr("2000 bytes"));
  EXPECT_EQ(Tokenizer::parse(with({replace("aa", "b"), replace("a", ""), replace("b", "ab")}).dump(), "t")
                ->decode({0, 3}),
            "0ab");
}

TEST(Tokenizer, BrokenFilesAreRefused) {
  const std::string whole = small_file().dump();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW((void)Tokenizer::parse(whole.substr(0, size), "t"), IoError) << size;
  for (const char* text : {"[]", "3", "null", "{}", "{\"decoder\":{}}",
                           "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":3}", "{\"a\":\"\xFF\"}"})
    EXPECT_THROW((void)Tokenizer::parse(text, "t"), IoError) << text;
  EXPECT_THROW((void)Tokenizer::parse(std::string(1'000'000, '['), "t"), IoError);  // no recursion
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { (void)Tokenizer::load(folder / "missing"); }), HasSubstr("missing"));
}

}  // namespace
}  // namespace sherd
