// Runs with weights, state and gradients in 16 bits: a random sweep over what they can meet, and what is refused.

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "programs/runs/outcome.h"
#include "programs/runs/same_checkpoint.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

/// Draws flags.
class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  bool one_in(unsigned n) { return engine_() % n == 0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[engine_() % list.size()];
  }

 private:
  std::mt19937 engine_;
};

/// A run: what decides about its bits, and the number of its ranks.
struct Drawn {
  Flags flags;
  int data = 1, tp = 1, context = 1;
  bool experts = false, muon = false, masters = true;
};

Drawn draw_run(Dice& dice) {
  Drawn run;
  const std::string optimizer = dice.of<std::string>({"adamw", "muon", "normuon", "soap"});
  run.muon = optimizer == "muon" || optimizer == "normuon";
  run.data = dice.of<int>({1, 2, 2, 3, 4, 6});
  run.tp = run.data <= 3 && dice.one_in(4) ? 2 : 1;
  run.context = run.data <= 3 && run.tp == 1 && dice.one_in(3) ? 2 : 1;
  run.experts = run.tp == 1 && run.data != 3 && run.data != 6 && dice.one_in(4);
  // Tensor parallelism would cut blocks of models as small as these.
  const bool quantizes = optimizer != "soap" && run.tp == 1 && dice.one_in(2);
  const Flags master = dice.of(std::vector{Flags{}, Flags{"--master", "bf16"}, Flags{"--master", "split"}}),
              narrow = {"--state-dtype", quantizes ? "i8" : "bf16"};
  run.masters = master.empty() || master.back() != "bf16";
  const Flags forms = quantizes || master.empty() || dice.one_in(2) ? master + narrow : master;
  run.flags = Flags{"--dim",       quantizes ? "64" : dice.of<std::string>({"24", "32", "40"}),
                    "--layers",    dice.of<std::string>({"1", "2", "3"}),
                    "--heads",     "4",
                    "--seq",       "16",
                    "--batch",     "12",
                    "--seed",      std::to_string(dice.of<int>({1, 2, 3, 4})),
                    "--steps",     "5",
                    "--precision", "bf16",
                    "--optimizer", optimizer} +
              forms;
  const auto maybe = [&](unsigned n, const Flags& flags) {
    if (dice.one_in(n)) run.flags = run.flags + flags;
  };
  maybe(3, {"--qk-clip", "0.05"});
  maybe(2, {"--grad-dtype", "bf16"});
  maybe(4, {"--freeze", "norm"});
  maybe(4, {"--route", "tok=adamw/master:f32/state:f32"});
  if (run.muon) maybe(3, {"--muon-decay", "l2"});
  if (run.experts) run.flags = run.flags + Flags{"--experts", "4"};
  maybe(3, {"--ema", "0.75", "--eval-every", "2", "--ema-dtype", dice.of<std::string>({"fp32", "bf16"})});
  return run;
}

Flags draw_arrangement(Dice& dice, const Drawn& run) {
  Flags flags = {"--ranks",    std::to_string(run.data * run.tp * run.context),
                 "--tp",       std::to_string(run.tp),
                 "--context",  std::to_string(run.context),
                 "--strategy", dice.of(kStrategies + Flags{"auto"})};
  const bool chosen = flags.back() == "auto" && dice.one_in(2);  // with what is not given here
  if (!chosen)
    flags = flags + Flags{"--layout", dice.of<std::string>({"ragged", "even_rows", "whole_param"})};
  if (run.experts) flags = flags + Flags{"--expert-parallel", run.data > 1 ? "2" : "1"};
  if (!run.experts && run.data % 2 == 0 && run.data != 6 && dice.one_in(2))
    flags = flags + Flags{"--replicas", "2", "--outer", dice.of<std::string>({"no_shard", "optim"})};
  const std::string recompute = dice.of<std::string>({"none", "none", "blocks", "offload"});
  const bool offload = dice.one_in(2);
  if (!chosen) flags = flags + Flags{"--recompute", recompute};
  if (offload)
    flags = flags + Flags{"--offload", run.masters && dice.one_in(2) ? "state,master" : "state",
                          "--offload-window", dice.of<std::string>({"1K", "5K", "100K"})};
  if (offload || (!chosen && recompute == "offload"))
    flags = flags + Flags{"--offload-folder", scratch("").parent_path().string()};
  if (run.muon && dice.one_in(3)) flags = flags + Flags{"--muon-mode", "owner"};
  return flags;
}

