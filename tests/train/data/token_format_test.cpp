#include <sherd/train/data/token_format.h>

#include <cstring>

#include <sherd/base/error.h>
#include <sherd/train/data/token_list.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

template <class... T>
std::string packed(T... values) {
  std::string bytes;
  ((bytes.append(reinterpret_cast<const char*>(&values), sizeof values)), ...);
  return bytes;
}

std::vector<int32_t> tokens_of(const TokenFile& file) {
  const TokenStream stream("test", {file});
  std::vector<int32_t> tokens(static_cast<size_t>(stream.size()));
  stream.read(0, stream.size(), tokens.data(), int64_t{1} << 31);
  return tokens;
}

std::string refusal(const std::string& path, TokenFormat format = TokenFormat::automatic) {
  return message_of<IoError>([&] { (void)open_token_file(path, format); });
}

std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  return packed(magic, version, count) + std::string(1012, '\0') + tokens;
}

TEST(TokenFormat, RawTokensAreNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t", packed(uint16_t{1}, uint16_t{65535}, uint16_t{3}, uint16_t{0}));
  EXPECT_THAT(tokens_of(open_token_file(path, TokenFormat::u16)), ElementsAre(1, 65535, 3, 0));
  EXPECT_EQ(open_token_file(path, TokenFormat::u32).count, 2);
  EXPECT_THAT(refusal(path), AllOf(HasSubstr(path), HasSubstr("--token-format u16 or u32")));
  EXPECT_THAT(refusal(path, TokenFormat::llmc), HasSubstr("20240520 or 20240801"));
}

TEST(TokenFormat, FilesOfAnotherKindAreNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const std::string chat = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant"}]})"
                           "\n";
  const std::string chats = folder.write("chats.jsonl", chat),
                    text = folder.write("t.txt", std::string(100, 'a'));
  const std::string pointer =
      folder.write("p.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
                                "\nsize 4000000000\n");
  for (const TokenFormat format : {TokenFormat::automatic, TokenFormat::u16, TokenFormat::megatron}) {
    EXPECT_THAT(
        refusal(chats, format),
        AllOf(HasSubstr("chats.jsonl' holds JSON, not tokens; make tokens of it: scripts/tokenize.py"),
              HasSubstr("with --chat TEMPLATE where the lines are chats (for --sft)")));
    EXPECT_THAT(refusal(text, format),
                HasSubstr("t.txt' holds text, not tokens; make tokens of it: scripts/tokenize.py"));
    EXPECT_THAT(refusal(pointer, format),
                HasSubstr("p.bin' is a git-lfs pointer, not the file itself; run `git lfs pull`"));
  }
  // Few tokens may look like text.
  EXPECT_EQ(open_token_file(folder.write("few", std::string(32, 'a')), TokenFormat::u16).count, 16);
}

TEST(TokenFormat, CutAndEmptyFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.write("odd", "abc"), TokenFormat::u16),
              AllOf(HasSubstr("3 bytes"), HasSubstr("u16")));
  EXPECT_THAT(refusal(folder.write("six", "abcdef"), TokenFormat::u32),
              HasSubstr("not a whole number of u32"));
  EXPECT_THAT(refusal(folder.write("none", ""), TokenFormat::u16), HasSubstr("has no tokens"));
  EXPECT_THAT(refusal(folder / "none"), HasSubstr("--token-format"));
  EXPECT_THAT(refusal(folder / "missing"), AllOf(HasSubstr("missing"), HasSubstr("No such file")));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("Is a directory"));
}

TEST(TokenFormat, LlmcIsKnownByItsMagic) {
  const TemporaryFolder folder;
  const std::string narrow = folder.write(
                        "a", llmc(20240520, 1, 3, packed(uint16_t{7}, uint16_t{50256}, uint16_t{9}))),
                    wide = folder.write("b", llmc(20240801, 1, 2, packed(uint32_t{128000}, uint32_t{5})));
  for (const TokenFormat format : {TokenFormat::automatic, TokenFormat::llmc}) {
    EXPECT_THAT(tokens_of(open_token_file(narrow, format)), ElementsAre(7, 50256, 9));
    EXPECT_THAT(tokens_of(open_token_file(wide, format)), ElementsAre(128000, 5));
  }
}

