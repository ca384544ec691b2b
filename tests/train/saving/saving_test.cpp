// Checkpoints of a run: saves that fail, and folders that hold another run's.
#include <sherd/train/saving/saving.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/train/saving/save_retry.h>
#include <sherd/train/settings/config_differences.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "support/rig.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

SavingOptions small() { return {.last_step = 4}; }

/// Settings of a run as its checkpoints record them.
constexpr const char* kConfig = R"({"dim": 8, "seed": 0})";

/// Trains all steps of the run and saves as it says; returns rank 0's warnings, and every rank's last
/// failure.
struct Saved {
  std::vector<std::string> lines, warnings;
  std::set<std::string> last_failures;
};
Saved train(SavingOptions options, FileSystem& files = FileSystem::posix(), int64_t poisoned_after = 0,
            const SaveRetryOptions& retry_options = {}, const std::map<int64_t, double>& evaluations = {}) {
  Saved saved;
  std::mutex mutex;
  options.files = &files;
  test::launch(2, {.device = {.threads = 1}}, [&](RankContext& rank) {
    test::Rig rig(rank, {});
    std::optional<Resumed> resumed;
    int64_t step = 0;
    if (!options.folder.resume.empty()) {
      const bool all = options.folder.parts == ResumeParts::all;
      resumed = resume(options.folder.resume, rig.model, all ? &*rig.optimizer : nullptr, {.optimizer = all});
      if (all) step = resumed->report.training.step;
    }
    const auto state = [&step] { return TrainingState{.step = step, .info = {{"config", kConfig}}}; };
    SaveRetry retry(rank.world, retry_options);
    SavingOptions of_rank = options;
    of_rank.retry = [&](const std::string& failure, bool useless) { return retry.again(failure, useless); };
    Saving saving({rank.world, rig.model, &*rig.optimizer, resumed ? &*resumed : nullptr, state}, of_rank);
    while (step < options.last_step) {
      rig.step();
      ++step;
      // One element, on one rank alone.
      if (step == poisoned_after && rank.world->rank() == 1) {
        const Tensor shard = rig.model.named_parameters().at(2).second.shard();
        ops::fill(rank.device->compute(), shard.flat(0, 1), std::numeric_limits<double>::quiet_NaN());
      }
      saving.told(step);
      if (const auto loss = evaluations.find(step); loss != evaluations.end())
        saving.evaluated(step, loss->second);
      saving.after_step(step);
    }
    const std::lock_guard lock(mutex);
    saved.last_failures.insert(saving.last_failure());
    if (rank.world->rank() != 0) return;
    saved.lines = saving.take_lines();
    saved.warnings = saving.take_warnings();
  });
  return saved;
}

std::vector<std::string> checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  for (auto& c : list_checkpoints(folder, FileSystem::posix())) names.push_back(c.name);
  return names;
}

TEST(Saving, AFailedSaveIsAWarningAndTheNextOneIsTried) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.every = 1;
    c.async = async;
    FaultFileSystem files;
    // One write of one of the steps' files fails: with --async-save it is not known which steps are due.
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000001"});
    const Saved saved = train(c, files);
    ASSERT_TRUE(files.struck());
    EXPECT_THAT(saved.warnings, ElementsAre(AllOf(HasSubstr("step 1: no checkpoint was saved"),
                                                  HasSubstr("No space left on device"))));
    EXPECT_THAT(saved.last_failures, ElementsAre(""));
    EXPECT_EQ(checkpoints(c.folder.save).front(), "step_00000004");
    if (!async) {
      EXPECT_THAT(checkpoints(c.folder.save), ElementsAre("step_00000004", "step_00000003", "step_00000002"));
    }
  }
}

// Numbers of the checkpoints that are there, and of the one that `best` names.
struct Kept {
  std::vector<int64_t> steps;
  int64_t best;
};
Kept kept(const std::string& folder) {
  Kept k{{}, -1};
  for (const std::string& name : checkpoints(folder)) k.steps.push_back(step_of_checkpoint_name(name));
  std::string best = read_bytes(folder + "/best");
  if (best.ends_with('\n')) best.pop_back();
  k.best = step_of_checkpoint_name(best);
  return k;
}

