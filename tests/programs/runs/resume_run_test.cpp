// Runs of the program that stop and resume.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <fmt/format.h>

#include <sherd/checkpoint/format/manifest.h>

#include "programs/runs/outcome.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

// d = 36 is divisible by neither 4 ranks' slices nor 64; heads of 12.
Flags model() {
  return {"--dim",   "36", "--layers", "2", "--heads",       "4",     "--seq", "24",
          "--batch", "24", "--seed",   "5", "--lr-schedule", "cosine"};
}

Finished run_small(const Flags& extra) {
  const fs::path data = scratch("text");
  write_file(data, golden_text());
  return run_train_gpt(model() + Flags{"--data", data.string()} + extra);
}

// The steps after `step` only.
Outcome tail(Outcome run, size_t step) {
  for (auto* values : {&run.losses, &run.norms})
    values->erase(values->begin(), values->begin() + static_cast<std::ptrdiff_t>(step));
  run.zeros.erase(run.zeros.begin(), run.zeros.begin() + static_cast<std::ptrdiff_t>(step));
  return run;
}

int diff(const fs::path& a, const fs::path& b) {
  const std::string command = std::string(SHERD_TOOL) + " ckpt diff " + a.string() + " " + b.string() + " >" +
                              scratch("diff").string();
  return std::system(command.c_str());
}

class ResumeRun : public ::testing::TestWithParam<Flags> {};

// The name is shown as by `sherd ckpt`: in one line, without control characters.
TEST(ResumeRunNames, AFolderWithALineBreakInItsNameIsResumedAndShownInOneLine) {
  const fs::path folder = fresh("line\nbreak\x1b[2J");
  const std::string shown = R"(line\u000abreak\u001b[2J)";
  const Finished saved = run_small({"--steps", "2", "--save", folder.string(), "--save-every", "1"});
  EXPECT_THAT(saved.out, HasSubstr("saved " + scratch(shown).string() + "/step_00000002"));
  const Finished resumed =
      run_small({"--steps", "3", "--resume", folder.string(), "--save", folder.string()});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.out;
  EXPECT_THAT(resumed.out, HasSubstr("resumed from " + scratch(shown).string() + "/step_00000002: 2 steps"));
  const Finished missing = run_small({"--steps", "3", "--resume", (folder / "step_00000009").string()});
  EXPECT_THAT(missing.err, HasSubstr(scratch(shown).string() + "/step_00000009"));
  const std::string table = scratch("inspected").string();
  ASSERT_EQ(std::system(fmt::format("{} ckpt inspect '{}' >{}", SHERD_TOOL, folder.string(), table).c_str()),
            0);
  EXPECT_THAT(read_file(table), HasSubstr(scratch(shown).string() + "/step_00000003"));
}

// Thirteen bytes for which a backtracking matcher takes time exponential in the length of a parameter's name.
TEST(ResumeRunPatterns, RecordedOnesAreMatchedInLinearTime) {
  const fs::path folder = fresh("stranger");
  ASSERT_EQ(run_small({"--steps", "1", "--save", folder.string()}).exit_code, 0);
  const fs::path file = folder / "step_00000001" / "manifest.binpb";
  Manifest manifest = decode_manifest(read_file(file));
  std::string& config = manifest.training.info["config"];
  const std::string none = R"("freeze":"")", hostile = R"((((\\w*)*)*)*Z)";
  ASSERT_NE(config.find(none), config.npos) << config;
  config.replace(config.find(none), none.size(), R"("freeze":")" + hostile + '"');
  write_file(file, encode_manifest(manifest));

  const Finished resumed = run_small({"--steps", "2", "--resume", folder.string()});
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_THAT(resumed.err, HasSubstr(R"(--freeze '(((\w*)*)*)*Z': matches no parameter)"));
  for (const char* const command :
       {"plan --hardware cpu --ranks 1 --resume", "ckpt inspect", "ckpt verify"}) {
    const fs::path out = scratch("of_stranger");
    const std::string line =
        fmt::format("{} {} {} >{} 2>&1", SHERD_TOOL, command, folder.string(), out.string());
    const int status = std::system(line.c_str());
    if (std::string(command).starts_with("plan"))
      EXPECT_THAT(read_file(out), HasSubstr("matches no parameter"));
    else
      EXPECT_EQ(status, 0) << read_file(out);
  }
}

