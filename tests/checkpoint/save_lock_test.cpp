// Lock of a save folder: its holders, and the end of a holder that has lost it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/files/save_lock.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace sherd;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// A process of a run that `sherd run` supervises; `start` 0: of an unsupervised run.
LockHolder holder(int64_t process, const std::string& run = "", uint64_t start = 0,
                  const std::string& host = "here") {
  LockHolder h;
  h.host = host;
  h.process = process;
  h.command = "train_gpt --save out";
  h.run = run;
  h.start = start;
  return h;
}

LockHolder lock_of(const TemporaryFolder& folder) { return decode_lock(read_bytes(folder / "lock")); }

/// A checkpoint without tensors.
fs::path save(CheckpointFolder& folder, FileSystem& files, int64_t step) {
  const fs::path temporary = folder.temporary(step);
  Manifest manifest;
  manifest.training.step = step;
  files.create_folder(temporary);
  try {
    return folder.commit(temporary, step, manifest);
  } catch (const Error&) {
    folder.discard(temporary);
    throw;
  }
}

std::vector<std::string> checkpoints(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  std::vector<UnusableCheckpoint> unusable;
  for (const auto& c : list_checkpoints(folder.path(), FileSystem::posix(), &unusable))
    names.push_back(c.name);
  EXPECT_THAT(unusable, IsEmpty());
  return names;
}

/// Lets something happen in the moment before a name changes, as to a process that is stopped there.
class Interrupted : public FaultFileSystem {
 public:
  /// Before this name is given to something, or taken from it.
  void before(const std::string& name, std::function<void()> what) {
    changed_ = name;
    what_ = std::move(what);
  }
  /// Before a temporary file is made that is to get this name.
  void before_making(const std::string& name, std::function<void()> what) {
    made_ = name + ".tmp-";
    what_ = std::move(what);
  }
  std::unique_ptr<WritableFile> create_new(const fs::path& path) override {
    interrupt(!made_.empty() && path.filename().string().starts_with(made_));
    return FaultFileSystem::create_new(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    interrupt(from.filename() == changed_ || to.filename() == changed_);
    FaultFileSystem::rename(from, to);
  }
  void exchange(const fs::path& a, const fs::path& b) override {
    interrupt(b.filename() == changed_);
    FaultFileSystem::exchange(a, b);
  }

 private:
  void interrupt(bool here) {
    if (what_ && here) std::exchange(what_, nullptr)();
  }
  std::string changed_, made_;
  std::function<void()> what_;
};

/// Mounted by several hosts: what others lock may not be seen here.
class Shared : public Interrupted {
 public:
  bool sees_all_locks(const fs::path&) override { return false; }
};

TEST(SaveLock, TextComesBackAndTornTextHarmsNothing) {
  LockHolder h = holder(4711, "0123456789abcdef", 3);
  h.attempt = 18446744073709551615u;
  h.token = "fedcba9876543210";
  h.since = "2026-11-23T08:15:00Z";
  h.released = true;
  const std::string text = encode_lock(h);
  EXPECT_EQ(encode_lock(decode_lock(text)), text);
  for (size_t length = 0; length < text.size(); ++length) (void)decode_lock(text.substr(0, length));
  for (const char* wrong :
       {"", "attempt", "attempt x\n", "attempt -1\n", "attempt 99999999999999999999\n", "\n\n \n"})
    EXPECT_EQ(decode_lock(wrong).attempt, 0u) << wrong;
  EXPECT_THAT(h.describe(),
              AllOf(HasSubstr("attempt 18446744073709551615"), HasSubstr("process 4711 on here"),
                    HasSubstr("since 2026-11-23T08:15:00Z"), HasSubstr("'train_gpt --save out'")));
}

TEST(SaveLock, EachHolderIsOneAttemptFurtherAndTheSecondReceivesTheFirst) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
    const CheckpointFolder first(path.path(), files, holder(10 + static_cast<int64_t>(attempt)));
    EXPECT_EQ(first.attempt(), attempt);
    EXPECT_EQ(lock_of(path).attempt, attempt);
    EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path.path(), files, holder(99)); }),
                AllOf(HasSubstr("another run saves there"), HasSubstr(path / "lock"),
                      HasSubstr(fmt::format("process {} on here, since 20", 10 + attempt)),
                      HasSubstr("'train_gpt --save out'"), HasSubstr("another folder")));
    EXPECT_EQ(lock_of(path).attempt, attempt) << "who is refused changes nothing";
  }
  path.write("lock", "");  // as older versions leave it
  EXPECT_EQ(CheckpointFolder(path.path(), files).attempt(), 1u);
  EXPECT_EQ(lock_of(path).process, ::getpid());
  EXPECT_THAT(lock_of(path).command, HasSubstr("test"));
}

