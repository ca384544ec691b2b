// What a run writes, looked at before it begins; and saves that fail.
#include "outputs.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/kernels/device/error.h>

#include "metrics.h"
#include "misfit.h"
#include "saving.h"
#include "support/fault_file_system.h"
#include "temporary_folder.h"
#include "trainer.h"

namespace train_gpt {
namespace {

using sherd::IoError;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TrainConfig small() {
  TrainConfig c;
  c.dim = 8;
  c.layers = 1;
  c.heads = 2;
  c.seq = 8;
  c.batch = 2;
  c.ranks = 2;
  c.steps = 4;
  return c;
}

std::shared_ptr<const Windows> text() {
  const auto data = std::make_shared<const ByteData>("text", std::vector<uint8_t>(1000, 'x'));
  return std::make_shared<const Windows>(data, small().seq);
}

TEST(Outputs, EverythingThatCannotBeWrittenIsNamedAtOnce) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder.write("file", "") + "/below";
  c.metrics = folder.path();
  c.loss_svg = "/nowhere/loss.svg";
  c.trace = "/nowhere/trace.json";
  c.timeline = "/dev/null";
  c.export_weights = "/nowhere/w.safetensors";
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c); }),
              AllOf(HasSubstr("--save " + c.save + ": " + (folder / "file") + " is there and no folder"),
                    HasSubstr("--metrics " + c.metrics), HasSubstr("--loss-svg /nowhere/loss.svg"),
                    HasSubstr("--trace /nowhere/trace.json"), HasSubstr("--timeline /dev/null"),
                    HasSubstr("--export-weights /nowhere/w.safetensors")));
  c = small();
  c.save = folder / "new/run";
  c.metrics = "/dev/null";
  c.loss_svg = folder / "loss.svg";
  c.export_weights = folder / "weights/";
  check_outputs(c);
  EXPECT_FALSE(std::filesystem::exists(folder / "new")) << "looking writes nothing";
}

TEST(Outputs, ThoseOfRankZeroAreLookedAtInItsProcessAlone) {
  TrainConfig c = small();
  c.device = "cuda";
  c.comm = "nccl";
  c.metrics = "/nowhere/m.jsonl";
  const auto process = [](const char* rank) -> sherd::EnvironmentLookup {
    return [rank](const char* name) -> const char* {
      const std::string_view wanted = name;
      return wanted == "RANK" ? rank : wanted == "WORLD_SIZE" ? "2" : wanted == "LOCAL_RANK" ? "0" : nullptr;
    };
  };
  check_outputs(c, process("1"));
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c, process("0")); }), HasSubstr("--metrics /nowhere"));
  c.save = "/dev/null/run";
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c, process("1")); }), HasSubstr("--save"))
      << "there every rank writes";
  EXPECT_TRUE(rank_0_is_here(c, process("no number"))) << "joining the job says what is wrong";
  c.comm = "local";
  EXPECT_TRUE(rank_0_is_here(c, process("1"))) << "it runs all ranks";
}

TEST(Outputs, AFolderThatMayNotBeWrittenToIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "closed");
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_read);
  TrainConfig c = small();
  c.save = folder / "closed";
  c.loss_svg = folder.write("kept", "");
  std::filesystem::permissions(c.loss_svg, std::filesystem::perms::owner_read);
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c); }),
              AllOf(HasSubstr("closed is not a folder that can be written to"), HasSubstr("--loss-svg")));
}