TEST(RestFormsRun, ArrangementsAndResumesHaveTheSameBits) {
  Dice dice(nightly() ? std::random_device()() : 53);
  for (int i = 0; i < (nightly() ? 60 : 10); ++i) {
    const Drawn run = draw_run(dice);
    const auto saved = [&](const char* name, const Flags& flags) {
      const fs::path folder = fresh(name);
      const Flags save = {"--save", folder.string()}, background = {"--async-save"};
      (void)train_quietly(flags + save + (dice.one_in(3) ? background : Flags{}));
      return folder;
    };
    const Flags first = draw_arrangement(dice, run), second = draw_arrangement(dice, run),
                third = draw_arrangement(dice, run), fourth = draw_arrangement(dice, run);
    const fs::path want = saved("first", run.flags + first);
    EXPECT_TRUE(same_checkpoint(saved("second", run.flags + second), want))
        << show(run.flags + first) << show(second);
    const fs::path stopped = saved("stopped", run.flags + third + Flags{"--stop-at", "2"});
    EXPECT_TRUE(
        same_checkpoint(saved("resumed", fourth + Flags{"--steps", "5", "--resume", stopped.string()}), want))
        << show(run.flags + first) << "resumed:" << show(third) << show(fourth);
  }
}

TEST(RestFormsRun, WhatDoesNotFitIsRefusedInOneLineWithTheRemedy) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  const Flags model = {"--data", data.string(), "--dim", "16",      "--layers", "1",       "--heads",
                       "2",      "--seq",       "16",    "--batch", "4",        "--steps", "2"};
  const auto refused = [&](const Flags& flags, int code) {
    const Finished f = run_train_gpt(model + flags);
    EXPECT_EQ(f.exit_code, code) << f.err;
    // Wrong arguments have a line above them.
    EXPECT_LE(std::count(f.err.begin(), f.err.end(), '\n'), code == 2 ? 2 : 1) << f.err;
    return f.err;
  };
  EXPECT_THAT(refused({"--master", "bf16"}, 2),
              HasSubstr("--master bf16: fp32 weights are their own masters; give --precision bf16"));
  EXPECT_THAT(refused({"--state-dtype", "bf16", "--optimizer", "muon", "--muon-fraction", "0.5"}, 1),
              AllOf(HasSubstr("Muon has state in f32 alone"), HasSubstr("leave out --state-dtype")));
  EXPECT_THAT(refused({"--state-dtype", "i8", "--optimizer", "soap", "--dim", "64"}, 2),
              HasSubstr("--state-dtype i8: SOAP has no state in 8 bits; give bf16"));
  EXPECT_THAT(
      refused({"--route", "qkv=soap/state:i8", "--dim", "64"}, 1),
      AllOf(HasSubstr("soap has no state in 8 bits, for"), HasSubstr("leave out i8 of --state-dtype")));
  EXPECT_THAT(refused({"--precision", "bf16", "--route", "fc=/master:f16"}, 2),
              AllOf(HasSubstr("--route"), HasSubstr("f16"), HasSubstr("bf16 or split")));
  EXPECT_THAT(refused({"--precision", "bf16", "--route", "fc=/state:f16"}, 2),
              HasSubstr("use f32, bf16 or i8"));
  EXPECT_THAT(refused({"--precision", "bf16", "--route", "fc=state:bf16/muon"}, 2),
              HasSubstr("an optimizer first"));
  EXPECT_THAT(refused({"--route", "fc=/master:bf16"}, 1), HasSubstr("master bf16 needs compute dtype bf16"));
  const fs::path folder = fresh("wide");
  const Flags bf16 = {"--precision", "bf16"};
  ASSERT_EQ(run_train_gpt(model + bf16 + Flags{"--save", folder.string()}).exit_code, 0);
  const Flags resumed = bf16 + Flags{"--steps", "4", "--resume", folder.string(), "--master", "bf16"};
  EXPECT_THAT(refused(resumed, 1), AllOf(HasSubstr("are stored in f32 and the run keeps them in bf16"),
                                         HasSubstr("--convert-forms")));
  EXPECT_THAT(refused(bf16 + Flags{"--steps", "4", "--resume", folder.string(), "--resume-parts", "optimizer",
                                   "--state-dtype", "bf16"},
                      1),
              HasSubstr("--convert-forms"));
  const Finished converted = run_train_gpt(model + resumed + Flags{"--convert-forms"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.err, HasSubstr("tensors of the checkpoint were converted from f32 to bf16"));
}

}  // namespace
}  // namespace sherd::test