TEST(Saving, TheBestCheckpointIsKeptBesideTheNewest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.keep = 1;
    c.async = async;
    c.best_of = "d";
    c.last_step = 7;
    // The first, a lower, an equal, a higher one, NaN; the last step is saved whatever its loss.
    const Saved saved =
        train(c, FileSystem::posix(), 0, {}, {{1, 3}, {2, 2}, {3, 2}, {4, 2.5}, {5, nan}, {7, 4}});
    EXPECT_THAT(saved.warnings, IsEmpty());
    EXPECT_EQ(saved.lines.size(), 3u) << "of steps 1, 2 and 7";
    EXPECT_THAT(kept(c.folder.save).steps, ElementsAre(7, 2));
    EXPECT_EQ(kept(c.folder.save).best, 2);
    // A resumed run has it: an equal loss is not better, a lower one is.
    c.folder.resume = c.folder.save;
    c.last_step = 9;
    train(c, FileSystem::posix(), 0, {}, {{8, 2}});
    EXPECT_EQ(kept(c.folder.save).best, 2);
    c.last_step = 12;
    train(c, FileSystem::posix(), 0, {}, {{10, 1}});
    EXPECT_THAT(kept(c.folder.save).steps, ElementsAre(12, 10));
    EXPECT_EQ(kept(c.folder.save).best, 10);
    // Losses on other data are not compared with these.
    c.best_of = "others";
    c.last_step = 14;
    train(c, FileSystem::posix(), 0, {}, {{13, 5}});
    EXPECT_THAT(kept(c.folder.save).steps, ElementsAre(14, 13));
    EXPECT_EQ(kept(c.folder.save).best, 13);
  }
}

TEST(Saving, AfterAFailedSaveTheNextLowerLossIsTheBest) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.async = async;
    c.best_of = "d";
    FaultFileSystem files;
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000002"});
    // Step 2 has the lowest loss and is not saved; 3 is lower than what is there.
    const Saved saved = train(c, files, 0, {}, {{1, 3}, {2, 1}, {3, 2}});
    ASSERT_TRUE(files.struck());
    EXPECT_THAT(saved.warnings, ElementsAre(AllOf(HasSubstr("step 2: no checkpoint was saved"),
                                                  HasSubstr("No space left on device"))));
    EXPECT_THAT(kept(c.folder.save).steps, ElementsAre(4, 3, 1));
    EXPECT_EQ(kept(c.folder.save).best, 3);
  }
}

TEST(Saving, WhereBestCannotBeWrittenNothingIsRemoved) {
  const TemporaryFolder folder;
  SavingOptions c = small();
  c.folder.save = folder / "run";
  c.keep = 1;
  c.best_of = "d";
  FaultFileSystem files;
  files.arm({.error = ENOSPC, .only = FileCall::create_new, .path = "best", .again = true});
  const Saved saved = train(c, files, 0, {}, {{1, 3}, {2, 2}});
  EXPECT_THAT(saved.warnings,
              Each(AllOf(HasSubstr("'best' may name an earlier one, and no checkpoint was removed"),
                         HasSubstr("No space left on device"))));
  EXPECT_THAT(checkpoints(c.folder.save), ElementsAre("step_00000004", "step_00000002", "step_00000001"));
}

TEST(Saving, AMissingLastCheckpointIsKnownOnEveryRank) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.every = 2;
    c.async = async;
    FaultFileSystem files;
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000004", .again = true});
    const Saved saved = train(c, files);
    EXPECT_THAT(saved.last_failures, ElementsAre(HasSubstr("No space left on device")));
    EXPECT_THAT(saved.warnings, ElementsAre(HasSubstr("it was the last one")));
    EXPECT_THAT(checkpoints(c.folder.save), ElementsAre("step_00000002"));
  }
}

TEST(Saving, TheLastSaveIsTriedAgainAsLongAsThereIsTime) {
  for (const double seconds : {60.0, 0.7}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    FaultFileSystem files;
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000004", .again = true});
    std::vector<std::string> said;
    const bool frees = seconds > 1;
    const SaveRetryOptions retry{.seconds = seconds, .say = [&](const std::string& line) {
                                   said.push_back(line);
                                   if (frees && said.size() == 2) files.reset();
                                 }};
    const Saved saved = train(c, files, 0, retry);
    EXPECT_EQ(said.size(), 2u) << "after 0 s and 0.5 s; then at 0.7 s the last one";
    EXPECT_THAT(said,
                Each(AllOf(HasSubstr("No space left on device"), HasSubstr("the next one follows in"))));
    ASSERT_EQ(saved.last_failures.size(), 1u) << "the same on every rank";
    EXPECT_EQ(saved.last_failures.begin()->empty(), frees);
    EXPECT_EQ(checkpoints(c.folder.save).size(), frees ? 1u : 0u);
  }
}

