#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace sherd;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Not;
using testing::SizeIs;

const std::string kHeader = "8 bytes ";

void put(FileSystem& files, const fs::path& path, const std::string& bytes) {
  const auto file = files.create_new(path);
  if (!file) throw IoError("taken: " + path.string());
  file->write(bytes.data(), static_cast<int64_t>(bytes.size()));
  file->sync();
  file->close();
}

/// Saves a checkpoint that holds `tag` (8 letters) in a file of each section; so many values of its model are
/// said not to be finite, and `loss` is that of an evaluation on the data "d".
fs::path save(CheckpointFolder& folder, FileSystem& files, int64_t step, const std::string& tag,
              int64_t not_finite = 0, const std::string& loss = "") {
  const fs::path temporary = folder.temporary(step);
  Manifest manifest;
  manifest.training.step = step;
  if (!loss.empty())
    manifest.training.info = {{TrainingState::kEvalLoss, loss}, {TrainingState::kEvalData, "d"}};
  try {
    files.create_folder(temporary);
    for (const Section section : {Section::model, Section::optim}) {
      files.create_folder(temporary / name_of(section));
      const std::string path = std::string(name_of(section)) + "/file";
      put(files, temporary / path, kHeader + tag);
      manifest.tensors.push_back({"t", section, DType::u8, {8}, {{{{0}, {8}}, 0, 8}}});
      manifest.tensors.back().pieces[0].file = static_cast<int>(manifest.files.size());
      if (section == Section::model) manifest.tensors.back().pieces[0].not_finite = {not_finite, 0};
      manifest.files.push_back({path, 16, 8, checksum(kHeader.data(), 8), {checksum(tag.data(), 8)}});
    }
    return folder.commit(temporary, step, manifest);
  } catch (const IoError&) {
    folder.discard(temporary);
    throw;
  }
}

/// Tags of the committed checkpoints by name, every byte of them checked.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> tags;
  std::vector<UnusableCheckpoint> unusable;
  FileSystem& files = FileSystem::posix();
  for (const CommittedCheckpoint& found : list_checkpoints(folder, files, &unusable)) {
    const Manifest manifest =
        decode_manifest(read_whole(files, folder / found.name / "manifest.binpb", 9999));
    EXPECT_EQ(manifest.sequence, found.sequence);
    EXPECT_EQ(checkpoint_name(manifest.training.step), found.name);
    for (const CheckpointFile& file : manifest.files) {
      const std::string bytes = read_whole(files, folder / found.name / file.path, 16);
      EXPECT_EQ(bytes.substr(0, 8), kHeader);
      tags[found.name] = bytes.substr(8);
      EXPECT_EQ(checksum(tags[found.name].data(), 8), file.block_checksums[0]) << found.name << file.path;
    }
  }
  EXPECT_THAT(unusable, IsEmpty());
  return tags;
}

std::vector<std::string> temporaries(const fs::path& folder) {
  std::vector<std::string> names = FileSystem::posix().list(folder);
  std::erase_if(names, [](const std::string& name) { return !is_temporary_name(name); });
  return names;
}

std::string latest(const fs::path& folder) {
  std::string name = read_bytes(folder / "latest");
  EXPECT_TRUE(name.ends_with('\n')) << name;
  return name.substr(0, name.size() - 1);
}

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
  EXPECT_THAT(contents(path), IsEmpty());
  EXPECT_EQ(save(folder, files, 10, "aaaaaaaa"), path / "step_00000010");
  EXPECT_EQ(latest(path), "step_00000010");
  save(folder, files, 20, "bbbbbbbb");
  EXPECT_EQ(latest(path), "step_00000020");
  save(folder, files, 10, "cccccccc");
  EXPECT_EQ(latest(path), "step_00000010");
  EXPECT_EQ(contents(path), (std::map<std::string, std::string>{{"step_00000010", "cccccccc"},
                                                                {"step_00000020", "bbbbbbbb"}}));
  EXPECT_EQ(list_checkpoints(path, files).front().name, "step_00000010");
  EXPECT_THAT(files.list(path), ElementsAre("latest", "lock", "step_00000010", "step_00000020"));
  EXPECT_EQ(folder.next_sequence(), 4u);
}

TEST(CheckpointFolder, CommitsWhereATornCheckpointHasTheName) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  path.write("step_00000010/manifest.binpb", "torn");
  CheckpointFolder folder(path.path(), files);
  save(folder, files, 10, "aaaaaaaa");
  EXPECT_THAT(contents(path.path()), SizeIs(1));
  EXPECT_THAT(temporaries(path.path()), IsEmpty());
}

