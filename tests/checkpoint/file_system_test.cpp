#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace sherd;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = FileSystem::Kind;

void put(FileSystem& files, const std::string& path, const std::string& bytes, bool sync = true) {
  const auto file = files.create_new(path);
  ASSERT_NE(file, nullptr);
  file->write(bytes.data(), static_cast<int64_t>(bytes.size()));
  if (sync) file->sync();
  file->close();
}

// ---- the machine's own

TEST(PosixFileSystem, WritesAndReads) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::posix();
  const auto file = files.create_new(folder / "a");
  file->write("", 0);
  file->write("abc", 3);
  file->write("de", 2);
  file->sync();
  file->close();
  EXPECT_EQ(file->path(), fs::path(folder / "a"));
  EXPECT_EQ(files.create_new(folder / "a"), nullptr);
  EXPECT_EQ(read_whole(files, folder / "a", 5), "abcde");
  EXPECT_THAT(message_of<IoError>([&] { (void)read_whole(files, folder / "a", 4); }),
              AllOf(HasSubstr(folder / "a"), HasSubstr("5"), HasSubstr("4")));
  const auto in = files.open(folder / "a");
  EXPECT_EQ(in->size(), 5);
  char bytes[3] = {};
  in->read_at(1, bytes, 3);
  EXPECT_EQ(std::string(bytes, 3), "bcd");
  EXPECT_THAT(message_of<IoError>([&] { in->read_at(3, bytes, 3); }), HasSubstr("ends at byte 5"));
}

TEST(PosixFileSystem, FoldersRenamesAndExchanges) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::posix();
  files.create_folder(folder / "f");
  files.create_folder(folder / "f");
  put(files, folder / "f/b", "B");
  put(files, folder / "a", "A");
  EXPECT_THAT(files.list(folder.path()), ElementsAre("a", "f"));
  files.exchange(folder / "a", folder / "f");
  EXPECT_EQ(files.kind(folder / "a"), Kind::folder);
  EXPECT_EQ(read_whole(files, folder / "f", 9), "A");
  put(files, folder / "g", "G");
  rename_durably(files, folder / "g", folder / "f");
  EXPECT_EQ(read_whole(files, folder / "f", 9), "G");
  EXPECT_EQ(files.kind(folder / "g"), Kind::none);
  EXPECT_EQ(files.kind(folder / "f/below"), Kind::none);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(files.kind(folder / "pipe"), Kind::other);

  EXPECT_THAT(message_of<IoError>([&] { files.create_folder(folder / "f"); }), HasSubstr("File exists"));
  EXPECT_THAT(message_of<IoError>([&] { files.create_folder(folder / "no/f"); }), HasSubstr("No such"));
  EXPECT_THAT(message_of<IoError>([&] { files.exchange(folder / "a", folder / "no"); }),
              AllOf(HasSubstr(folder / "a"), HasSubstr(folder / "no"), HasSubstr("No such")));
  EXPECT_THAT(message_of<IoError>([&] { files.rename(folder / "no", folder / "x"); }), HasSubstr("No such"));
  EXPECT_THAT(message_of<IoError>([&] { (void)files.list(folder / "no"); }), HasSubstr(folder / "no"));
  EXPECT_THAT(message_of<IoError>([&] { files.sync_folder(folder / "no"); }), HasSubstr(folder / "no"));
  EXPECT_THAT(message_of<IoError>([&] { (void)files.create_new(folder / "no/f"); }), HasSubstr("No such"));
  EXPECT_THAT(message_of<IoError>([&] { (void)files.open(folder / "pipe"); }),
              HasSubstr("not a regular file"));
}

TEST(PosixFileSystem, RemovesLinksAndNotWhatTheyName) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::posix();
  folder.write("kept/file", "x");
  folder.write("gone/below/file", "y");
  fs::create_directory_symlink(folder / "kept", folder / "gone/link");
  files.remove_all(folder / "gone");
  files.remove_all(folder / "gone");
  EXPECT_EQ(files.kind(folder / "gone"), Kind::none);
  EXPECT_EQ(files.kind(folder / "kept/file"), Kind::file);
}

TEST(PosixFileSystem, OneHoldsALock) {
  const TemporaryFolder folder;
  FileSystem& files = FileSystem::posix();
  auto held = files.lock(folder / "lock");
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(files.lock(folder / "lock"), nullptr);
  held.reset();
  EXPECT_NE(files.lock(folder / "lock"), nullptr);
  EXPECT_THAT(message_of<IoError>([&] { (void)files.lock(folder / "no/lock"); }),
              HasSubstr(folder / "no/lock"));
}

// ---- the one that fails on demand

/// A file replaced in the careful way.
void replace(FileSystem& files, const TemporaryFolder& folder, const std::string& bytes) {
  put(files, folder / "new", bytes);
  rename_durably(files, folder / "new", folder / "file");
}

TEST(FaultFileSystem, RecordsCallsAndStrikesEachOnce) {
  const TemporaryFolder folder;
  folder.write("file", "old");
  FaultFileSystem files;
  replace(files, folder, "new");
  std::vector<std::string> names;
  for (const SeenCall& call : files.calls()) names.push_back(name_of(call.call));
  EXPECT_THAT(names, ElementsAre("create_new", "write", "sync", "close", "rename", "sync_folder"));
  EXPECT_EQ(files.calls()[4].to_string(), "rename '" + (folder / "new") + "' '" + (folder / "file") + "'");
  for (size_t at = 0; at <= names.size(); ++at) {
    fs::remove(folder / "new");
    files.arm({.error = EROFS, .at = at});
    const std::string message = message_of<IoError>([&] { replace(files, folder, "newer"); });
    EXPECT_EQ(files.struck(), at < names.size());
    if (at < names.size()) {
      EXPECT_THAT(message, AllOf(HasSubstr(names[at]), HasSubstr("Read-only file system")));
      EXPECT_EQ(files.calls().size(), at + 1);
    }
  }
}

