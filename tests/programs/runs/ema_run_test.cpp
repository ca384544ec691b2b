// Averages of weights in runs: evaluated, resumed, exported, and what a run without them does.

#include <cstdlib>
#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "programs/runs/outcome.h"
#include "programs/runs/same_checkpoint.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

Flags model_flags() {
  const auto data = scratch("text");
  write_file(data, golden_text());
  return {"--data",  data.string(), "--dim", "16", "--layers", "1",
          "--heads", "2",           "--seq", "16", "--batch",  "4"};
}

/// eval_loss and eval_loss_ema of the steps that have them, and all losses.
struct Losses {
  std::vector<double> loss, held_out, average;
  friend bool operator==(const Losses&, const Losses&) = default;
};

Losses losses_of(const Flags& flags) {
  const fs::path metrics = fresh("metrics");
  const Finished f = run_train_gpt(model_flags() + flags + Flags{"--metrics", metrics.string(), "--quiet"});
  EXPECT_EQ(f.exit_code, 0) << f.err;
  Losses all;
  for (const auto& step : read_steps(metrics)) {
    all.loss.push_back(step.at("loss"));
    if (step.contains("eval_loss")) all.held_out.push_back(step.at("eval_loss"));
    if (step.contains("eval_loss_ema")) all.average.push_back(step.at("eval_loss_ema"));
  }
  return all;
}

const Flags kRun = {"--steps", "6", "--eval-every", "2", "--optimizer", "muon", "--lr", "0.03"},
            kEma = {"--ema", "0.5"};

TEST(EmaRun, EvaluationsReportBothLossesAndTrainingIsUnchanged) {
  for (const Flags& arrangement : {Flags{}, Flags{"--ranks", "2", "--strategy", "zero1"},
                                   Flags{"--ranks", "2", "--strategy", "zero3"}}) {
    const Losses without = losses_of(kRun + arrangement), with = losses_of(kRun + arrangement + kEma);
    EXPECT_EQ(with.loss, without.loss);
    EXPECT_EQ(with.held_out, without.held_out);
    EXPECT_TRUE(without.average.empty());
    EXPECT_EQ(with.average.size(), 3u);
    EXPECT_NE(with.average, with.held_out);
  }
}

// A step has the collectives of one without averages, also after an evaluation, and the plan counts the memory of averages.
TEST(EmaRun, PlanAndMetricsCountTheAverages) {
  struct Counts {
    std::vector<nlohmann::json> comm;
    int64_t planned = 0, measured = 0;
  };
  const auto run = [](const Flags& flags) {
    const fs::path metrics = fresh("metrics");
    const Finished f =
        run_train_gpt(model_flags() + kRun + flags + Flags{"--ranks", "2", "--metrics", metrics.string()});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    Counts counts;
    for (const auto& step : read_steps(metrics)) {
      counts.comm.push_back(step.at("comm"));
      counts.planned = step.at("planned_peak_bytes");
      counts.measured = step.at("peak_bytes");
    }
    return counts;
  };
  for (const std::string strategy : {"zero1", "zero3"})
    for (const Flags& form : {Flags{}, Flags{"--ema-dtype", "bf16"}}) {
      const Flags arrangement = {"--strategy", strategy};
      const Counts without = run(arrangement), with = run(kEma + arrangement + form);
      EXPECT_EQ(with.comm, without.comm) << strategy;
      const auto planned = static_cast<double>(with.planned - without.planned);
      EXPECT_GT(planned, 12000) << "6000 elements of 2 bytes on a rank";
      // Small tensors of metrics come and go as far as the host is ahead: 2 KiB.
      EXPECT_NEAR(static_cast<double>(with.measured - without.measured), planned, 2048) << strategy;
    }
}