TEST(TokenFormat, LlmcHeadersThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  const std::string two = packed(uint16_t{7}, uint16_t{9});
  for (const int32_t count : {0, 1, 3, -1, 0x7fffffff})
    EXPECT_THAT(refusal(folder.write("t", llmc(20240520, 1, count, two))),
                AllOf(HasSubstr(std::to_string(count) + " u16 tokens"), HasSubstr("4 bytes follow")))
        << count;
  EXPECT_THAT(refusal(folder.write("t", llmc(20240520, 2, 2, two))), HasSubstr("version 2"));
  EXPECT_THAT(refusal(folder.write("t", packed(20240520, 1, 2))), HasSubstr("12 bytes, less than"));
  EXPECT_THAT(refusal(folder.write("t", llmc(20240520, 1, 0, ""))), HasSubstr("has no tokens"));
  EXPECT_THAT(refusal(folder.write("t", llmc(20240520, 1, 2, two + "x"))), HasSubstr("5 bytes follow"));
}

/// An index of two documents, of one sequence and of two.
struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths = {2, 0, 3};
  std::vector<int64_t> offsets = {0, 4, 4}, bounds = {0, 1, 3};
  uint64_t sequences = 3;

  std::string bytes() const {
    std::string all = magic + packed(version, code, sequences, static_cast<uint64_t>(bounds.size()));
    for (const int32_t n : lengths) all += packed(n);
    for (const int64_t n : offsets) all += packed(n);
    for (const int64_t n : bounds) all += packed(n);
    return all;
  }
};

const std::string kFive = packed(uint16_t{1}, uint16_t{2}, uint16_t{3}, uint16_t{4}, uint16_t{5});

TEST(TokenFormat, MegatronIsKnownByItsIndex) {
  const TemporaryFolder folder;
  folder.write("a.v1.idx", Index().bytes());
  folder.write("a.v1.bin", kFive);
  for (const char* name : {"a.v1.bin", "a.v1.idx", "a.v1"})
    for (const TokenFormat format : {TokenFormat::automatic, TokenFormat::megatron})
      EXPECT_THAT(tokens_of(open_token_file(folder / name, format)), ElementsAre(1, 2, 3, 4, 5)) << name;
  Index wide;
  wide.code = 4;
  wide.offsets = {0, 8, 8};
  folder.write("b.idx", wide.bytes());
  folder.write("b.bin", packed(-1, 2, 3, 4, 70000));
  EXPECT_THAT(message_of<IoError>([&] { tokens_of(open_token_file(folder / "b.bin")); }),
              AllOf(HasSubstr("token -1 at position 0"), HasSubstr("b.bin"), HasSubstr("i32")));
  folder.write("b.bin", packed(1, 2, 3, 4, 70000));
  EXPECT_THAT(tokens_of(open_token_file(folder / "b.bin")), ElementsAre(1, 2, 3, 4, 70000));
}

