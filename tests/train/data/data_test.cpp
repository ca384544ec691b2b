#include <sherd/train/data/data.h>

#include <numeric>
#include <set>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/format/manifest.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/memory_bytes.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string load(const fs::path& path) {
  const auto data = ByteData::load(path);
  std::vector<int32_t> tokens(static_cast<size_t>(data->size()));
  data->read(0, data->size(), tokens.data(), 256);
  return std::string(tokens.begin(), tokens.end());
}

TokenWindows windows_over(int64_t bytes, int64_t seq) {
  std::vector<uint8_t> data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7 + i / 256);
  return TokenWindows(test::stream_of("test", test::memory_text(data)), seq);
}

TEST(ByteData, FileIsTakenAsItIs) {
  const TemporaryFolder folder;
  const std::string bytes("\x00\xff\r\n\x1a tail", 10);
  EXPECT_EQ(load(folder.write("f", bytes)), bytes);
  EXPECT_EQ(load(folder.write("empty", "")), "");
}

TEST(ByteData, FolderIsSortedByFullPathAsBytes) {
  const TemporaryFolder folder;
  // '-' < '.' < '/' < '0' < 'A' < 'a' < bytes above 127; a walk that goes folder by folder gives another
  // order.
  const std::vector<std::string> sorted = {"A",     "B/z", "a-b", "a.b",      "a/b", "a/b.c",
                                           "a/b/c", "a0b", "aa",  "\xc3\xa4", "\xff"};
  std::string expected;
  for (const auto& name : sorted) {
    if (name == "a/b") continue;  // cannot be both file and folder: "a/b/c" makes it a folder
    expected += "<" + name + ">";
  }
  for (auto name = sorted.rbegin(); name != sorted.rend(); ++name) {
    if (*name != "a/b") folder.write(*name, "<" + *name + ">");
  }
  folder.write("empty", "");
  fs::create_directories(folder.path() / "folder/without/files");
  EXPECT_EQ(load(folder.path()), expected);
  EXPECT_EQ(load(folder.path().string() + "/"), expected);
  EXPECT_EQ(load(folder.path() / "a" / ".."), expected);
}

TEST(ByteData, LinksAndSpecialFilesBelowAreSkipped) {
  const TemporaryFolder folder, elsewhere;
  folder.write("b", "B");
  elsewhere.write("x", "X");
  fs::create_symlink(elsewhere / "x", folder / "a");
  fs::create_directory_symlink(elsewhere.path(), folder / "c");
  fs::create_directory_symlink(folder.path(), folder / "loop");
  fs::create_symlink("nowhere", folder / "dangling");
  fs::create_symlink("b", folder / "z");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(load(folder.path()), "B");
}

TEST(ByteData, ThePathItselfMayBeALink) {
  const TemporaryFolder folder, elsewhere;
  folder.write("a", "A");
  folder.write("b/c", "C");
  fs::create_directory_symlink(folder.path(), elsewhere / "folder");
  fs::create_symlink(folder / "a", elsewhere / "file");
  EXPECT_EQ(load(elsewhere / "folder"), "AC");
  EXPECT_EQ(load(elsewhere / "file"), "A");
}

TEST(ByteData, MissingIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { (void)ByteData::load(folder / "missing"); }),
              AllOf(HasSubstr(folder / "missing"), HasSubstr("No such file")));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { (void)ByteData::load(folder / "pipe"); }),
              HasSubstr("not a regular file"));
}

TEST(ByteData, UnreadableBelowAFolderIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const TemporaryFolder folder;
  folder.write("sub/secret", "s");
  fs::permissions(folder.path() / "sub", fs::perms::none);
  EXPECT_THAT(message_of<IoError>([&] { (void)ByteData::load(folder.path()); }), HasSubstr(folder / "sub"));
  fs::permissions(folder.path() / "sub", fs::perms::owner_all);
  fs::permissions(folder.path() / "sub/secret", fs::perms::none);
  EXPECT_THAT(message_of<IoError>([&] { (void)ByteData::load(folder.path()); }),
              HasSubstr(folder / "sub/secret"));
}