TEST(CheckpointFolder, OtherFoldersAreNotReplaced) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  path.write("step_00000020", "a file");
  path.write("step_00000030/notes.txt", "a folder");
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {20, 30}) {
    EXPECT_THAT(message_of<IoError>([&] { save(folder, files, step, "aaaaaaaa"); }),
                AllOf(HasSubstr(path / checkpoint_name(step)), HasSubstr("move it away")));
  }
  EXPECT_EQ(read_bytes(path / "step_00000020"), "a file");
  EXPECT_EQ(read_bytes(path / "step_00000030/notes.txt"), "a folder");
}

TEST(CheckpointFolder, PruningCountsAndRemovesByTheRule) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40, 50}) save(folder, files, step, "aaaaaaaa");
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
  EXPECT_THAT(contents(path.path()), SizeIs(2));
}

TEST(CheckpointFolder, WhatIsNotFiniteNeverMakesAFiniteOneGo) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  const auto names = [&] {
    std::vector<std::string> all;
    for (const CommittedCheckpoint& c : list_checkpoints(path.path(), files))
      all.push_back(c.name.substr(11));
    return all;
  };
  for (const int64_t step : {10, 20, 30}) save(folder, files, step, "aaaaaaaa");
  for (const int64_t step : {40, 50, 60}) {
    save(folder, files, step, "nannannn", 3);
    folder.prune(2);
  }
  EXPECT_THAT(names(), ElementsAre("60", "50", "30", "20"))
      << "the newest 2, and the newest 2 that are finite";
  save(folder, files, 70, "aaaaaaaa");
  folder.prune(2);
  EXPECT_THAT(names(), ElementsAre("70", "60", "30"));
  EXPECT_THAT(CheckpointFolder(path / "other", files).prune(1), IsEmpty());
}

TEST(CheckpointFolder, WhatIsNotFiniteDoesNotReplaceAFiniteOneOfItsStep) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  save(folder, files, 10, "aaaaaaaa");
  EXPECT_THAT(message_of<IoError>([&] { save(folder, files, 10, "nannannn", 1); }),
              AllOf(HasSubstr("step_00000010"), HasSubstr("is left as it is")));
  EXPECT_EQ(contents(path.path()).at("step_00000010"), "aaaaaaaa");
  save(folder, files, 20, "nannannn", 1);
  save(folder, files, 20, "NANNANNN", 1);
  EXPECT_EQ(contents(path.path()).at("step_00000020"), "NANNANNN");
}

TEST(CheckpointFolder, OneRunSavesAtATime) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  {
    CheckpointFolder first(path.path(), files);
    const fs::path unfinished = first.temporary(1);
    files.create_folder(unfinished);
    EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path.path(), files); }),
                AllOf(HasSubstr("another run"), HasSubstr(path / "lock"), HasSubstr("another folder")));
    EXPECT_EQ(files.kind(unfinished), FileSystem::Kind::folder);  // the one in use is not swept
    save(first, files, 7, "aaaaaaaa");
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

TEST(CheckpointFolder, SweepsOnlyTemporaryNames) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
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

TEST(CheckpointFolder, ListLeavesOutWhatIsUnusable) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  std::string manifest;
  {
    CheckpointFolder folder(path.path(), files);
    save(folder, files, 1, "aaaaaaaa");
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
      for (const int64_t step : {10, 20, 30}) save(folder, files, step, "aaaaaaaa");
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
    for (const int64_t step : {10, 20, 30}) save(folder, files, step, "aaaaaaaa");
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
    save(folder, files, 25, "bbbbbbbb");
    EXPECT_THAT(folder.prune(1), ElementsAre("step_00000020", "step_00000010"));
  }
  files.reset();
  EXPECT_EQ(list_checkpoints(path.path(), files).front().name, "step_00000025");
  EXPECT_THAT(contents(path.path()), SizeIs(2)) << "the unreadable one stays";
}

TEST(CheckpointFolder, PruneKeepsTheNewestBySequence) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40}) save(folder, files, step, "aaaaaaaa");
  save(folder, files, 15, "bbbbbbbb");  // resumed from step 10
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

bool any(const CommittedCheckpoint&) { return true; }