TEST(TokenFormat, MegatronIndexesThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  folder.write("a.bin", kFive);
  const auto refusal_of = [&](const std::string& index) {
    folder.write("a.idx", index);
    return refusal(folder / "a.bin");
  };
  const auto changed = [&](auto change) {
    Index index;
    change(index);
    return refusal_of(index.bytes());
  };
  EXPECT_THAT(changed([](Index& i) { i.magic[0] = 'X'; }), HasSubstr("does not begin as Megatron's"));
  EXPECT_THAT(changed([](Index& i) { i.version = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(changed([](Index& i) { i.code = 7; }), AllOf(HasSubstr("type 7 (f32)"), HasSubstr("u16")));
  EXPECT_THAT(changed([](Index& i) { i.code = 99; }), HasSubstr("99 (unknown)"));
  EXPECT_THAT(changed([](Index& i) { i.sequences = 4; }), HasSubstr("4 sequences and 3 bounds"));
  EXPECT_THAT(changed([](Index& i) { i.sequences = ~uint64_t{0} / 12; }), HasSubstr("do not make"));
  EXPECT_THAT(changed([](Index& i) { i.lengths[1] = -1; }), HasSubstr("sequence 1 the length -1"));
  EXPECT_THAT(changed([](Index& i) { i.offsets[1] = 6; }), HasSubstr("sequence 1 begin at byte 6"));
  EXPECT_THAT(changed([](Index& i) { i.lengths[2] = 4; }),
              AllOf(HasSubstr("sequence 2 end at byte 12"), HasSubstr("has 10")));
  EXPECT_THAT(changed([](Index& i) { i.lengths[2] = 2; }), HasSubstr("lists 8 bytes"));
  EXPECT_THAT(changed([](Index& i) { i.bounds[0] = 1; }), HasSubstr("bound 0"));
  EXPECT_THAT(changed([](Index& i) { i.bounds[2] = 2; }), HasSubstr("documents of 2 of its 3 sequences"));
  EXPECT_THAT(changed([](Index& i) { i.bounds[1] = 4; }), HasSubstr("4 as bound 1"));
  EXPECT_THAT(refusal_of(Index().bytes() + std::string(3, '\0')), HasSubstr("text and images"));
  EXPECT_THAT(refusal_of(Index().bytes().substr(0, 20)), HasSubstr("does not begin"));
  EXPECT_THAT(refusal_of(""), HasSubstr("does not begin"));
  const std::string whole = Index().bytes();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW((void)open_token_file((folder.write("a.idx", whole.substr(0, size)), folder / "a.bin")),
                 IoError);
  folder.write("b.idx", whole);
  EXPECT_THAT(refusal(folder / "b.idx"), HasSubstr("X.bin"));
}

TEST(TokenList, ColonsBeforeNumbersAreWeights) {
  const auto list = [](const char* text) {
    std::string all;
    for (const TokenPath& p : parse_token_list(text, "--tokens"))
      all += p.path.string() + "=" + std::to_string(p.weight) + " ";
    return all;
  };
  EXPECT_EQ(list("a"), "a=0 ");
  EXPECT_EQ(list("a,b/c.bin"), "a=0 b/c.bin=0 ");
  EXPECT_EQ(list("a:2,b:.5,c:0.000001"), "a=2000000000 b=500000000 c=1000 ");
  EXPECT_EQ(list("a:1:2"), "a:1=2000000000 ");
  EXPECT_EQ(list("c:x,d:1e3,f:"), "c:x=0 d:1e3=0 f:=0 ");
  for (const char* bad : {"", ",", "a,", ",a", "a,,b", ":1"})
    EXPECT_THAT(message_of<InvalidArgument>([&] { list(bad); }),
                AllOf(HasSubstr("--tokens"), HasSubstr("names no file")))
        << bad;
  EXPECT_THAT(message_of<InvalidArgument>([&] { list("a:1,b"); }), HasSubstr("1 of 2 files"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { list("a:1,b:0.0"); }), HasSubstr("weight of 'b' is 0"));
  // Whole numbers of the same proportion are what is drawn by.
  EXPECT_EQ(list("a:1000.5,b:999999999"), "a=1000500000000 b=999999999000000000 ");
  EXPECT_THAT(message_of<InvalidArgument>([&] { list("a:1000.000001,b:1000"); }),
              AllOf(HasSubstr("--tokens 'a:1000.000001,b:1000'"), HasSubstr("more than 1073741824"),
                    HasSubstr("use fewer decimal places")));
  EXPECT_EQ(parse_unweighted_token_list("a,b", "--valid-tokens").size(), 2);
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { (void)parse_unweighted_token_list("a,v.bin:1", "--valid-tokens"); }),
      HasSubstr("--valid-tokens"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { (void)parse_unweighted_token_list("v.bin:1", "--valid-tokens"); }),
      HasSubstr("--valid-tokens: 'v.bin' has a weight"));
}

TEST(TokenList, SetsForEvaluationHaveNames) {
  const auto sets = parse_evaluation_list("web=a.bin:3,my-code_2.0=b=c.bin:.5", "--eval-data");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "web");
  EXPECT_EQ(sets[0].tokens.path, "a.bin");
  EXPECT_EQ(sets[0].tokens.weight, 3000000000);
  EXPECT_EQ(sets[1].name, "my-code_2.0");
  EXPECT_EQ(sets[1].tokens.path, "b=c.bin") << "the first '=' ends the name";
  EXPECT_EQ(parse_evaluation_list("a=x,b=y", "--eval-data")[1].tokens.weight, 1);
  for (const char* bad : {"a.bin", "=a.bin", "a=", "a b=c", "x=a.bin,b.bin"})
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_evaluation_list(bad, "--eval-data"); }),
                AllOf(HasSubstr("--eval-data"), HasSubstr("is not NAME=FILE[:WEIGHT]")))
        << bad;
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_evaluation_list("a=x,a=y", "--eval-data"); }),
              HasSubstr("two sets have the name 'a'"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_evaluation_list("a=x:1,b=y", "--eval-data"); }),
              HasSubstr("1 of 2 files have weights"));
}