/// Trains all steps of the run and saves as it says; returns rank 0's warnings, and every rank's last
/// failure.
struct Saved {
  std::vector<std::string> lines, warnings;
  std::set<std::string> last_failures;
};
Saved train(const TrainConfig& config, sherd::FileSystem& files = sherd::FileSystem::posix()) {
  Saved saved;
  std::mutex mutex;
  sherd::launch(static_cast<int>(config.ranks), {.device = {.threads = 1}}, [&](sherd::RankContext& rank) {
    Trainer trainer(rank, config, text());
    Saving saving(trainer, config, &files);
    while (trainer.step() < config.last_step()) {
      const int64_t step = trainer.train_step().step;
      saving.told(step);
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
  for (auto& c : sherd::list_checkpoints(folder, sherd::FileSystem::posix())) names.push_back(c.name);
  return names;
}

TEST(Saving, AFailedSaveIsAWarningAndTheNextOneIsTried) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    TrainConfig c = small();
    c.save = folder / "run";
    c.save_every = 1;
    c.async_save = async;
    FaultFileSystem files;
    // One write of one of the steps' files fails: with --async-save it is not known which steps are due.
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000001"});
    const Saved saved = train(c, files);
    ASSERT_TRUE(files.struck());
    EXPECT_THAT(saved.warnings, ElementsAre(AllOf(HasSubstr("step 1: no checkpoint was saved"),
                                                  HasSubstr("No space left on device"))));
    EXPECT_THAT(saved.last_failures, ElementsAre(""));
    EXPECT_EQ(checkpoints(c.save).front(), "step_00000004");
    if (!async) {
      EXPECT_THAT(checkpoints(c.save), ElementsAre("step_00000004", "step_00000003", "step_00000002"));
    }
  }
}

TEST(Saving, AMissingLastCheckpointIsKnownOnEveryRank) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    TrainConfig c = small();
    c.save = folder / "run";
    c.save_every = 2;
    c.async_save = async;
    FaultFileSystem files;
    files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000004", .again = true});
    const Saved saved = train(c, files);
    EXPECT_THAT(saved.last_failures, ElementsAre(HasSubstr("No space left on device")));
    EXPECT_THAT(saved.warnings, ElementsAre(HasSubstr("it was the last one")));
    EXPECT_THAT(checkpoints(c.save), ElementsAre("step_00000002"));
  }
}

TEST(Saving, WhatFailsAfterTheCommitIsAWarningAboutThatAlone) {
  for (const FileFault& fault : {FileFault{.error = ENOSPC, .only = FileCall::create_new, .path = "latest"},
                                 FileFault{.only = FileCall::remove_all, .path = "step_00000002"}}) {
    const TemporaryFolder folder;
    TrainConfig c = small();
    c.save = folder / "run";
    c.save_every = 2;
    c.keep = 1;
    c.save_failure = "stop";
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
    EXPECT_EQ(checkpoints(c.save).front(), "step_00000004");
  }
}

TEST(Saving, StopsAtTheFirstFailureWhereThatIsAskedFor) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder / "run";
  c.save_every = 1;
  c.save_failure = "stop";
  FaultFileSystem files;
  files.arm({.error = ENOSPC, .only = FileCall::write, .path = "step_00000001"});
  EXPECT_THAT(message_of<IoError>([&] { train(c, files); }), HasSubstr("No space left on device"));
}

TEST(SaveFolder, OfAnotherRunIsRefusedNamingWhatDiffers) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder / "run";
  train(c);
  ASSERT_THAT(checkpoints(c.save), ElementsAre("step_00000004"));

  // The very same command: --resume was forgotten.
  EXPECT_THAT(message_of<IoError>([&] { check_save_folder(c); }),
              AllOf(HasSubstr("holds another run"), HasSubstr("after 4 steps"),
                    HasSubstr("--resume " + c.save), HasSubstr("--overwrite"), Not(HasSubstr("saved with"))));
  EXPECT_THAT(message_of<IoError>([&] { train(c); }), HasSubstr("holds another run"))
      << "also under the lock";
  TrainConfig other = c;
  other.seed = 7;
  other.dim = 16;
  other.save_every = 2;
  EXPECT_THAT(message_of<IoError>([&] { check_save_folder(other); }),
              AllOf(HasSubstr("it was saved with --dim 8 (here 16), --seed 0 (here 7)"),
                    Not(HasSubstr("--save-every"))));

  for (const std::string& from :
       {c.save, c.save + "/", c.save + "/step_00000004", c.save + "/step_00000004/manifest.binpb"}) {
    other.resume = from;
    check_save_folder(other);
  }
  other.resume_parts = "model";
  EXPECT_THAT(message_of<IoError>([&] { check_save_folder(other); }), HasSubstr("holds another run"));
  other.overwrite = true;
  check_save_folder(other);
  other.steps = 2;
  other.resume = "";
  train(other);
  EXPECT_THAT(checkpoints(c.save), ElementsAre("step_00000002"));
}