TEST(CheckpointFolder, TheBestIsTheOldestFiniteOneOfTheLowestLoss) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  save(folder, files, 10, "aaaaaaaa");
  EXPECT_FALSE(folder.lowest_loss("d", any).has_value()) << "never evaluated";
  const std::pair<int64_t, const char*> evaluated[] = {
      {20, "2.5"}, {30, "1.5"}, {40, "1.5"}, {50, "nan"}, {60, "2"}};
  for (const auto& [step, loss] : evaluated) save(folder, files, step, "aaaaaaaa", 0, loss);
  save(folder, files, 70, "nannannn", 1, "0.5");
  const auto best = folder.lowest_loss("d", any);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->name, "step_00000030");
  EXPECT_EQ(best->loss, 1.5);
  EXPECT_FALSE(folder.lowest_loss("other data", any).has_value());
  const auto late =
      folder.lowest_loss("d", [](const CommittedCheckpoint& c) { return c.name > "step_00000040"; });
  EXPECT_EQ(late->name, "step_00000060");
}

TEST(CheckpointFolder, PruningLeavesTheOneThatBestNames) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder folder(path.path(), files);
  for (const int64_t step : {10, 20, 30, 40}) save(folder, files, step, "aaaaaaaa");
  EXPECT_EQ(folder.best(), "");
  folder.write_best("step_00000020");
  EXPECT_THAT(folder.prune(1), ElementsAre("step_00000030", "step_00000010"));
  EXPECT_THAT(files.list(path.path()),
              ElementsAre("best", "latest", "lock", "step_00000020", "step_00000040"));
  EXPECT_EQ(read_bytes(path / "best"), "step_00000020\n");
  // Another run replaces all of them.
  save(folder, files, 50, "aaaaaaaa");
  folder.remove([](const CommittedCheckpoint& c) { return c.name != "step_00000050"; });
  EXPECT_THAT(files.list(path.path()), ElementsAre("latest", "lock", "step_00000050"));
}

// ---- faults at every call

/// Steps 10 and 20 are there, and `best` names 10; a run saves step `step`, which is better, and removes what is more than 2.
struct Scene {
  explicit Scene(int64_t the_step) : step(the_step) {
    CheckpointFolder folder(path, files);
    save(folder, files, 10, "aaaaaaaa", 0, "1.5");
    save(folder, files, 20, "bbbbbbbb");
    folder.write_best(checkpoint_name(10));
    files.lose_unsynced(Loss::all);
    files.reset();
  }
  void run() {
    CheckpointFolder folder(path, files);
    save_and_prune(folder);
  }
  void save_and_prune(CheckpointFolder& folder) {
    save(folder, files, step, "cccccccc", 0, "0.5");
    if (const auto best = folder.lowest_loss("d", any); best->name != folder.best())
      folder.write_best(best->name);
    folder.prune(2);
  }
  size_t calls_of_a_run() {
    run();
    const size_t calls = files.calls().size();
    files.lose_unsynced(Loss::all);
    expect_new("a run without faults");
    return calls;
  }

  std::map<std::string, std::string> before() const {
    return {{checkpoint_name(10), "aaaaaaaa"}, {checkpoint_name(20), "bbbbbbbb"}};
  }
  std::map<std::string, std::string> after(bool pruned) const {
    std::map<std::string, std::string> tags = before();
    tags[checkpoint_name(step)] = "cccccccc";
    if (pruned && tags.size() > 2) tags.erase(checkpoint_name(10));
    return tags;
  }
  void expect_sound(const std::string& what) const {
    EXPECT_THAT(contents(path), AnyOf(before(), after(false), after(true))) << what;
    EXPECT_THAT(contents(path), Contains(Key(latest(path)))) << what;
    EXPECT_THAT(contents(path), Contains(Key(named_in("best")))) << what;
  }
  void expect_new(const std::string& what) const {
    EXPECT_EQ(contents(path), after(true)) << what;
    EXPECT_EQ(latest(path), checkpoint_name(step)) << what;
    EXPECT_EQ(named_in("best"), checkpoint_name(step)) << what;
    EXPECT_THAT(temporaries(path), IsEmpty()) << what;
  }

  std::string named_in(const char* pointer) const {
    const std::string name = read_bytes(path / pointer);
    EXPECT_TRUE(name.ends_with('\n')) << name;
    return name.substr(0, name.size() - 1);
  }

  int64_t step;
  TemporaryFolder parent{TemporaryFolder::in_memory()};
  fs::path path = parent / "saves";
  FaultFileSystem files;
};

class CheckpointFolderFaults : public testing::TestWithParam<int64_t> {};