TEST(Saving, ASaveThatCannotSucceedIsNotTriedAgain) {
  const TemporaryFolder folder;
  SavingOptions c = small();
  c.folder.save = folder / "run";
  std::vector<std::string> said;
  const Saved saved = train(c, FileSystem::posix(), 4,
                            {.seconds = 60, .say = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_THAT(said, IsEmpty());
  EXPECT_THAT(saved.last_failures, ElementsAre(HasSubstr("weights are non-finite")));
}

TEST(Saving, WhatFailsAfterTheCommitIsAWarningAboutThatAlone) {
  for (const FileFault& fault : {FileFault{.error = ENOSPC, .only = FileCall::create_new, .path = "latest"},
                                 FileFault{.only = FileCall::remove_all, .path = "step_00000002"}}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.every = 2;
    c.keep = 1;
    c.on_failure = SaveFailure::stop;
    FaultFileSystem files;
    FileFault again = fault;
    again.again = true;
    files.arm(again);
    const Saved saved = train(c, files);
    ASSERT_TRUE(files.struck());
    EXPECT_EQ(saved.lines.size(), 2u);
    EXPECT_THAT(saved.warnings, Not(IsEmpty()));
    EXPECT_THAT(saved.warnings, Each(AllOf(HasSubstr("cannot "), Not(HasSubstr("no checkpoint was saved")))));
    EXPECT_THAT(saved.last_failures, ElementsAre(""));
    EXPECT_EQ(checkpoints(c.folder.save).front(), "step_00000004");
  }
}

TEST(Saving, WeightsThatAreNotFiniteAreNeverTheNewestCheckpoint) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    SavingOptions c = small();
    c.folder.save = folder / "run";
    c.every = 1;
    c.keep = 1;
    c.async = async;
    const Saved saved = train(c, FileSystem::posix(), 3);
    ASSERT_FALSE(saved.warnings.empty());
    EXPECT_THAT(saved.warnings.back(),
                AllOf(HasSubstr("no checkpoint was saved"), HasSubstr("weights are non-finite"),
                      HasSubstr("head.weight (1 value, the first at element")));
    EXPECT_THAT(saved.last_failures, ElementsAre(HasSubstr("weights are non-finite")));
    // With async, which of the finite ones was saved last depends on how long each took.
    const auto there = checkpoints(c.folder.save);
    ASSERT_EQ(there.size(), 1u);
    EXPECT_LE(there[0], "step_00000002");
    if (!async) {
      EXPECT_EQ(there[0], "step_00000002");
    }
  }
}

TEST(Saving, StopsAtTheFirstFailureWhereThatIsAskedFor) {
  const TemporaryFolder folder;
  SavingOptions c = small();
  c.folder.save = folder / "run";
  c.every = 1;
  c.on_failure = SaveFailure::stop;
  FaultFileSystem files;
  files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000001"});
  EXPECT_THAT(message_of<IoError>([&] { train(c, files); }), HasSubstr("No space left on device"));
}

/// A run with these settings, as save folders see it.
SaveFolder of_run(const std::string& save, const std::string& config = kConfig) {
  return {.save = save, .differences = [config](const TrainingState& saved) {
            constexpr std::string_view kNames[] = {"dim", "seed"};
            return shortened(config_differences(saved, config, kNames), 6);
          }};
}

std::string refusal(const SaveFolder& folder) {
  return message_of<IoError>([&] { check_save_folder(folder); });
}

TEST(SaveFolder, OfAnotherRunIsRefusedNamingWhatDiffers) {
  const TemporaryFolder folder;
  const std::string save = folder / "run";
  SavingOptions c = small();
  c.folder = of_run(save);
  train(c);
  ASSERT_THAT(checkpoints(save), ElementsAre("step_00000004"));

  // The very same command: --resume is missing.
  EXPECT_THAT(refusal(c.folder),
              AllOf(HasSubstr("holds another run"), HasSubstr("after 4 steps"), HasSubstr("--resume " + save),
                    HasSubstr("--overwrite"), Not(HasSubstr("saved with"))));
  EXPECT_THAT(message_of<IoError>([&] { train(c); }), HasSubstr("holds another run"))
      << "also under the lock";
  SaveFolder other = of_run(save, R"({"dim": 16, "seed": 7})");
  EXPECT_THAT(refusal(other), HasSubstr("it was saved with --dim 8 (here 16), --seed 0 (here 7)"));

  for (const std::string& from :
       {save, save + "/", save + "/step_00000004", save + "/step_00000004/manifest.binpb"}) {
    other.resume = from;
    check_save_folder(other);
  }
  other.parts = ResumeParts::model;
  EXPECT_THAT(refusal(other), HasSubstr("holds another run"));
  other.overwrite = true;
  check_save_folder(other);
  other.resume = "";
  train({.folder = other, .last_step = 2});
  EXPECT_THAT(checkpoints(save), ElementsAre("step_00000002"));
}