TEST_P(ResumeRun, ContinuesAsIfItHadNotStopped) {
  for (const Flags& optimizer : {Flags{"--optimizer", "adamw"}, Flags{"--optimizer", "muon"},
                                 Flags{"--optimizer", "muon", "--muon-fraction", "0.25"}}) {
    for (const Flags& mode : {Flags{}, Flags{"--async-save"}}) {
      const Flags flags = model() + optimizer + GetParam() + Flags{"--steps", "20"};
      const fs::path folder = fresh("saved");
      const Outcome whole =
          train_quietly(flags + mode + Flags{"--save", folder.string(), "--save-every", "10"});
      const Outcome rest = train_quietly(flags + Flags{"--resume", (folder / "step_00000010").string()});
      EXPECT_EQ(whole.losses.size(), 20u);
      EXPECT_EQ(rest.losses.size(), 10u);
      EXPECT_TRUE(rest == tail(whole, 10)) << show(flags + mode);
      EXPECT_TRUE(tail(train_quietly(flags), 10) == rest) << "saving changes nothing";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Arrangements, ResumeRun,
    ::testing::Values(Flags{"--ranks", "4", "--strategy", "no_shard"},
                      Flags{"--ranks", "4", "--strategy", "optim"},
                      Flags{"--ranks", "4", "--strategy", "optim_grads"},
                      Flags{"--ranks", "4", "--strategy", "optim_grads_params", "--grad-accum", "2"},
                      Flags{"--ranks", "4", "--replicas", "2", "--outer", "optim", "--precision", "bf16"},
                      Flags{"--ranks", "4", "--tp", "2"},
                      Flags{"--ranks", "4", "--experts", "4", "--expert-parallel", "2"}));

// A state that loads bit for bit continues within the rounding of another number of ranks.
TEST(ResumeElsewhere, AnyArrangementLoadsTheSameBitsAndContinues) {
  const Flags muon = {"--optimizer", "muon"};
  const fs::path folder = fresh("saved"), saved = folder / "step_00000010";
  const Outcome whole =
      train_quietly(model() + muon +
                    Flags{"--ranks", "4", "--steps", "20", "--save", folder.string(), "--save-every", "10"});
  for (const Flags& other :
       {Flags{"--ranks", "1"}, Flags{"--ranks", "2", "--layout", "even_rows"},
        Flags{"--ranks", "3", "--strategy", "zero1"}, Flags{"--ranks", "6", "--replicas", "2"},
        Flags{"--ranks", "8", "--layout", "whole_param", "--strategy", "zero2"},
        Flags{"--ranks", "3", "--layout", "whole_param", "--strategy", "zero1", "--bucket-size", "1"},
        Flags{"--ranks", "4", "--tp", "2"}, Flags{"--ranks", "8", "--tp", "4", "--replicas", "2"},
        Flags{"--ranks", "2", "--precision", "bf16"}}) {
    const fs::path again = fresh("again");
    const Flags resumed = model() + muon + other + Flags{"--resume", saved.string()};
    const Finished f = run_small(
        muon + other + Flags{"--resume", saved.string(), "--steps", "10", "--save", again.string()});
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out,
                AllOf(HasSubstr("nothing is left to train"), HasSubstr("resumed from " + saved.string())));
    EXPECT_EQ(diff(saved, again / "step_00000010"), 0) << show(other) << read_file(scratch("diff"));
    const Outcome rest = train_quietly(resumed + Flags{"--steps", "20"});
    const bool rounds = show(other).find("bf16") != std::string::npos;
    expect_close_losses(rest, tail(whole, 10), rounds ? 2e-2 : 1e-4, show(other));
  }
  // Same ranks, same family: the same bits.
  for (const Flags& same :
       {Flags{"--layout", "even_rows"}, Flags{"--strategy", "zero2", "--layout", "whole_param"},
        Flags{"--strategy", "zero2", "--layout", "whole_param", "--bucket-size", "1"},
        Flags{"--strategy", "zero0"}, Flags{"--replicas", "2"}}) {
    const Outcome rest = train_quietly(model() + muon + same +
                                       Flags{"--ranks", "4", "--steps", "20", "--resume", saved.string()});
    EXPECT_TRUE(rest == tail(whole, 10)) << show(same);
  }
}

TEST(ResumeElsewhere, ExpertsMoveBetweenRanks) {
  const Flags experts = {"--optimizer", "muon", "--experts", "4"};
  const fs::path folder = fresh("saved"), saved = folder / "step_00000004";
  train_quietly(model() + experts +
                Flags{"--ranks", "4", "--expert-parallel", "2", "--steps", "4", "--save", folder.string()});
  for (const Flags& other : {Flags{"--ranks", "1"}, Flags{"--ranks", "4", "--expert-parallel", "4"},
                             Flags{"--ranks", "6", "--expert-parallel", "2", "--replicas", "3"}}) {
    const fs::path again = fresh("again");
    const Finished f = run_small(
        experts + other + Flags{"--resume", folder.string(), "--steps", "4", "--save", again.string()});
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(diff(saved, again / "step_00000004"), 0) << show(other) << read_file(scratch("diff"));
  }
}

TEST(SavingRun, KeepsTheNewestAndNamesTheLatest) {
  for (const Flags& mode : {Flags{}, Flags{"--async-save"}}) {
    const fs::path folder = fresh("saved");
    const Finished f = run_small(
        Flags{"--ranks", "2", "--steps", "9", "--save", folder.string(), "--save-every", "2", "--keep", "2"} +
        mode);
    ASSERT_EQ(f.exit_code, 0) << f.err;
    const auto names = names_in(folder);
    ASSERT_EQ(names.size(), 4u) << f.out;
    if (mode.empty()) {
      EXPECT_THAT(names, ElementsAre("latest", "lock", "step_00000008", "step_00000009"));
    }
    EXPECT_EQ(read_file(folder / "latest"), "step_00000009\n");
    EXPECT_THAT(f.out, HasSubstr("saved " + (folder / "step_00000009").string()));
  }
}

TEST(SavingRun, StepsThatAreDoneAreNotRunAgainButExported) {
  const fs::path folder = fresh("saved"), weights = fresh("weights.safetensors");
  const Finished first = run_small(
      {"--ranks", "2", "--steps", "3", "--save", folder.string(), "--export-weights", weights.string()});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::string want = read_file(weights);
  for (const char* steps : {"3", "2", "0"}) {
    fs::remove(weights);
    const Finished f = run_small({"--ranks", "3", "--steps", steps, "--resume", folder.string(),
                                  "--export-weights", weights.string()});
    ASSERT_EQ(f.exit_code, 0) << f.err;
    EXPECT_TRUE(read_file(weights) == want) << steps;
  }
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "lock", "step_00000003"));
}