TEST_P(CheckpointFolderFaults, CrashAtEveryCallLosesNothingCommitted) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  EXPECT_GT(calls, 20u);
  int old = 0, committed = 0;
  for (size_t at = 0; at < calls; ++at) {
    for (const Loss loss : kLosses) {
      const bool random = loss == Loss::some || loss == Loss::zeros;
      for (uint64_t seed = 0; seed < (random ? 6 : 1); ++seed) {
        Scene scene(GetParam());
        scene.files.arm({.effect = FileFault::Effect::crash, .at = at});
        EXPECT_THROW(scene.run(), IoError);
        ASSERT_EQ(scene.files.calls().size(), at + 1);
        const std::string what =
            fmt::format("crash in call {}, {}; loss {}, seed {}", at, scene.files.calls().back().to_string(),
                        static_cast<int>(loss), seed);
        scene.files.lose_unsynced(loss, seed);
        scene.expect_sound(what);
        (contents(scene.path) == scene.before() ? old : committed) += 1;
        scene.run();
        scene.expect_new(what + ", and saved again");
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(old, 0);
  EXPECT_GT(committed, 0);
}

TEST_P(CheckpointFolderFaults, PowerFailureAfterAKilledRunLosesNothingCommitted) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  for (size_t at = 0; at < calls; ++at) {
    for (size_t later = 0; later < 8; ++later) {
      Scene scene(GetParam());
      scene.files.arm({.effect = FileFault::Effect::crash, .at = at});
      EXPECT_THROW(scene.run(), IoError);
      const std::string what = fmt::format("killed in call {}, {}; then power failed in call {}", at,
                                           scene.files.calls().back().to_string(), later);
      scene.files.lose_unsynced(Loss::nothing);
      scene.files.arm({.effect = FileFault::Effect::crash, .at = later});
      EXPECT_THROW(scene.run(), IoError);
      scene.files.lose_unsynced(Loss::all);
      scene.expect_sound(what);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CheckpointFolderFaults, ErrorAtEveryCallIsReportedAndHarmless) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  using Effect = FileFault::Effect;
  for (size_t at = 0; at < calls; ++at) {
    for (const int error : {ENOSPC, EIO, EROFS}) {
      for (const Effect effect : {Effect::error, Effect::short_write}) {
        for (const bool again : {false, true}) {
          Scene scene(GetParam());
          scene.files.arm({.effect = effect, .error = error, .at = at, .again = again});
          const std::string message = message_of<IoError>([&] { scene.run(); });
          const std::string what =
              fmt::format("error {}{} in call {}, {}", error, again ? " again and again" : "", at,
                          scene.files.calls().at(at).to_string());
          EXPECT_THAT(message, HasSubstr(std::system_category().message(error))) << what;
          scene.expect_sound(what);
          scene.files.lose_unsynced(Loss::all);
          scene.expect_sound(what + ", then a crash");
          scene.run();
          scene.expect_new(what + ", and saved again");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(CheckpointFolderFaults, FolderIsUsableAfterAFailedSave) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  for (size_t at = 0; at < calls; ++at) {
    Scene scene(GetParam());
    CheckpointFolder folder(scene.path, scene.files);
    scene.files.arm({.at = at});
    message_of<IoError>([&] { scene.save_and_prune(folder); });
    if (!scene.files.struck()) break;
    const std::string what = scene.files.calls().at(at).to_string();
    scene.expect_sound(what);
    scene.files.reset();
    scene.save_and_prune(folder);
    EXPECT_EQ(contents(scene.path), scene.after(true)) << what;
    EXPECT_EQ(latest(scene.path), checkpoint_name(GetParam())) << what;
  }
}

TEST_P(CheckpointFolderFaults, LateFailureSaysThatTheCheckpointIsThere) {
  const auto failing = [&](FileFault fault) {
    Scene scene(GetParam());
    CheckpointFolder folder(scene.path, scene.files);
    scene.files.arm(std::move(fault));
    const std::string message =
        message_of<LateFailure>([&] { save(folder, scene.files, GetParam(), "cccccccc"); });
    EXPECT_EQ(contents(scene.path), scene.after(false)) << message;
    EXPECT_THAT(message,
                AllOf(HasSubstr(checkpoint_name(GetParam())), HasSubstr("complete and in its place")));
    return message;
  };
  // After those of model, optim and the temporary folder.
  EXPECT_THAT(failing({.at = 3, .only = FileCall::sync_folder}), HasSubstr("may not survive"));
  EXPECT_THAT(failing({.only = FileCall::create_new, .path = "latest"}), HasSubstr("'latest' may still"));
  EXPECT_THAT(failing({.only = FileCall::rename, .path = "latest"}), HasSubstr("'latest' may still"));
  EXPECT_THAT(failing({.at = 4, .only = FileCall::sync_folder}), HasSubstr("'latest' may still"));
  if (GetParam() == 20) {
    EXPECT_THAT(failing({.only = FileCall::remove_all}), HasSubstr("could not be removed"));
  }
}

INSTANTIATE_TEST_SUITE_P(FreshAndTakenName, CheckpointFolderFaults, testing::Values(30, 20));

}  // namespace