TEST(SaveFolder, OverwritingSparesWhatTheRunGoesOnFrom) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder / "run";
  c.stop_at = 2;
  train(c);
  c.stop_at = 0;
  c.resume = c.save;
  c.overwrite = true;
  train(c);
  EXPECT_THAT(checkpoints(c.save), ElementsAre("step_00000004", "step_00000002"));
  c.resume_parts = "model";
  c.steps = 3;
  train(c);
  EXPECT_THAT(checkpoints(c.save), ElementsAre("step_00000003")) << "a new run from these weights";
}

TEST(SaveFolder, TheRefusalSaysWhatToDoAlsoOfADamagedCheckpointAndOfWeightsAlone) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder / "run";
  train(c);
  c.resume = c.save;
  c.resume_parts = "model";
  EXPECT_THAT(message_of<IoError>([&] { check_save_folder(c); }),
              AllOf(HasSubstr("--resume-parts model takes weights alone and begins a new run"),
                    HasSubstr("--overwrite"), Not(HasSubstr("give --resume"))));
  c.resume = "";
  const std::string manifest = "run/step_00000004/manifest.binpb";
  std::string bytes = read_bytes(folder / manifest);
  bytes[bytes.size() / 2] ^= 1;
  folder.write(manifest, bytes);
  EXPECT_THAT(message_of<IoError>([&] { check_save_folder(c); }),
              AllOf(HasSubstr("step_00000004"), HasSubstr("cannot be read"), HasSubstr("--resume " + c.save),
                    HasSubstr("--overwrite")));
}

TEST(Metrics, LinesThatCannotBeWrittenWaitForRoom) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.metrics = folder / "m.jsonl";
  MetricsWriter writer(c.metrics, c);
  StepResult step;
  step.step = 1;
  writer.write(step);
  EXPECT_EQ(writer.failure(), "");
  const std::string before = read_bytes(c.metrics);
  // No file may grow by more than a part of a line.
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{before.size() + 20, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  for (step.step = 2; step.step <= 3; ++step.step) writer.write(step);
  const std::string failure = writer.failure(), during = read_bytes(c.metrics);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(failure,
              AllOf(HasSubstr(c.metrics), HasSubstr("File too large"), HasSubstr("2 lines are missing")));
  EXPECT_EQ(during, before) << "no parts of lines";

  step.step = 4;
  writer.write(step);
  EXPECT_EQ(writer.failure(), "");
  std::string expected = before;
  for (step.step = 2; step.step <= 4; ++step.step) expected += format_metrics(step) + "\n";
  EXPECT_EQ(read_bytes(c.metrics), expected);
}

TEST(Metrics, AFileBelongsToOneRun) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.metrics = folder.write("m.jsonl", "of an earlier run\n");
  {
    const MetricsWriter first(c.metrics, c);
    EXPECT_THAT(read_bytes(c.metrics), Not(HasSubstr("earlier")));
    const std::string before = read_bytes(c.metrics);
    EXPECT_THAT(message_of<IoError>([&] { MetricsWriter second(c.metrics, c); }),
                AllOf(HasSubstr("another run"), HasSubstr(c.metrics)));
    EXPECT_EQ(read_bytes(c.metrics), before) << "it is the other run's: not emptied";
  }
  const MetricsWriter next(c.metrics, c);
}

TEST(Misfit, AllDifferencesAreNamedAlsoThoseThatShapesShow) {
  sherd::TrainingState saved;
  saved.info["config"] = config_text(small());
  TrainConfig c = small();
  EXPECT_EQ(misfit(saved, c), "");
  c.dim = 16;
  EXPECT_EQ(misfit(saved, c), "it was saved with --dim 8 (here 16)");
  c.heads = 4;
  EXPECT_THAT(message_of<sherd::InvalidArgument>([&] { misfit(saved, c); }),
              HasSubstr("--dim 8 (here 16), --heads 2 (here 4)"));
}

}  // namespace
}  // namespace train_gpt