TEST(SaveLock, OfAnEndedProcessIsTakenSilentlyOfASuspendedOneNot) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ready[0]);
    try {
      const CheckpointFolder held(path.path(), files);
      if (::write(ready[1], "x", 1) == 1) ::pause();
    } catch (const std::exception&) {  // the child must not continue with the parent's tests
    }
    ::_exit(1);
  }
  ::close(ready[1]);  // so that a child that fails ends the wait for its byte
  char byte = 0;
  const ssize_t got = ::read(ready[0], &byte, 1);
  ::close(ready[0]);
  ASSERT_EQ(got, 1) << "the child could not take the folder";
  ::kill(child, SIGSTOP);
  EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path.path(), files); }),
              HasSubstr(fmt::format("process {} on", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(CheckpointFolder(path.path(), files).attempt(), 2u);
}

TEST(SaveLock, OnlyALaterStartOfTheSameRunTakesItFromARunningHolder) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder second(path.path(), files, holder(2, "run-a", 2));
  for (const LockHolder& other :
       {holder(3), holder(3, "run-b", 3), holder(3, "run-a", 2), holder(3, "run-a", 1)})
    EXPECT_THROW(CheckpointFolder(path.path(), files, other), IoError) << encode_lock(other);
  save(second, files, 1);
  CheckpointFolder third(path.path(), files, holder(3, "run-a", 3));
  EXPECT_EQ(third.attempt(), second.attempt() + 1);
  EXPECT_THROW(CheckpointFolder(path.path(), files, holder(4)), IoError)
      << "the new one is locked like any other";
}

TEST(SaveLock, AnOldAttemptCommitsNothingMovesNoLatestAndRemovesNothing) {
  const TemporaryFolder path;
  FileSystem& files = FileSystem::posix();
  CheckpointFolder old(path.path(), files, holder(2, "run", 1));
  save(old, files, 10);
  save(old, files, 20);
  const fs::path unfinished = old.temporary(30);
  files.create_folder(unfinished);
  CheckpointFolder now(path.path(), files, holder(3, "run", 2));
  EXPECT_EQ(files.kind(unfinished), FileSystem::Kind::none) << "what it had begun is swept";
  for (const int64_t step : {30, 20})
    EXPECT_THAT(message_of<LostFolder>([&] { save(old, files, step); }),
                AllOf(HasSubstr("attempt 1 (process 2 on here"), HasSubstr("attempt 2 (process 3 on here"),
                      HasSubstr(checkpoint_name(step) + "' is not committed")));
  EXPECT_THAT(message_of<LostFolder>([&] { old.prune(1); }), HasSubstr("step_00000010' is not removed"));
  EXPECT_EQ(checkpoints(path), (std::vector<std::string>{"step_00000020", "step_00000010"}));
  EXPECT_EQ(read_bytes(path / "latest"), "step_00000020\n");
  save(now, files, 30);
  EXPECT_EQ(read_bytes(path / "latest"), "step_00000030\n");
  // A lock that was removed by hand has no holder.
  files.remove_all(path / "lock");
  EXPECT_THAT(message_of<LostFolder>([&] { save(now, files, 40); }), HasSubstr("removed or emptied"));
}

TEST(SaveLock, AHolderStoppedRightBeforeARenameFindsNothingToRename) {
  for (const int64_t step : {30, 20}) {  // a fresh name; a taken one, which is exchanged
    for (const std::string& at : {checkpoint_name(step), std::string("latest")}) {
      const TemporaryFolder path;
      Interrupted files;
      CheckpointFolder old(path.path(), files, holder(2, "run", 1));
      save(old, files, 10);
      save(old, files, 20);
      std::optional<CheckpointFolder> now;
      const auto take_over = [&] {
        now.emplace(path.path(), FileSystem::posix(), holder(3, "run", 2));
        save(*now, FileSystem::posix(), 25);
      };
      files.before(at, take_over);
      EXPECT_THROW(save(old, files, step), Error);
      ASSERT_TRUE(now);
      EXPECT_EQ(read_bytes(path / "latest"), "step_00000025\n") << step << at;
      // Checkpoints committed before the folder changed hands stay; no further one appears.
      const std::vector<std::string> expected =
          at == "latest" && step == 30
              ? std::vector<std::string>{"step_00000025", "step_00000030", "step_00000020", "step_00000010"}
          : at == "latest" ? std::vector<std::string>{"step_00000025", "step_00000020", "step_00000010"}
                           : std::vector<std::string>{"step_00000025", "step_00000020", "step_00000010"};
      EXPECT_EQ(checkpoints(path), expected) << step << at;
    }
  }
}

