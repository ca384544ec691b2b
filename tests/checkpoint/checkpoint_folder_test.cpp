#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>

#include "checkpoint/tagged_checkpoints.h"
#include "support/fault_file_system.h"

namespace sherd::test {
namespace {

using testing::Contains;

struct CheckpointFolders : testing::Test {
  TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
};

TEST(CheckpointNames, AreDistinguished) {
  EXPECT_EQ(checkpoint_name(0), "step_00000000");
  EXPECT_EQ(checkpoint_name(100), "step_00000100");
  EXPECT_EQ(checkpoint_name(12345678901), "step_12345678901");
  for (const char* name : {"step_00000000", "step_99999999", "step_12345678901"}) {
    EXPECT_TRUE(is_checkpoint_name(name)) << name;
    EXPECT_FALSE(is_temporary_name(name)) << name;
    EXPECT_TRUE(is_temporary_name(std::string(name) + ".tmp-0123456789abcdef-12")) << name;
  }
  EXPECT_TRUE(is_temporary_name("latest.tmp-0123456789abcdef-0"));
  EXPECT_TRUE(is_temporary_name("best.tmp-0123456789abcdef-0"));
  EXPECT_TRUE(is_temporary_name("lock.tmp-0123456789abcdef-0"));
  for (const char* name :
       {"", "step_", "step_1234567", "step_0000000x", "xstep_00000001", "Step_00000001", "latest",
        "step_00000001.tmp-0123456789abcdef-", "step_00000001.tmp-0123456789abcdef",
        "step_00000001.tmp-0123456789abcde-1", "step_00000001.tmp-0123456789abcdeg-1",
        "step_00000001.tmp-0123456789abcdef-1x", "step_00000001.tmp-0123456789abcdef-1.bak",
        "step_00000001.tmp-", "step_0000001.tmp-0123456789abcdef-1", "late.tmp-0123456789abcdef-1",
        "lock.tmp", ".tmp-0123456789abcdef-1", "step_00000001.tmp-0123456789abcdef 1"}) {
    EXPECT_FALSE(is_checkpoint_name(name)) << name;
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

TEST(CheckpointFolder, CommitsUnderFreshAndTakenNames) {
  const TemporaryFolder parent;
  FileSystem& files = FileSystem::posix();
  const fs::path path = parent / "new";
  CheckpointFolder folder(path, files);
  EXPECT_EQ(folder.path(), path);
  EXPECT_EQ(folder.next_sequence(), 1u);
  EXPECT_THAT(tags_in(path), IsEmpty());
  EXPECT_EQ(save_tagged(folder, files, 10, "aaaaaaaa"), path / "step_00000010");
  EXPECT_EQ(latest(path), "step_00000010");
  save_tagged(folder, files, 20, "bbbbbbbb");
  EXPECT_EQ(latest(path), "step_00000020");
  save_tagged(folder, files, 10, "cccccccc");
  EXPECT_EQ(latest(path), "step_00000010");
  EXPECT_EQ(tags_in(path), (std::map<std::string, std::string>{{"step_00000010", "cccccccc"},
                                                               {"step_00000020", "bbbbbbbb"}}));
  EXPECT_EQ(list_checkpoints(path, files).front().name, "step_00000010");
  EXPECT_THAT(files.list(path), ElementsAre("latest", "lock", "step_00000010", "step_00000020"));
  EXPECT_EQ(folder.next_sequence(), 4u);
}

TEST_F(CheckpointFolders, CommitsWhereATornCheckpointHasTheName) {
  path.write("step_00000010/manifest.binpb", "torn");
  CheckpointFolder folder(path.path(), files);
  save_tagged(folder, files, 10, "aaaaaaaa");
  EXPECT_THAT(tags_in(path.path()), SizeIs(1));
  EXPECT_THAT(temporaries(path.path()), IsEmpty());
}

TEST_F(CheckpointFolders, OtherFoldersAreNotReplaced) {
  path.write("step_00000020", "a file");
  path.write("step_00000030/notes.txt", "a folder");
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {20, 30}) {
    EXPECT_THAT(message_of<IoError>([&] { save_tagged(folder, files, step, "aaaaaaaa"); }),
                AllOf(HasSubstr(path / checkpoint_name(step)), HasSubstr("move it away")));
  }
  EXPECT_EQ(read_bytes(path / "step_00000020"), "a file");
  EXPECT_EQ(read_bytes(path / "step_00000030/notes.txt"), "a folder");
}

TEST_F(CheckpointFolders, PruningCountsAndRemovesByTheRule) {
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40, 50}) save_tagged(folder, files, step, "aaaaaaaa");
  const auto is = [](std::vector<std::string> names) {
    return [=](const CommittedCheckpoint& c) {
      return std::find(names.begin(), names.end(), c.name) != names.end();
    };
  };
  // The newest does not count, the oldest may not go.
  EXPECT_THAT(
      folder.prune(1, {is({"step_00000040", "step_00000030"}), is({"step_00000020", "step_00000030"})}),
      ElementsAre("step_00000030", "step_00000020"));
  EXPECT_EQ(read_bytes(path / "latest"), "step_00000050\n");
  EXPECT_THAT(folder.prune(1, {is({}), {}}), IsEmpty()) << "nothing counts, nothing goes";
  EXPECT_THAT(folder.prune(1, {is({"step_00000040"}), {}}), ElementsAre("step_00000010"));
  EXPECT_THAT(tags_in(path.path()), SizeIs(2));
}

TEST_F(CheckpointFolders, WhatIsNotFiniteNeverMakesAFiniteOneGo) {
  CheckpointFolder folder(path.path(), files);
  const auto names = [&] {
    std::vector<std::string> all;
    for (const CommittedCheckpoint& c : list_checkpoints(path.path(), files))
      all.push_back(c.name.substr(11));
    return all;
  };
  for (const int64_t step : {10, 20, 30}) save_tagged(folder, files, step, "aaaaaaaa");
  for (const int64_t step : {40, 50, 60}) {
    save_tagged(folder, files, step, "nannannn", 3);
    folder.prune(2);
  }
  EXPECT_THAT(names(), ElementsAre("60", "50", "30", "20"))
      << "the newest 2, and the newest 2 that are finite";
  save_tagged(folder, files, 70, "aaaaaaaa");
  folder.prune(2);
  EXPECT_THAT(names(), ElementsAre("70", "60", "30"));
  EXPECT_THAT(CheckpointFolder(path / "other", files).prune(1), IsEmpty());
}

TEST_F(CheckpointFolders, WhatIsNotFiniteDoesNotReplaceAFiniteOneOfItsStep) {
  CheckpointFolder folder(path.path(), files);
  save_tagged(folder, files, 10, "aaaaaaaa");
  EXPECT_THAT(message_of<IoError>([&] { save_tagged(folder, files, 10, "nannannn", 1); }),
              AllOf(HasSubstr("step_00000010"), HasSubstr("is left as it is")));
  EXPECT_EQ(tags_in(path.path()).at("step_00000010"), "aaaaaaaa");
  save_tagged(folder, files, 20, "nannannn", 1);
  save_tagged(folder, files, 20, "NANNANNN", 1);
  EXPECT_EQ(tags_in(path.path()).at("step_00000020"), "NANNANNN");
}

TEST_F(CheckpointFolders, OneRunSavesAtATime) {
  {
    CheckpointFolder first(path.path(), files);
    const fs::path unfinished = first.temporary(1);
    files.create_folder(unfinished);
    EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path.path(), files); }),
                AllOf(HasSubstr("another run"), HasSubstr(path / "lock"), HasSubstr("another folder")));
    EXPECT_EQ(files.kind(unfinished), FileSystem::Kind::folder);  // the one in use is not swept
    save_tagged(first, files, 7, "aaaaaaaa");
  }
  CheckpointFolder second(path.path(), files);
  EXPECT_EQ(second.next_sequence(), 2u);
  EXPECT_THAT(temporaries(path.path()), IsEmpty());
}