TEST(SavingRun, DamageIsPassedOverInAFolderAndAnErrorInACheckpoint) {
  const fs::path folder = fresh("saved");
  ASSERT_EQ(
      run_small({"--ranks", "2", "--steps", "4", "--save", folder.string(), "--save-every", "2"}).exit_code,
      0);
  const fs::path newest = folder / "step_00000004",
                 file = newest / "model" / names_in(newest / "model").front();
  std::string bytes = read_file(file);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 4);
  write_file(file, bytes);

  const Finished folder_run = run_small({"--ranks", "3", "--steps", "5", "--resume", folder.string()});
  EXPECT_EQ(folder_run.exit_code, 0) << folder_run.err;
  EXPECT_THAT(folder_run.out, HasSubstr("resumed from " + (folder / "step_00000002").string()));
  EXPECT_THAT(folder_run.err, AllOf(HasSubstr("passed over"), HasSubstr(file.filename().string())));

  const Finished one = run_small({"--ranks", "3", "--steps", "5", "--resume", newest.string()});
  EXPECT_EQ(one.exit_code, 1);
  EXPECT_THAT(one.err, HasSubstr(file.filename().string()));

  fs::remove(newest / "manifest.binpb");
  EXPECT_EQ(run_small({"--ranks", "1", "--steps", "4", "--resume", newest.string()}).exit_code, 1);
  const Finished without = run_small({"--ranks", "1", "--steps", "4", "--resume", folder.string()});
  EXPECT_EQ(without.exit_code, 0) << without.err;
}