TEST(SaveLock, AHolderStoppedWhileItTakesTheFolderDoesNotGetIt) {
  const TemporaryFolder path;
  Interrupted files;
  std::optional<CheckpointFolder> now;
  files.before("lock", [&] { now.emplace(path.path(), FileSystem::posix(), holder(3, "run", 2)); });
  // It holds the lock of the file that was there, which the next start of its run does not wait for.
  path.write("lock", encode_lock(holder(1, "run", 0)));
  EXPECT_THROW(CheckpointFolder(path.path(), files, holder(2, "run", 1)), Error);
  ASSERT_TRUE(now);
  EXPECT_NO_THROW(save(*now, FileSystem::posix(), 1));
}

// Then its new file is made after the sweep, and the rename finds it.
TEST(SaveLock, AHolderStoppedBeforeItMakesItsLockDoesNotGetItEither) {
  const TemporaryFolder path;
  Interrupted files;
  std::optional<CheckpointFolder> now;
  fs::path unfinished;
  files.before_making("lock", [&] {
    now.emplace(path.path(), FileSystem::posix(), holder(3, "run", 2));
    unfinished = now->temporary(5);
    FileSystem::posix().create_folder(unfinished);
  });
  path.write("lock", encode_lock(holder(1, "run", 0)));
  EXPECT_THAT(
      message_of<LostFolder>([&] { CheckpointFolder(path.path(), files, holder(2, "run", 1)); }),
      AllOf(HasSubstr("process 2 on here"), HasSubstr("process 3 on here"), HasSubstr("another folder")));
  ASSERT_TRUE(now);
  EXPECT_EQ(files.kind(unfinished), FileSystem::Kind::folder)
      << "what the later start has begun is not swept";
  EXPECT_NO_THROW(save(*now, FileSystem::posix(), 1));
  files.remove_all(unfinished);
  EXPECT_EQ(FileSystem::posix().list(path.path()),
            (std::vector<std::string>{"latest", "lock", "step_00000001"}))
      << "the file that was to become the lock is removed";
}

TEST(SaveLock, AHolderStoppedWhileItGivesTheFolderBackLeavesItToWhoHasTakenIt) {
  const TemporaryFolder path;
  Shared files;
  std::optional<CheckpointFolder> now;
  {
    const CheckpointFolder old(path.path(), files, holder(2, "run", 1, "node1"));
    files.before_making("lock", [&] { now.emplace(path.path(), files, holder(3, "run", 2, "node2")); });
  }
  ASSERT_TRUE(now);
  EXPECT_EQ(lock_of(path).process, 3);
  EXPECT_FALSE(lock_of(path).released);
  EXPECT_NO_THROW(save(*now, files, 1));
}

// Between the check of the lock and the rename it holds a name, not a checkpoint.
TEST(SaveLock, AHolderStoppedRightBeforeARemovalRemovesNoCheckpointOfTheNextOne) {
  for (const bool committed_anew : {false, true}) {
    const TemporaryFolder path;
    Interrupted files;
    FileSystem& posix = FileSystem::posix();
    {
      CheckpointFolder foreign(path.path(), posix, holder(1));
      save(foreign, posix, 20);
    }
    CheckpointFolder old(path.path(), files, holder(2, "run", 1));
    save(old, files, 10);
    std::optional<CheckpointFolder> now;
    files.before("step_00000020", [&] {
      now.emplace(path.path(), posix, holder(3, "run", 2));
      if (committed_anew) save(*now, posix, 20);
    });
    const auto removes = [&] { old.remove([](const CommittedCheckpoint& c) { return c.sequence <= 1; }); };
    if (committed_anew) {
      EXPECT_THAT(message_of<LostFolder>(removes),
                  AllOf(HasSubstr("step_00000020' is not removed"), HasSubstr("process 3 on here")));
      EXPECT_EQ(checkpoints(path), (std::vector<std::string>{"step_00000020", "step_00000010"}));
      EXPECT_EQ(list_checkpoints(path.path(), posix).front().sequence, 3u);
    } else {
      EXPECT_NO_THROW(removes()) << "decided and checked before";
      EXPECT_EQ(checkpoints(path), std::vector<std::string>{"step_00000010"});
    }
    ASSERT_TRUE(now);
    EXPECT_NO_THROW(save(*now, posix, 30));
    for (const std::string& name : posix.list(path.path())) EXPECT_FALSE(is_temporary_name(name)) << name;
  }
}

