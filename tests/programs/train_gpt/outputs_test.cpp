// Output paths of train_gpt, checked before a run begins; and its messages about checkpoints that do not fit.
#include <cstdlib>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train_gpt/run/sample_text.h"
#include "train_gpt/settings/misfit.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using sherd::IoError;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(Outputs, EverythingThatCannotBeWrittenIsNamedAtOnce) {
  const TemporaryFolder folder;
  TrainConfig c = small();
  c.save = folder.write("file", "") + "/below";
  c.metrics = folder.path();
  c.log_dir = folder / "file/events";
  c.loss_svg = "/proc/nowhere/loss.svg";
  c.trace = "/proc/nowhere/trace.json";
  c.timeline = "/dev/null";
  c.export_weights = "/proc/nowhere/w.safetensors";
  c.export_hf = folder / "file";
  EXPECT_THAT(
      message_of<IoError>([&] { check_outputs(c); }),
      AllOf(HasSubstr("--save " + c.save + ": " + (folder / "file") + " exists and is not a folder"),
            HasSubstr("--metrics " + c.metrics), HasSubstr("--log-dir " + c.log_dir),
            HasSubstr("--loss-svg /proc/nowhere/loss.svg"), HasSubstr("--trace /proc/nowhere/trace.json"),
            HasSubstr("--timeline /dev/null"), HasSubstr("--export-weights /proc/nowhere/w.safetensors"),
            HasSubstr("--export-hf " + c.export_hf + ": it exists and is not a folder")));
  c = small();
  c.save = folder / "new/run";
  c.metrics = "/dev/null";
  c.loss_svg = folder / "loss.svg";
  c.export_weights = folder / "weights/";
  c.export_hf = folder / "model";
  check_outputs(c);
  EXPECT_FALSE(std::filesystem::exists(folder / "new")) << "looking writes nothing";
}

TEST(Outputs, AnExportThatIsThereIsRefusedBeforeTrainingUnlessThisRunMayHaveWrittenIt) {
  const TemporaryFolder folder;
  folder.write("model/config.json", "{}");
  folder.write("run/lock", "");
  TrainConfig c = small();
  c.export_hf = folder / "model";
  c.save = folder / "run";
  const auto refusal = [&] { return message_of<IoError>([&] { check_outputs(c); }); };
  EXPECT_THAT(refusal(), HasSubstr("this folder is not empty"));
  c.resume = c.save;
  EXPECT_THAT(refusal(), HasSubstr("this folder is not empty")) << "steps are left";
  ::setenv("SHERD_RUN", "mark", 1);
  ::setenv("SHERD_RUN_START", "2", 1);
  EXPECT_EQ(refusal(), "nothing was thrown");
  ::unsetenv("SHERD_RUN");
  ::unsetenv("SHERD_RUN_START");
  c.resume.clear();
  c.steps = 0;
  EXPECT_EQ(refusal(), "nothing was thrown") << "nothing is trained: it is compared at once";
}

TEST(Outputs, ThoseOfRankZeroAreLookedAtInItsProcessAlone) {
  TrainConfig c = small();
  c.device = sherd::DeviceKind::cuda;
  c.comm = sherd::BackendKind::nccl;
  c.metrics = "/proc/nowhere/m.jsonl";
  const auto process = [](const char* rank) -> sherd::EnvironmentLookup {
    return [rank](const char* name) -> const char* {
      const std::string_view wanted = name;
      return wanted == "RANK" ? rank : wanted == "WORLD_SIZE" ? "2" : wanted == "LOCAL_RANK" ? "0" : nullptr;
    };
  };
  check_outputs(c, process("1"));
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c, process("0")); }),
              HasSubstr("--metrics /proc/nowhere"));
  c.save = "/dev/null/run";
  EXPECT_THAT(message_of<IoError>([&] { check_outputs(c, process("1")); }), HasSubstr("--save"))
      << "there every rank writes";
  EXPECT_TRUE(rank_0_is_here(c, process("no number"))) << "joining the job says what is wrong";
  c.comm = sherd::BackendKind::local;
  EXPECT_TRUE(rank_0_is_here(c, process("1"))) << "it runs all ranks";
}

TEST(Misfit, AllDifferencesAreNamedAlsoThoseThatShapesShow) {
  sherd::TrainingState saved;
  saved.info["config"] = config_text(small());
  TrainConfig c = small();
  EXPECT_EQ(misfit(saved, c), "");
  c.dim = 16;
  EXPECT_EQ(
      misfit(saved, c),
      "it was saved with --dim 8 (here 16); leave these flags out, so that --resume takes them from the "
      "checkpoint, or name a checkpoint of this model");
  c.resume = "out/run";
  c.heads = 4;
  EXPECT_THAT(
      message_of<sherd::InvalidArgument>([&] { misfit(saved, c); }),
      AllOf(HasSubstr("--resume out/run: the checkpoint is of another model: it was saved with --dim 8 "
                      "(here 16), --heads 2 (here 4)"),
            HasSubstr("leave these flags out")));
  c = small();
  c.model = "llama";
  EXPECT_THAT(misfit(saved, c), HasSubstr("--model '' (here 'llama')"));
}

TEST(Misfit, OfARunItsDataRanksModelAndTrainingCount) {
  sherd::TrainingState saved;
  saved.info["config"] = config_text(small());
  TrainConfig c = small();
  c.seed = 7;
  c.dim = 16;
  c.save_every = 2;
  EXPECT_EQ(run_differences(saved, c), "--dim 8 (here 16), --seed 0 (here 7)");
  EXPECT_EQ(save_folder(c).differences(saved), "--dim 8 (here 16), --seed 0 (here 7)");
}

TEST(Summary, SampleCannotDriveTheTerminal) {
  EXPECT_EQ(sample_heading() + shown_bytes("int x;\n\tnext \x1b[2J\xc3\xa4\r"),
            "generated text\n  | int x;\n  | \tnext \\x1b[2J\\xc3\\xa4\\x0d");
  // U+009B begins a command as ESC [ does; U+00A0 and what follows are characters like others.
  EXPECT_EQ(shown_text("\xc3\xa4\n\x1b[2J\xc2\x80\xc2\x9b\x32J\xc2\x9f\xc2\xa0\xe2\x82\xac"),
            "\xc3\xa4\n  | \\x1b[2J\\xc2\\x80\\xc2\\x9b2J\\xc2\\x9f\xc2\xa0\xe2\x82\xac");
}

}  // namespace
}  // namespace train_gpt