TEST(SaveFolder, OverwritingSparesTheResumedCheckpoint) {
  const TemporaryFolder folder;
  const std::string save = folder / "run";
  SavingOptions c{.folder = of_run(save), .last_step = 2};
  train(c);
  c.last_step = 4;
  c.folder.resume = save;
  c.folder.overwrite = true;
  train(c);
  EXPECT_THAT(checkpoints(save), ElementsAre("step_00000004", "step_00000002"));
  c.folder.parts = ResumeParts::model;
  c.last_step = 3;
  train(c);
  EXPECT_THAT(checkpoints(save), ElementsAre("step_00000003")) << "a new run from these weights";
}

TEST(SaveFolder, TheRefusalSaysWhatToDoAlsoOfADamagedCheckpointAndOfWeightsAlone) {
  const TemporaryFolder folder;
  const std::string save = folder / "run";
  SavingOptions c = small();
  c.folder = of_run(save);
  train(c);
  c.folder.resume = save;
  c.folder.parts = ResumeParts::model;
  EXPECT_THAT(refusal(c.folder),
              AllOf(HasSubstr("--resume-parts model takes weights alone and begins a new run"),
                    HasSubstr("--overwrite"), Not(HasSubstr("give --resume"))));
  c.folder.resume = "";
  const std::string manifest = "run/step_00000004/manifest.binpb";
  std::string bytes = read_bytes(folder / manifest);
  bytes[bytes.size() / 2] ^= 1;
  folder.write(manifest, bytes);
  EXPECT_THAT(refusal(c.folder), AllOf(HasSubstr("step_00000004"), HasSubstr("cannot be read"),
                                       HasSubstr("--resume " + save), HasSubstr("--overwrite")));
}

TEST(SaveFolder, WhatCannotBeReadOrIsOfANewerFormatIsNotReplaced) {
  const TemporaryFolder folder;
  const std::string save = folder / "run", manifest = save + "/step_00000004/manifest.binpb";
  SavingOptions c = small();
  c.folder = of_run(save);
  train(c);
  std::string bytes = read_bytes(manifest);
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("manifest.binpb", manifest);  // a link to itself: an error of the system
  EXPECT_THAT(refusal(c.folder),
              AllOf(HasSubstr("holds another run: 1 checkpoint"), HasSubstr("step_00000004"),
                    HasSubstr("cannot be read"), HasSubstr("Too many levels of symbolic links")));

  std::filesystem::remove(manifest);
  bytes[8] = 2;  // format version
  const uint64_t sum = checksum(bytes.data(), 40);
  bytes.replace(40, sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
  folder.write("run/step_00000004/manifest.binpb", bytes);
  for (const bool resumes : {false, true}) {
    SaveFolder asked = c.folder;
    asked.overwrite = true;
    if (resumes) asked.resume = save;
    EXPECT_THAT(message_of<NewerFormat>([&] { check_save_folder(asked); }),
                AllOf(HasSubstr(manifest), HasSubstr("format version 2")));
  }
  EXPECT_EQ(read_bytes(manifest), bytes);
}

TEST(SaveFolder, LongListsOfDifferencesAreCut) {
  TrainingState saved;
  saved.info["config"] = R"({"a_b": 1, "c": "x", "same": true, "d": 0.5})";
  constexpr std::string_view kNames[] = {"d", "c", "a_b", "same", "new"};
  const auto list =
      config_differences(saved, R"({"a_b": 2, "c": "y", "same": true, "d": 0.25, "new": 1})", kNames);
  EXPECT_THAT(list, ElementsAre("--d 0.5 (here 0.25)", "--c 'x' (here 'y')", "--a-b 1 (here 2)"));
  EXPECT_EQ(shortened(list, 2), "--d 0.5 (here 0.25), --c 'x' (here 'y') and 1 more");
  EXPECT_EQ(shortened({}, 2), "");
  saved.info["config"] = "no JSON";
  EXPECT_THAT(config_differences(saved, "{}", kNames), IsEmpty()) << "nothing is known";
}

}  // namespace
}  // namespace sherd