TEST(SaveLock, OnAFileSystemOfSeveralHostsAnotherHostsHolderIsBelieved) {
  const TemporaryFolder path;
  Shared files;
  { const CheckpointFolder ended(path.path(), files, holder(2, "", 0, "node1")); }
  EXPECT_TRUE(lock_of(path).released);
  EXPECT_EQ(CheckpointFolder(path.path(), files, holder(3, "", 0, "node2")).attempt(), 2u);

  LockHolder gone = holder(4, "run", 1, "node1");  // it ended without a word, or its lock is not seen here
  gone.attempt = 7;
  gone.token = "0123456789abcdef";
  path.write("lock", encode_lock(gone));
  EXPECT_THAT(message_of<IoError>([&] { CheckpointFolder(path.path(), files, holder(5, "", 0, "node2")); }),
              AllOf(HasSubstr("attempt 7 (process 4 on node1"), HasSubstr("locks of another host"),
                    HasSubstr("remove '" + (path / "lock"))));
  EXPECT_EQ(lock_of(path).process, 4);
  EXPECT_EQ(CheckpointFolder(path.path(), files, holder(5, "run", 2, "node2")).attempt(), 8u)
      << "of the same run";
  path.write("lock", encode_lock(gone));
  EXPECT_EQ(CheckpointFolder(path.path(), files, holder(5, "", 0, "node1")).attempt(), 8u)
      << "on the same host";
  path.write("lock", encode_lock(gone));
  EXPECT_EQ(CheckpointFolder(path.path(), FileSystem::posix(), holder(5, "", 0, "node2")).attempt(), 8u)
      << "a host's own disk, on which a container with another name has gone on";
}

/// Returns the holder of this process with these variables in its environment, on another host.
LockHolder in_job(const std::string& host,
                  const std::vector<std::pair<const char*, const char*>>& variables) {
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  LockHolder h = LockHolder::of_this_process();
  for (const auto& [name, value] : variables) ::unsetenv(name);
  h.host = host;
  return h;
}

TEST(SaveLock, AJobThatIsRequeuedOnAnotherHostTakesItFromItsEarlierStart) {
  const auto slurm = [](const char* host, const char* id, const char* restarts) {
    return restarts == nullptr ? in_job(host, {{"SLURM_JOB_ID", id}})
                               : in_job(host, {{"SLURM_JOB_ID", id}, {"SLURM_RESTART_COUNT", restarts}});
  };
  const TemporaryFolder path;
  Shared files;
  CheckpointFolder killed(path.path(), files, slurm("node1", "77", nullptr));
  for (const LockHolder& other :
       {slurm("node2", "77", nullptr), slurm("node2", "78", "1"), holder(5, "", 0, "node2"),
        in_job("node2", {{"SLURM_JOB_ID", "77"}, {"SLURM_CLUSTER_NAME", "b"}, {"SLURM_RESTART_COUNT", "1"}})})
    EXPECT_THROW(CheckpointFolder(path.path(), files, other), IoError) << encode_lock(other);
  CheckpointFolder requeued(path.path(), files, slurm("node2", "77", "1"));
  EXPECT_EQ(requeued.attempt(), killed.attempt() + 1);
  // Its host was only cut off: it commits nothing, and does not get the folder back.
  EXPECT_THROW(save(killed, files, 1), LostFolder);
  EXPECT_THROW(CheckpointFolder(path.path(), files, slurm("node1", "77", nullptr)), IoError);
  EXPECT_NO_THROW(save(requeued, files, 2));
  EXPECT_EQ(checkpoints(path), std::vector<std::string>{"step_00000002"});
  const CheckpointFolder third(path.path(), files, slurm("node3", "77", "2"));
  EXPECT_EQ(third.attempt(), requeued.attempt() + 1);
  EXPECT_EQ(decode_lock(encode_lock(lock_of(path))).job, "slurm:77");
}

TEST(SaveLock, OfAJobThatCountsNoStartsTheFlockIsBelievedOnEveryHost) {
  const TemporaryFolder path;
  Shared files;
  for (const char* name : {"SHERD_JOB", "SHERD_RUN"}) {
    LockHolder gone = in_job("pod-a", {{name, "train"}, {"JOB_COMPLETION_INDEX", "0"}});
    gone.token = "0123456789abcdef";
    path.write("lock", encode_lock(gone));
    EXPECT_THROW(CheckpointFolder(path.path(), files, in_job("pod-b", {{name, "other"}})), IoError) << name;
    const CheckpointFolder now(path.path(), files,
                               in_job("pod-b", {{name, "train"}, {"JOB_COMPLETION_INDEX", "0"}}));
    EXPECT_THROW(CheckpointFolder(path.path(), files,
                                  in_job("pod-c", {{name, "train"}, {"JOB_COMPLETION_INDEX", "0"}})),
                 IoError)
        << "a live holder keeps it";
  }
}

TEST(SaveLock, ALockFileWithoutAMarkOfAJobIsReadAsBefore) {
  const std::string old =
      "attempt 3\ntoken 0123456789abcdef\nhost node1\nprocess 7\nsince 2026-11-23T08:15:00Z\ncommand x\n";
  EXPECT_EQ(encode_lock(decode_lock(old)), old);
  const TemporaryFolder path;
  Shared files;
  path.write("lock", old);
  EXPECT_THROW(CheckpointFolder(path.path(), files,
                                in_job("node2", {{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}})),
               IoError);
}

}  // namespace