TEST(TokenList, NineDecimalsAreAWeightAndMoreAreRefused) {
  const auto list = parse_token_list("a.bin:0.123456789,b.bin:0.876543211", "--tokens");
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list[0].path, "a.bin");
  EXPECT_EQ(list[0].weight, 123456789);
  for (const char* bad : {"a.bin:0.1234567890,b.bin:1", "a.bin:1234567890,b.bin:1"})
    EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_token_list(bad, "--tokens"); }),
                AllOf(HasSubstr("--tokens '" + std::string(bad)), HasSubstr("more than 9 digits"),
                      HasSubstr("use fewer")));
}

TEST(TokenList, CommasAndColonsOfNamesAreEscaped) {
  std::vector<std::string> names;
  for (const char* list : {R"(a\,b.bin:2,c\:1:3,\,:1,d\e\:5:1)", R"(x\,y,z\:1)"})
    for (const TokenPath& p : parse_token_list(list, "--tokens")) names.push_back(p.path.string());
  EXPECT_THAT(names, ElementsAre("a,b.bin", "c:1", ",", R"(d\e:5)", "x,y", "z:1"));
}

TEST(TokenList, WeightsMakeStreams) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a", kFive), b = folder.write("b", kFive + kFive);
  const auto open = [&](const std::string& list) {
    return open_token_streams(parse_token_list(list, "--tokens"), TokenFormat::u16);
  };
  const auto one = open(b + "," + a);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].tokens->size(), 15);
  EXPECT_EQ(one[0].tokens->files()[0].count, 10);
  const auto two = open(a + ":0.75," + b + ":0.25");
  ASSERT_EQ(two.size(), 2);
  EXPECT_EQ(two[0].share, 3);
  EXPECT_EQ(two[1].share, 1);
  EXPECT_EQ(two[1].tokens->source(), b);
  EXPECT_EQ(open_one_token_stream(parse_token_list(a, "--valid-tokens"), TokenFormat::u16, "--valid-tokens")
                ->size(),
            5);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                (void)open_one_token_stream(parse_token_list(a + ":1", "--valid-tokens"), TokenFormat::u16,
                                            "--valid-tokens");
              }),
              AllOf(HasSubstr("--valid-tokens"), HasSubstr("weight")));
}

}  // namespace
}  // namespace sherd