TEST(CheckpointFolder, UnusablePlacesAreNamed) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::posix();
  const std::string file = folder.write("file", "x");
  for (const std::string& path : {file, folder / "file/below"}) {
    EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path, files); }), HasSubstr(file));
  }
  EXPECT_THAT(message_of<IoError>([&] { (void)list_checkpoints(folder / "no", files); }),
              HasSubstr(folder / "no"));
}

TEST(CheckpointFolder, TemporaryNamesAreUnique) {
  const TemporaryFolder path;
  std::vector<std::string> names;
  for (int run = 0; run < 3; ++run) {
    CheckpointFolder folder(path.path(), FileSystem::posix());
    for (int i = 0; i < 3; ++i) {
      const fs::path temporary = folder.temporary(5);
      EXPECT_EQ(temporary.parent_path(), path.path());
      EXPECT_TRUE(is_temporary_name(temporary.filename().string())) << temporary;
      EXPECT_THAT(names, Not(Contains(temporary.string())));
      names.push_back(temporary.string());
    }
  }
}

TEST_F(CheckpointFolders, SweepsOnlyTemporaryNames) {
  const std::vector<std::string> kept = {"step_00000001.tmp-x", "step_00000002.tmp-0123456789abcdef-0.bak",
                                         "model.tmp-0123456789abcdef-0", "notes", "step_00000003"};
  for (const std::string& name : kept) path.write(name + "/file", "kept");
  path.write("step_00000004.tmp-0123456789abcdef-0/model/shard", "gone");
  path.write("latest.tmp-0123456789abcdef-1", "gone");
  CheckpointFolder folder(path.path(), files);
  std::vector<std::string> all = kept;
  all.push_back("lock");
  EXPECT_THAT(files.list(path.path()), testing::UnorderedElementsAreArray(all));
}