TEST(FaultFileSystem, StrikesByKindAndPathAndAgain) {
  const TemporaryFolder folder;
  FaultFileSystem files;
  files.arm({.effect = FileFault::Effect::short_write,
             .error = ENOSPC,
             .at = 1,
             .only = FileCall::write,
             .path = "full",
             .again = true});
  put(files, folder / "a", "aaaa");
  put(files, folder / "full1", "bbbb");
  for (const char* name : {"full2", "full3"}) {
    EXPECT_THAT(message_of<IoError>([&] { put(files, folder / name, "cccc"); }), HasSubstr("No space left"));
    EXPECT_EQ(read_bytes(folder / name), "cc");
  }
  put(files, folder / "d", "dddd");
  files.reset();
  put(files, folder / "full4", "eeee");
}

TEST(FaultFileSystem, ReadsCanLieAndFail) {
  const TemporaryFolder folder;
  FaultFileSystem files;
  put(files, folder / "a", "aaaa");
  put(files, folder / "b", "bbbb");
  files.flip_bit("a", 2, 1);
  files.fail_reads(folder / "b", EIO);
  EXPECT_EQ(read_whole(files, folder / "a", 9), "aaca");
  EXPECT_THAT(message_of<IoError>([&] { (void)read_whole(files, folder / "b", 9); }),
              HasSubstr("Input/output"));
  files.reset();
  EXPECT_EQ(read_whole(files, folder / "a", 9) + read_whole(files, folder / "b", 9), "aaaabbbb");
}

TEST(FaultFileSystem, CrashTakesWhatWasNotSynced) {
  const std::string half = "01234567";
  std::set<std::string> some, zeros;
  for (const Loss loss : kLosses) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const TemporaryFolder folder;
      FaultFileSystem files;
      const auto file = files.create_new(folder / "file");
      file->write(half.data(), 8);
      file->sync();
      files.sync_folder(folder.path());
      file->write(half.data(), 8);
      put(files, folder / "unnamed", "x");
      files.arm({.effect = FileFault::Effect::crash});
      EXPECT_THAT(message_of<IoError>([&] { file->write(half.data(), 8); }), HasSubstr("crashed"));
      EXPECT_THAT(message_of<IoError>([&] { file->sync(); }), HasSubstr("crashed"));
      EXPECT_THAT(message_of<IoError>([&] { files.kind(folder.path()); }), HasSubstr("crashed"));
      files.lose_unsynced(loss, seed);
      const std::string left = read_bytes(folder / "file");
      EXPECT_EQ(left.substr(0, 8), half);
      const bool named = fs::exists(folder / "unnamed");
      if (loss == Loss::nothing || loss == Loss::all) {
        EXPECT_EQ(left, loss == Loss::all ? half : half + half + "0123");
        EXPECT_EQ(named, loss == Loss::nothing);
      }
      if (loss == Loss::some) some.insert(left + (named ? "+" : "-"));
      if (loss == Loss::zeros) zeros.insert(left);
    }
  }
  EXPECT_GT(some.size(), 12u);  // of the 26 there are
  EXPECT_GT(zeros.size(), 6u);  // of 13
  for (const std::string& left : zeros) EXPECT_EQ(left.size(), 20u);
}

TEST(FaultFileSystem, CrashUndoesRenamesThatWereNotSynced) {
  for (const bool synced : {false, true}) {
    const TemporaryFolder folder;
    FaultFileSystem files;
    files.create_folder(folder / "one");
    put(files, folder / "one/a", "A");
    files.sync_folder(folder / "one");
    put(files, folder / "two", "2");
    put(files, folder / "file", "old");
    files.sync_folder(folder.path());

    put(files, folder / "one/b", "B");
    put(files, folder / "new", "new");
    files.rename(folder / "new", folder / "file");
    files.exchange(folder / "one", folder / "two");
    files.rename(folder / "two", folder / "three");
    put(files, folder / "three/c", "C");
    if (synced) files.sync_folder(folder.path());
    files.lose_unsynced(Loss::all);
    EXPECT_EQ(read_bytes(folder / "file"), synced ? "new" : "old");
    EXPECT_EQ(read_bytes(folder / (synced ? "one" : "two")), "2");
    EXPECT_THAT(files.list(folder / (synced ? "three" : "one")), ElementsAre("a"));
    EXPECT_THAT(files.list(folder.path()).size(), 3u);
  }
}

TEST(FaultFileSystem, CrashLeavesPartOfARemoval) {
  const TemporaryFolder folder;
  for (const char* name : {"f/a", "f/b", "f/c/d", "f/c/e"}) folder.write(name, "x");
  FaultFileSystem files;
  files.arm({.effect = FileFault::Effect::crash});
  EXPECT_THROW(files.remove_all(folder / "f"), IoError);
  files.lose_unsynced(Loss::all);
  EXPECT_THAT(files.list(folder / "f"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(files.list(folder / "f/c"), IsEmpty());
}

}  // namespace
