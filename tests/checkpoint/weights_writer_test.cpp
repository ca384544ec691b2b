// A folder of weights appears complete or not at all, whatever fails.

#include <sherd/base/error.h>
#include <sherd/checkpoint/detail/weights_writer.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

const std::vector<SafetensorsSpec> kTensors = {
    {"a", DType::f32, {3}}, {"none", DType::f32, {0}}, {"b", DType::bf16, {5}}, {"void", DType::f32, {2, 0}}};
const std::string kData = "a holds this,b this one";  // 12 + 10 bytes and one too many
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

/// In portions that end inside, at the end of and beyond tensors and files.
void write(const std::string& path, FileSystem& files) {
  WeightsWriter writer(path, kTensors, {}, 12, files);
  int64_t at = 0;
  for (const int64_t end : {5, 5, 12, 20, 22}) {
    writer.append(kData.data() + at, end - at);
    at = end;
  }
  writer.finish();
}

TEST(WeightsWriter, FilesAreFilledInOrder) {
  const TemporaryFolder folder;
  write(folder / "out/", FileSystem::posix());
  EXPECT_THAT(names_in(folder / "out"), ElementsAre(kFirst, kSecond, "model.safetensors.index.json"));
  const SafetensorsReader first(fs::path(folder / "out") / kFirst),
      second(fs::path(folder / "out") / kSecond);
  std::string a(12, ' '), b(10, ' ');
  first.read(*first.find("a"), 0, 3, a.data());
  second.read(*second.find("b"), 0, 5, b.data());
  EXPECT_EQ(a + b, kData.substr(0, 22));
  EXPECT_NE(first.find("none"), nullptr);
  EXPECT_NE(second.find("void"), nullptr);
}

TEST(WeightsWriter, WhateverCallFails) {
  const TemporaryFolder folder;
  FaultFileSystem files;
  write(folder / "out/", files);
  const size_t calls = files.calls().size();
  ASSERT_GT(calls, 15u);
  for (size_t at = 0; at < calls; ++at) {
    fs::remove_all(folder / "out");
    files.arm({.effect = FileFault::Effect::short_write, .error = ENOSPC, .at = at});
    EXPECT_THROW(write(folder / "out/", files), IoError) << at;
    ASSERT_TRUE(files.struck()) << at;
    // Only the very last call, which makes the rename durable, leaves the folder behind: complete.
    if (at + 1 < calls) {
      EXPECT_THAT(names_in(folder.path()), IsEmpty()) << at;
    } else {
      EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
      EXPECT_EQ(names_in(folder / "out").size(), 3u);
    }
  }
}

TEST(WeightsWriter, TooFewOrTooManyBytes) {
  const TemporaryFolder folder;
  {
    WeightsWriter writer(folder / "out/", kTensors, {}, 12);
    writer.append(kData.data(), 21);
    EXPECT_THROW(writer.finish(), InvalidArgument);
  }
  {
    WeightsWriter writer(folder / "out/", kTensors, {}, 12);
    EXPECT_THROW(writer.append(kData.data(), 23), InvalidArgument);
  }
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(WeightsWriter, NoTensorsAreAFileToo) {
  const TemporaryFolder folder;
  WeightsWriter writer(folder / "out/", {}, {}, 1);
  writer.finish();
  EXPECT_THAT(names_in(folder / "out"), ElementsAre("model.safetensors"));
  EXPECT_TRUE(SafetensorsReader(folder / "out/model.safetensors").entries().empty());
}

TEST(WeightsWriter, AFolderThatAKilledWriterLeftIsRemoved) {
  const TemporaryFolder folder;
  folder.write("out.tmp-123456-0/model.safetensors", "left");
  WeightsWriter live(folder / "out/", {}, {}, 1);
  WeightsWriter writer(folder / "out/", {}, {}, 1);
  EXPECT_EQ(names_in(folder.path()).size(), 2u) << "the two that are being written";
  writer.finish();
  EXPECT_THROW(live.finish(), IoError);
}

TEST(WeightsWriter, AFolderThatFillsUpMeanwhileIsNotReplaced) {
  const TemporaryFolder folder;
  WeightsWriter writer(folder / "out/", {}, {}, 1);
  folder.write("out/other", "keep");
  EXPECT_THROW(writer.finish(), IoError);
  EXPECT_THAT(names_in(folder / "out"), ElementsAre("other"));
}

/// @returns WeightsWriter::finish().
bool write_again(const std::string& path, const std::string& data = kData) {
  WeightsWriter writer(path, kTensors, {}, 12, FileSystem::posix(), Existing::accept_equal);
  writer.append(data.data(), 22);
  return writer.finish();
}

TEST(WeightsWriter, AnEqualFolderIsLeftAsItIsAndAnythingElseIsRefused) {
  const TemporaryFolder folder;
  const std::string out = folder / "out/";
  EXPECT_TRUE(write_again(out)) << "nothing was there";
  const auto before = fs::last_write_time(fs::path(out) / kFirst);
  folder.write("out/README.md", "mine");
  EXPECT_FALSE(write_again(out));
  EXPECT_EQ(fs::last_write_time(fs::path(out) / kFirst), before);
  EXPECT_EQ(names_in(out).size(), 4u);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out"));
  EXPECT_THROW(write(out, FileSystem::posix()), IoError) << "unless it is asked for";

  std::string other = kData;
  other[20] ^= 1;
  EXPECT_THAT(message_of<IoError>([&] { write_again(out, other); }),
              ::testing::AllOf(::testing::HasSubstr("not empty"), ::testing::HasSubstr("has other bytes")));
  fs::remove(fs::path(out) / kSecond);
  EXPECT_THAT(message_of<IoError>([&] { write_again(out); }), ::testing::HasSubstr("is not in it"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out")) << "nothing is left beside it";
}

/// Another process makes each folder right before this one.
class Raced : public FaultFileSystem {
 public:
  bool create_folder(const fs::path& path) override {
    if (made_++ == 0) FileSystem::posix().create_folder(path);
    return FaultFileSystem::create_folder(path);
  }

 private:
  int made_ = 0;
};

TEST(WeightsWriter, ATemporaryFolderOfAnotherProcessIsNotTakenOver) {
  const TemporaryFolder folder;
  Raced files;
  write(folder / "out/", files);
  const std::vector<std::string> names = names_in(folder.path());
  ASSERT_EQ(names.size(), 2u) << "the other one's and the export";
  EXPECT_THAT(names_in(folder / names.back()), IsEmpty());
  EXPECT_EQ(names_in(folder / "out").size(), 3u);
}

}  // namespace
}  // namespace sherd