TEST_F(CheckpointFolders, ListLeavesOutWhatIsUnusable) {
  std::string manifest;
  {
    CheckpointFolder folder(path.path(), files);
    save_tagged(folder, files, 1, "aaaaaaaa");
    manifest = read_bytes(path / "step_00000001/manifest.binpb");
  }
  path.write("step_00000003", "a file");
  fs::create_directory(path / "step_00000004");
  path.write("step_00000005.tmp-0123456789abcdef-0/manifest.binpb", manifest);
  for (size_t length = 0; length < manifest.size(); ++length) {
    path.write("step_00000002/manifest.binpb", manifest.substr(0, length));
    std::vector<UnusableCheckpoint> unusable;
    const auto listed = list_checkpoints(path.path(), files, &unusable);
    EXPECT_EQ(listed.size(), 1u) << length;
    std::vector<std::string> texts;
    for (const UnusableCheckpoint& u : unusable) {
      texts.push_back(u.text());
      EXPECT_FALSE(u.unreadable) << u.text();
    }
    EXPECT_THAT(texts, ElementsAre(HasSubstr("step_00000002"), HasSubstr("step_00000003"),
                                   AllOf(HasSubstr("step_00000004"), HasSubstr("No such file"))));
  }
  EXPECT_THAT(list_checkpoints(path.path(), files), SizeIs(1));
}

/// Gives a manifest a format version of the future; its first bytes are sound.
void make_newer(const std::string& manifest) {
  std::string bytes = read_bytes(manifest);
  bytes[8] = 7;
  const uint64_t sum = checksum(bytes.data(), 40);
  std::memcpy(bytes.data() + 40, &sum, sizeof sum);
  std::ofstream(manifest, std::ios::binary) << bytes;
}

TEST(CheckpointFolder, ACheckpointOfANewerFormatMakesTheFolderUntouchable) {
  for (const std::string newer : {"step_00000010", "step_00000020", "step_00000030"}) {
    const TemporaryFolder path;
    FileSystem& files = FileSystem::posix();
    {
      CheckpointFolder folder(path.path(), files);
      for (const int64_t step : {10, 20, 30}) save_tagged(folder, files, step, "aaaaaaaa");
    }
    make_newer(path / (newer + "/manifest.binpb"));
    path.write("step_00000040.tmp-0123456789abcdef-0/model/shard", "of the newer program");
    const std::string lock = read_bytes(path / "lock");
    const auto refused = AllOf(HasSubstr(newer + "/manifest.binpb"), HasSubstr("format version 7"),
                               HasSubstr("reads versions up to 1"));
    EXPECT_THAT(message_of<NewerFormat>([&] { CheckpointFolder(path.path(), files); }), refused);
    EXPECT_THAT(message_of<NewerFormat>([&] { (void)list_checkpoints(path.path(), files); }), refused);
    EXPECT_THAT(message_of<NewerFormat>([&] { (void)verify_checkpoint(path / newer); }), refused);
    EXPECT_THAT(message_of<NewerFormat>([&] { (void)CheckpointReader::open(path / newer); }), refused);
    EXPECT_EQ(read_bytes(path / "lock"), lock);
    EXPECT_THAT(temporaries(path.path()), SizeIs(1)) << "nothing was swept";
  }
}