TEST(EmaRun, ResumesElsewhereWithTheSameAverages) {
  for (const Flags& form :
       {Flags{}, Flags{"--ema-dtype", "bf16", "--precision", "bf16", "--master", "split"}}) {
    const fs::path whole = fresh("whole"), stopped = fresh("stopped"), resumed = fresh("resumed");
    const Flags run = kRun + kEma + form, two = {"--ranks", "2"};
    const Losses want = losses_of(run + two + Flags{"--save", whole.string()});
    (void)losses_of(run + two + Flags{"--strategy", "zero1", "--stop-at", "3", "--save", stopped.string()});
    const Losses got = losses_of(two + Flags{"--steps", "6", "--resume", stopped.string(), "--strategy",
                                             "zero3", "--layout", "even_rows", "--save", resumed.string()});
    EXPECT_EQ(got.average.back(), want.average.back());
    EXPECT_TRUE(same_checkpoint(resumed, whole));
  }
}

TEST(EmaRun, UseEmaPutsTheAveragesIntoExportsAndEvaluations) {
  const fs::path folder = fresh("run"), in_run = fresh("in_run.safetensors"),
                 later = fresh("later.safetensors"), plain = fresh("plain.safetensors");
  const Losses all = losses_of(
      kRun + kEma + Flags{"--save", folder.string(), "--use-ema", "--export-weights", in_run.string()});
  const Flags resume = {"--resume", folder.string()}, use = {"--use-ema"};
  const auto loss_of = [&](const Flags& flags) {
    const fs::path metrics = fresh("eval");
    const Finished f = run_train_gpt(flags + Flags{"--eval-only", "--metrics", metrics.string(), "--quiet"});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return read_steps(metrics).back().at("eval_loss").get<double>();
  };
  EXPECT_EQ(loss_of(resume), all.held_out.back());
  EXPECT_EQ(loss_of(resume + use), all.average.back());
  EXPECT_EQ(loss_of(model_flags() + Flags{"--init-weights", in_run.string()}), all.average.back());
  const auto exported = [&](const Flags& flags, const fs::path& to) {
    const Finished f = run_train_gpt(resume + flags +
                                     Flags{"--steps", "6", "--ranks", "2", "--export-weights", to.string()});
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return read_file(to);
  };
  EXPECT_EQ(exported(use, later), read_file(in_run));
  EXPECT_NE(exported({}, plain), read_file(in_run));
  const auto tool = [&](const std::string& flags, const fs::path& to) {
    const std::string command = fmt::format("{} ckpt export '{}' '{}' --quiet {} >/dev/null", SHERD_TOOL,
                                            folder.string(), to.string(), flags);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  };
  const fs::path by_tool = fresh("tool.safetensors");
  tool("--ema", by_tool);
  EXPECT_EQ(loss_of(model_flags() + Flags{"--init-weights", by_tool.string()}), all.average.back());
  tool("", by_tool);
  EXPECT_EQ(loss_of(model_flags() + Flags{"--init-weights", by_tool.string()}), all.held_out.back());
}

TEST(EmaRun, ChangesOnResumeAreReportedOrRefused) {
  const fs::path with = fresh("with"), without = fresh("without");
  (void)losses_of(Flags{"--steps", "2", "--save", with.string()} + kEma);
  (void)losses_of({"--steps", "2", "--save", without.string()});
  const auto run = [](const Flags& flags, int code) {
    const Finished f = run_train_gpt(flags + Flags{"--steps", "3", "--quiet"});
    EXPECT_EQ(f.exit_code, code) << f.err;
    return f.err;
  };
  EXPECT_THAT(run(Flags{"--resume", without.string()} + kEma, 0),
              HasSubstr("has no averages of weights (--ema): they start from its weights"));
  EXPECT_THAT(run({"--resume", with.string(), "--ema", "0"}, 1),
              AllOf(HasSubstr("the run keeps none"), HasSubstr("(--ema)"), HasSubstr("--allow-new-state")));
  EXPECT_THAT(run({"--resume", with.string(), "--ema", "0", "--allow-new-state"}, 0), HasSubstr("left out"));
  EXPECT_THAT(run({"--resume", without.string(), "--eval-only", "--use-ema", "--ema", "0.5"}, 2),
              Not(HasSubstr("\n\n")));
  EXPECT_THAT(run({"--use-ema"}, 2), AllOf(HasSubstr("the run has no averages"), HasSubstr("--ema")));
  EXPECT_THAT(run({"--ema", "1"}, 2), HasSubstr("--ema"));
}

}  // namespace
}  // namespace sherd::test