TEST(ByteData, ThatBecameShorterIsNamed) {
  const TemporaryFolder folder;
  for (const bool in_folder : {false, true}) {
    const std::string file = folder.write("text/a", std::string(100'000, 'a'));
    const auto data = ByteData::load(in_folder ? folder / "text" : file);
    std::vector<int32_t> tokens(100'000);
    data->read(0, 100'000, tokens.data(), 256);
    fs::resize_file(file, 50);
    EXPECT_THAT(message_of<IoError>([&] { data->read(60'000, 10, tokens.data(), 256); }),
                AllOf(HasSubstr(file), HasSubstr("50 bytes now"), HasSubstr("100000")));
    EXPECT_THROW(data->read(0, 10, tokens.data(), 256), IoError);
  }
}

TEST(ByteData, AMappedFileOutlivesItsName) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a", "abc");
  const auto data = ByteData::load(file);
  fs::remove(file);
  int32_t tokens[3];
  data->read(0, 3, tokens, 256);
  folder.write("a", "x");  // another file
  data->read(0, 3, tokens, 256);
  EXPECT_THAT(tokens, ElementsAre('a', 'b', 'c'));
}

TEST(Windows, AreDescribedByAllBytesOfTheText) {
  const TemporaryFolder folder;
  const std::string text = "the same bytes, however they are cut into files";
  folder.write("files/a", text.substr(0, 10));
  folder.write("files/b", text.substr(10));
  const TokenWindows one(ByteData::load(folder.write("file", text)), 4),
      several(ByteData::load(folder / "files"), 4);
  EXPECT_EQ(one.describe(), fmt::format("47 bytes, XXH3 {:016x}, windows of 4", checksum(text.data(), 47)));
  EXPECT_EQ(several.describe(), one.describe());
  EXPECT_EQ(one.summary(),
            "data " + (folder / "file") + ": 47 bytes, 11 windows of 4 to train on, 0 held out");
}

TEST(Windows, CountsAtTheBoundaries) {
  struct Case {
    int64_t bytes, seq, train, held_out;
  };
  for (const Case& c : {Case{5, 4, 1, 0}, Case{8, 4, 1, 0}, Case{9, 4, 2, 0}, Case{2, 1, 1, 0},
                        Case{49 * 8 + 1, 8, 49, 0}, Case{50 * 8, 8, 49, 0}, Case{50 * 8 + 1, 8, 49, 1},
                        Case{100 * 8, 8, 98, 1}, Case{100 * 8 + 1, 8, 98, 2}, Case{10'001, 1, 9800, 200}}) {
    const TokenWindows windows = windows_over(c.bytes, c.seq);
    EXPECT_EQ(windows.train_count(), c.train) << c.bytes << " bytes, seq " << c.seq;
    EXPECT_EQ(windows.held_out_count(), c.held_out) << c.bytes << " bytes, seq " << c.seq;
  }
}

TEST(Windows, TooLittleDataNamesWhatThereIsAndWhatIsNeeded) {
  for (int64_t bytes : {0, 1, 4}) {
    EXPECT_THAT(message_of<IoError>([&] { windows_over(bytes, 4); }),
                AllOf(HasSubstr("'test'"), HasSubstr("has " + std::to_string(bytes) + " bytes"),
                      HasSubstr("at least 5"), HasSubstr("--seq")));
  }
}

TEST(Windows, TrainWindowFollowsTheFormula) {
  const TokenWindows windows = windows_over(1001 * 4, 4);  // W = 1000, V = 980
  ASSERT_EQ(windows.train_count(), 980);
  EXPECT_EQ(windows.train_window(0), 0);
  EXPECT_EQ(windows.train_window(1), 2654435761 % 980);
  // Worked out with unbounded integers: ((step * 16 + i) * 2654435761 mod 2^64) mod 980. The last ones wrap.
  struct Case {
    int64_t step, index, window;
  };
  for (const Case& c :
       {Case{1, 0, 696}, Case{1, 15, 491}, Case{7, 0, 952}, Case{7, 15, 747}, Case{123456789, 0, 444},
        Case{123456789, 15, 239}, Case{288230376151711747, 0, 692}, Case{288230376151711747, 15, 487},
        Case{4611686018427387905, 0, 696}, Case{4611686018427387905, 15, 491}}) {
    const auto sequence = static_cast<uint64_t>(c.step) * 16 + static_cast<uint64_t>(c.index);
    EXPECT_EQ(windows.train_window(static_cast<int64_t>(sequence)), c.window) << c.step << " " << c.index;
  }
}

TEST(Windows, FillGivesTheBytesAndTheOnesAfter) {
  const int64_t bytes = 1003, seq = 20;  // W = 50: the last window is held out
  const TokenWindows windows = windows_over(bytes, seq);
  const auto byte = [](int64_t i) { return static_cast<int32_t>(static_cast<uint8_t>(i * 7 + i / 256)); };
  ASSERT_EQ(windows.train_count() + windows.held_out_count(), 50);
  for (int64_t w = 0; w < 50; ++w) {
    std::vector<int32_t> inputs(20, -1), targets(20, -1);
    windows.fill(w, inputs.data(), targets.data());
    for (int64_t i = 0; i < seq; ++i) {
      ASSERT_EQ(inputs[static_cast<size_t>(i)], byte(w * seq + i));
      ASSERT_EQ(targets[static_cast<size_t>(i)], byte(w * seq + i + 1));
    }
  }
  int32_t out[20];
  EXPECT_THROW(windows.fill(50, out, out), InvalidArgument);
  EXPECT_THROW(windows.fill(-1, out, out), InvalidArgument);
}

TEST(Windows, BytesAbove127AreNotNegative) {
  const TokenWindows windows(test::stream_of("test", test::memory_text({0, 127, 128, 255})), 3);
  int32_t inputs[3], targets[3];
  windows.fill(0, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(0, 127, 128));
  EXPECT_THAT(targets, ElementsAre(127, 128, 255));
}

}  // namespace
}  // namespace sherd
