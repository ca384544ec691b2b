// A run whose gradients are not finite: told, counted, limited.

#include <cstring>
#include <limits>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

Flags small_quiet(const Flags& extra) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  return Flags{"--data",  data.string(), "--ranks", "4",  "--dim",   "16", "--layers", "1",
               "--heads", "2",           "--seq",   "16", "--batch", "8",  "--quiet"} +
         extra;
}

/// Initial weights of this model, all of them `value`.
std::string poisoned_weights(float value = std::numeric_limits<float>::quiet_NaN()) {
  const std::string path = scratch("nan.safetensors").string();
  EXPECT_EQ(run_train_gpt(small_quiet({"--steps", "0", "--export-weights", path})).exit_code, 0);
  std::string bytes = read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (size_t at = 8 + header; at + sizeof value <= bytes.size(); at += sizeof value)
    std::memcpy(bytes.data() + at, &value, sizeof value);
  write_file(path, bytes);
  return path;
}

TEST(SkipRun, StepsThatAreNotFiniteAreCountedAndEndTheRunAtTheLimit) {
  const auto metrics = scratch("skip_metrics");
  const std::string weights = poisoned_weights();
  for (const char* optimizer : {"adamw", "muon"}) {
    std::filesystem::remove(metrics);
    const Finished f =
        run_train_gpt(small_quiet({"--steps", "9", "--init-weights", weights, "--optimizer", optimizer,
                                   "--max-skipped-steps", "3", "--metrics", metrics.string()}));
    EXPECT_EQ(f.exit_code, 1);
    EXPECT_THAT(f.err, HasSubstr("step 1 was skipped on all ranks: the gradient norm is not finite"));
    EXPECT_THAT(f.err, HasSubstr("3 consecutive, 3 of this run"));
    EXPECT_THAT(f.err, HasSubstr("3 consecutive steps, up to step 3, were not finite"));
    EXPECT_THAT(f.err, HasSubstr("--max-skipped-steps"));
    EXPECT_THAT(f.err, HasSubstr("still those after step 0"));
    EXPECT_THAT(f.err, Not(HasSubstr("step 4 was skipped")));
    const auto steps = read_steps(metrics);
    ASSERT_EQ(steps.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(steps[i]["skipped"], true);
      EXPECT_EQ(steps[i]["skipped_steps"], i + 1);
    }
  }
}

TEST(SkipRun, AtTheLimitTheRunSavesAndWhatIsBeingSavedIsKept) {
  const auto folder = scratch("skip_saved"), metrics = scratch("skip_metrics");
  // Weights that are finite and can be saved, with gradients that are not.
  const std::string weights = poisoned_weights(1e30f);
  for (const bool async : {false, true}) {
    std::filesystem::remove_all(folder);
    const Finished f =
        run_train_gpt(small_quiet({"--steps", "9", "--init-weights", weights, "--max-skipped-steps", "3",
                                   "--save", folder.string(), "--save-every", "2", "--metrics",
                                   metrics.string(), "--timeline", scratch("skip.svg").string()}) +
                      (async ? Flags{"--async-save"} : Flags{}));
    EXPECT_EQ(f.exit_code, 1);
    EXPECT_THAT(f.err, HasSubstr("3 consecutive steps, up to step 3, were not finite"));
    EXPECT_THAT(f.err, Not(HasSubstr("missing")));
    EXPECT_TRUE(std::filesystem::exists(folder / "step_00000002/manifest.binpb")) << async;
    EXPECT_TRUE(std::filesystem::exists(folder / "step_00000003/manifest.binpb")) << async;
    EXPECT_EQ(read_steps(metrics).size(), 3u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 4) << "and latest, lock";
  }
  // The very first step may be the last: nothing was traced, and nothing is missing.
  const Finished first =
      run_train_gpt(small_quiet({"--steps", "9", "--init-weights", weights, "--max-skipped-steps", "1",
                                 "--timeline", scratch("skip.svg").string()}));
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_THAT(first.err, HasSubstr("1 consecutive step, up to step 1"));
}

TEST(SkipRun, WithoutLimitOrSwitchedOffTheRunContinues) {
  const auto metrics = scratch("skip_metrics");
  const std::string weights = poisoned_weights();
  for (const bool off : {false, true}) {
    std::filesystem::remove(metrics);
    const Finished f = run_train_gpt(
        small_quiet({"--steps", "12", "--init-weights", weights, "--metrics", metrics.string()}) +
        (off ? Flags{"--skip-non-finite", "false"} : Flags{"--max-skipped-steps", "0"}));
    const auto steps = read_steps(metrics);
    ASSERT_EQ(steps.size(), 12u) << f.err;
    EXPECT_EQ(steps[11]["skipped_steps"], off ? 0 : 12);
    EXPECT_EQ(steps[11]["skipped"], !off);
  }
}

}  // namespace
}  // namespace sherd::test