TEST(SavingRun, WhatCannotBeReadIsSaidAndANewerFormatIsRefused) {
  const fs::path folder = fresh("saved"), manifest = folder / "step_00000004/manifest.binpb";
  ASSERT_EQ(run_small({"--steps", "4", "--save", folder.string(), "--save-every", "2"}).exit_code, 0);
  const std::string bytes = read_file(manifest);
  const auto replace = [&](const std::function<void()>& by) {
    fs::remove(manifest);
    by();
  };
  replace([&] {
    fs::create_symlink(manifest.filename(), manifest);
  });  // a link to itself: an error of the system
  const Finished unread = run_small({"--steps", "5", "--resume", folder.string(), "--save", folder.string()});
  EXPECT_EQ(unread.exit_code, 0) << unread.err;
  EXPECT_THAT(unread.err,
              AllOf(HasSubstr("passed over: step_00000004: "), HasSubstr("Too many levels of symbolic links"),
                    HasSubstr("resuming " + (folder / "step_00000002").string())));
  EXPECT_TRUE(fs::exists(folder / "step_00000004"));
  replace([&] { write_file(manifest, bytes); });
  const Finished next = run_small({"--steps", "6", "--resume", folder.string()});
  EXPECT_THAT(next.out, HasSubstr("resumed from " + (folder / "step_00000005").string()))
      << "saved after the one that could not be read";

  std::string newer = bytes;
  newer[8] = 2;
  const uint64_t sum = sherd::checksum(newer.data(), 40);
  newer.replace(40, sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
  replace([&] { write_file(manifest, newer); });
  const auto before = names_in(folder);
  for (const Flags& flags :
       {Flags{"--resume", folder.string()}, Flags{"--save", folder.string()},
        Flags{"--save", folder.string(), "--overwrite"},
        Flags{"--resume", (folder / "step_00000005").string(), "--save", folder.string()}}) {
    const Finished refused = run_small(Flags{"--steps", "7"} + flags);
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("step_00000004/manifest.binpb"), HasSubstr("format version 2"),
                                   HasSubstr("reads versions up to 1")));
    EXPECT_EQ(names_in(folder), before);
  }
}

// Bytes of a path are recorded, whatever they are.
TEST(SavingRun, PathsThatAreNotUtf8AreResumed) {
  const fs::path folder = fresh("latin\xe9\xff"), text = folder / "t\xe4xt", save = folder / "s\xfcve";
  fs::create_directories(folder);
  write_file(text, golden_text());
  const auto run = [&](const Flags& flags) { return run_train_gpt(model() + flags); };
  ASSERT_EQ(run({"--data", text.string(), "--steps", "2", "--save", save.string()}).exit_code, 0);
  const Finished resumed = run({"--steps", "3", "--resume", save.string(), "--save", save.string()});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("2 steps are done"));
  fs::rename(text, folder / "moved");
  const Finished missing = run({"--steps", "4", "--resume", save.string()});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("t\\xe4xt"));
}