TEST(CheckpointFolder, AnUnreadableOneIsOlderThanEveryLaterSave) {
  const TemporaryFolder path;
  FaultFileSystem files;
  {
    CheckpointFolder folder(path.path(), files);
    for (const int64_t step : {10, 20, 30}) save_tagged(folder, files, step, "aaaaaaaa");
  }
  files.fail_reads("step_00000030/manifest.binpb", EIO);
  std::vector<UnusableCheckpoint> unusable;
  EXPECT_THAT(list_checkpoints(path.path(), files, &unusable), SizeIs(2));
  ASSERT_THAT(unusable, SizeIs(1));
  EXPECT_TRUE(unusable[0].unreadable);
  EXPECT_THAT(unusable[0].text(), AllOf(HasSubstr("step_00000030: "), HasSubstr("Input/output error")));
  {
    // A run that resumes from step 20 with other steps between its saves.
    CheckpointFolder folder(path.path(), files);
    save_tagged(folder, files, 25, "bbbbbbbb");
    EXPECT_THAT(folder.prune(1), ElementsAre("step_00000020", "step_00000010"));
  }
  files.reset();
  EXPECT_EQ(list_checkpoints(path.path(), files).front().name, "step_00000025");
  EXPECT_THAT(tags_in(path.path()), SizeIs(2)) << "the unreadable one stays";
}

TEST_F(CheckpointFolders, PruneKeepsTheNewestBySequence) {
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40}) save_tagged(folder, files, step, "aaaaaaaa");
  save_tagged(folder, files, 15, "bbbbbbbb");  // resumed from step 10
  path.write("step_00000001/manifest.binpb", "torn");
  EXPECT_THAT(folder.prune(9), IsEmpty());
  EXPECT_THAT(folder.prune(3), ElementsAre("step_00000020", "step_00000010"));
  EXPECT_THAT(folder.prune(3), IsEmpty());
  path.write("latest", "step_00000040\n");  // as a crash between commit and `latest` leaves it
  EXPECT_THAT(folder.prune(1), ElementsAre("step_00000040", "step_00000030"));
  EXPECT_EQ(latest(path.path()), "step_00000015");
  EXPECT_THAT(files.list(path.path()), ElementsAre("latest", "lock", "step_00000001", "step_00000015"));
  EXPECT_THROW(folder.prune(0), InvalidArgument);
  EXPECT_EQ(folder.next_sequence(), 6u);
}

TEST_F(CheckpointFolders, TheBestIsTheOldestFiniteOneOfTheLowestLoss) {
  CheckpointFolder folder(path.path(), files);
  save_tagged(folder, files, 10, "aaaaaaaa");
  EXPECT_FALSE(folder.lowest_loss("d", any).has_value()) << "never evaluated";
  const std::pair<int64_t, const char*> evaluated[] = {
      {20, "2.5"}, {30, "1.5"}, {40, "1.5"}, {50, "nan"}, {60, "2"}};
  for (const auto& [step, loss] : evaluated) save_tagged(folder, files, step, "aaaaaaaa", 0, loss);
  save_tagged(folder, files, 70, "nannannn", 1, "0.5");
  const auto best = folder.lowest_loss("d", any);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->name, "step_00000030");
  EXPECT_EQ(best->loss, 1.5);
  EXPECT_FALSE(folder.lowest_loss("other data", any).has_value());
  const auto late =
      folder.lowest_loss("d", [](const CommittedCheckpoint& c) { return c.name > "step_00000040"; });
  EXPECT_EQ(late->name, "step_00000060");
}

TEST_F(CheckpointFolders, PruningLeavesTheOneThatBestNames) {
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40}) save_tagged(folder, files, step, "aaaaaaaa");
  EXPECT_EQ(folder.best(), "");
  folder.write_best("step_00000020");
  EXPECT_THAT(folder.prune(1), ElementsAre("step_00000030", "step_00000010"));
  EXPECT_THAT(files.list(path.path()),
              ElementsAre("best", "latest", "lock", "step_00000020", "step_00000040"));
  EXPECT_EQ(read_bytes(path / "best"), "step_00000020\n");
  // Another run replaces all of them.
  save_tagged(folder, files, 50, "aaaaaaaa");
  folder.remove([](const CommittedCheckpoint& c) { return c.name != "step_00000050"; });
  EXPECT_THAT(files.list(path.path()), ElementsAre("latest", "lock", "step_00000050"));
}

}  // namespace
}  // namespace sherd::test