TEST(SavingRun, WhatDoesNotFitIsExplained) {
  const fs::path folder = fresh("saved");
  const Flags two = {"--ranks", "2", "--steps", "2"};
  ASSERT_EQ(run_small(two + Flags{"--optimizer", "muon", "--save", folder.string()}).exit_code, 0);

  const Finished routed = run_small(two + Flags{"--optimizer", "adamw", "--resume", folder.string()});
  EXPECT_EQ(routed.exit_code, 1);
  EXPECT_THAT(routed.err, AllOf(HasSubstr("routing has changed"), HasSubstr("blocks.0.qkv.weight"),
                                HasSubstr(" more"), HasSubstr("--allow-new-state")));
  // The cause comes first, and no list of names is long.
  EXPECT_THAT(routed.err,
              HasSubstr("does not fit the run: it was saved with --optimizer 'muon' (here 'adamw'); "));
  EXPECT_LT(routed.err.size(), 1500u);
  const Finished allowed = run_small({"--ranks", "2", "--steps", "3", "--optimizer", "adamw", "--resume",
                                      folder.string(), "--allow-new-state"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_THAT(allowed.err, AllOf(HasSubstr("starts from zero"), HasSubstr("left out")));

  const Finished deeper = run_small(
      two + Flags{"--optimizer", "muon", "--layers", "3", "--dim", "32", "--resume", folder.string()});
  EXPECT_EQ(deeper.exit_code, 1);
  EXPECT_THAT(deeper.err,
              AllOf(HasSubstr("blocks.2.qkv.weight"), HasSubstr("'tok.weight' has shape [256, 36]"),
                    HasSubstr("leave these flags out, so that --resume takes them from the checkpoint"),
                    Not(HasSubstr("optimizer state"))));

  const Finished weights = run_small(two + Flags{"--resume", folder.string(), "--resume-parts", "model"});
  EXPECT_EQ(weights.exit_code, 0) << weights.err;
  EXPECT_THAT(weights.out, HasSubstr("weights from"));
}

// Shapes do not show the number of heads.
TEST(SavingRun, FlagsThatShapesDoNotShowAreCompared) {
  const fs::path folder = fresh("saved");
  const Flags two = {"--ranks", "2", "--steps", "2"};
  ASSERT_EQ(run_small(two + Flags{"--save", folder.string()}).exit_code, 0);
  const Finished heads = run_small(two + Flags{"--heads", "2", "--resume", folder.string()});
  EXPECT_EQ(heads.exit_code, 1);
  EXPECT_THAT(heads.err, HasSubstr("--heads 4 (here 2)"));
  const Finished dim = run_small(two + Flags{"--dim", "32", "--resume", folder.string()});
  EXPECT_EQ(dim.exit_code, 1);
  EXPECT_THAT(dim.err, HasSubstr("it was saved with --dim 36 (here 32)"));
  const Finished seed =
      run_small({"--ranks", "2", "--steps", "3", "--seed", "6", "--resume", folder.string()});
  EXPECT_EQ(seed.exit_code, 0) << seed.err;
  EXPECT_THAT(seed.err, HasSubstr("--seed 6 is not used"));
}

TEST(SavingRun, OtherRunsCheckpointsAreReplacedOnlyWhereThatIsAskedFor) {
  const fs::path folder = fresh("saved");
  ASSERT_EQ(
      run_small({"--ranks", "2", "--steps", "4", "--save", folder.string(), "--save-every", "2"}).exit_code,
      0);
  // A new run, refused and then asked for; then one that resumes it.
  const Flags keep = {"--ranks", "2", "--save", folder.string(), "--save-every", "1", "--keep", "1"};
  const Finished refused = run_small(keep + Flags{"--steps", "3"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("holds another run"));
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "lock", "step_00000002", "step_00000004"));
  ASSERT_EQ(run_small(keep + Flags{"--steps", "3", "--overwrite"}).exit_code, 0);
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "lock", "step_00000003"));
  ASSERT_EQ(
      run_small(keep + Flags{"--steps", "5", "--resume", (folder / "step_00000003").string()}).exit_code, 0);
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "lock", "step_00000005"));
}

TEST(SavingRun, MetricsContinueAfterATornLine) {
  const fs::path folder = fresh("saved"), metrics = fresh("metrics.jsonl");
  const Flags flags = {"--ranks", "2", "--metrics", metrics.string()};
  ASSERT_EQ(run_small(flags + Flags{"--steps", "2", "--save", folder.string()}).exit_code, 0);
  std::string text = read_file(metrics);
  write_file(metrics, text.substr(0, text.size() - 20));
  ASSERT_EQ(run_small(flags + Flags{"--steps", "4", "--resume", folder.string()}).exit_code, 0);
  text = read_file(metrics);
  size_t whole = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    whole += nlohmann::json::accept(text.substr(at, text.find('\n', at) - at)) ? 1u : 0u;
  EXPECT_EQ(whole, 5u) << text;  // two of flags, steps 1, 3 and 4
}

TEST(SavingRun, BadPathsAndFlagsAreNamed) {
  const fs::path empty = fresh("empty");
  fs::create_directory(empty);
  const auto expect = [&](const Flags& flags, int code, const std::string& word) {
    const Finished f = run_small(Flags{"--ranks", "2", "--steps", "2"} + flags);
    EXPECT_EQ(f.exit_code, code) << show(flags) << f.err;
    EXPECT_THAT(f.err, HasSubstr(word)) << show(flags);
  };
  expect({"--resume", empty.string()}, 1, empty.string());
  expect({"--resume", "/nowhere/at/all"}, 1, "/nowhere/at/all");
  expect({"--save", (scratch("text") / "below").string()}, 1, "not a folder");
  expect({"--save", scratch("text").string()}, 1, "not a folder");
  expect({"--save", ""}, 2, "--save");
  expect({"--resume", ""}, 2, "--resume");
  expect({"--save-every", "2"}, 2, "--save DIR");
  expect({"--allow-new-state"}, 2, "--resume");
  expect({"--resume", "x", "--init-weights", "y"}, 2, "--init-weights");
  const Finished no_effect = run_small({"--ranks", "2", "--steps", "1", "--async-save"});
  EXPECT_EQ(no_effect.exit_code, 0) << no_effect.err;
}

}  // namespace
}  // namespace sherd::test
