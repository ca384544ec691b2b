// `sherd ckpt inspect`, and what a path means to every command.
#include <nlohmann/json.hpp>

#include "ckpt/ckpt_inspect.h"
#include "ckpt_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;

using CkptInspect = Ckpt;

TEST_F(CkptInspect, TiedNamesAreShown) {
  auto whole = tensors();
  whole[0].tied = {"head.tied.weight"};
  const std::string path = make("run", 2, 40, test::cut_rows, whole);
  EXPECT_THAT(ckpt("inspect " + path).out, ::testing::HasSubstr("  head.tied.weight = tok.weight (tied)\n"));
  const auto j = nlohmann::json::parse(ckpt("inspect --json " + path).out);
  EXPECT_EQ(j.at("tensors")[0].at("tied"), nlohmann::json::array({"head.tied.weight"}));
}

TEST_F(CkptInspect, JsonHoldsEverything) {
  const std::string path = make("run", 3);
  const Finished f = ckpt("inspect --json " + path);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  const json j = json::parse(f.out);
  EXPECT_EQ(j.at("path"), path);
  EXPECT_EQ(j.at("newest_of"), nullptr);
  EXPECT_EQ(ckpt("inspect --json " + path + "/manifest.binpb").out, f.out);
  EXPECT_EQ(j.at("checksums"), true);
  EXPECT_EQ(j.at("sequence"), 1);
  EXPECT_EQ(j.at("training").at("step"), 40);
  EXPECT_EQ(j.at("training").at("sequences"), 320);
  EXPECT_EQ(j.at("training").at("seed"), 42);
  EXPECT_EQ(j.at("training").at("info").at("muon.momentum"), "ema");
  EXPECT_EQ(j.at("totals").at("model"), json::parse(R"({"tensors": 8, "elements": 150, "bytes": 582})"));
  EXPECT_EQ(j.at("totals").at("optim"), json::parse(R"({"tensors": 3, "elements": 69, "bytes": 276})"));

  const auto whole = tensors();
  ASSERT_EQ(j.at("tensors").size(), whole.size());
  int64_t pieces = 0, bytes = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const json& t = j.at("tensors")[i];
    EXPECT_EQ(t.at("name"), whole[i].name);
    EXPECT_EQ(t.at("section"), name_of(whole[i].section));
    EXPECT_EQ(t.at("dtype"), name_of(whole[i].dtype));
    EXPECT_EQ(t.at("shape"), json(whole[i].shape));
    EXPECT_EQ(t.at("bytes"), whole[i].bytes.size());
    // The pieces lead to the elements.
    for (const json& p : t.at("pieces")) {
      const Box box{p.at("offset"), p.at("size")};
      const std::string file = j.at("files").at(p.at("file").get<size_t>()).at("path");
      const std::string want = test::bytes_of_box(whole[i], box);
      EXPECT_EQ(read_bytes(path + "/" + file).substr(p.at("begin"), want.size()), want) << t;
      ++pieces;
      bytes += static_cast<int64_t>(want.size());
    }
  }
  ASSERT_EQ(j.at("ranks").size(), 3u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(j.at("ranks")[r].at("rank"), r);
    EXPECT_EQ(j.at("ranks")[r].at("files"), 2);
    pieces -= j.at("ranks")[r].at("pieces").get<int64_t>();
    bytes -= j.at("ranks")[r].at("bytes").get<int64_t>();
  }
  EXPECT_EQ(pieces, 0);
  EXPECT_EQ(bytes, 0);
}

TEST_F(CkptInspect, TheSummaryGroupsByModule) {
  const std::string path = make("run", 2);
  const Finished f = ckpt("inspect " + path);
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_EQ(f.err, "");
  EXPECT_THAT(f.out,
              AllOf(StartsWith(path + "\nstep 40, 320 training sequences consumed, seed 42; save number 1\n"
                                      "  muon.momentum  ema\n  routing\n    tok.weight  adamw\n"),
                    HasSubstr("model: 8 tensors, 150 elements, 582 B"), HasSubstr("optim: 3 tensors")));
  EXPECT_THAT(f.out, ContainsRegex("\n  blocks.1 +2 +63 +252 B +4\n"));
  EXPECT_THAT(f.out, ContainsRegex("\n  \\(root\\) +3 +4 "));
  EXPECT_THAT(f.out, Not(HasSubstr("qkv.weight")));
  const Finished all = ckpt("inspect --tensors " + path);
  EXPECT_THAT(all.out, ContainsRegex("\n    qkv.weight +\\[11, 3\\] +f32 +33 +132 B +2\n"));
  EXPECT_THAT(all.out, ContainsRegex("\n    weight.exp_avg +\\[7, 5\\] +f32 "));
  EXPECT_THAT(all.out, ContainsRegex("\n    nothing +\\[0, 4\\] +f32 +0 +0 B +0\n"));
}

TEST_F(CkptInspect, LongTextsAreCutUnlessAskedFor) {
  TrainingState training;
  training.info["config"] = std::string(1000, 'x');
  const std::string path =
      test::make_checkpoint(folder_ / "run", 1, {test::WholeTensor::random("w", {2}, 1)}, training);
  EXPECT_THAT(ckpt("inspect " + path).out,
              ContainsRegex("\n  config  x+\\.\\.\\. \\(--tensors shows all\\)\n"));
  EXPECT_THAT(ckpt("inspect --tensors " + path).out, HasSubstr(training.info["config"] + "\n"));
}

TEST_F(CkptInspect, ModulesOfNames) {
  const auto model = [](const char* name) { return module_of(Section::model, name); };
  const auto optim = [](const char* name) { return module_of(Section::optim, name); };
  EXPECT_EQ(model("blocks.0.norm1.weight"), "blocks.0");
  EXPECT_EQ(model("model.layers.17.mlp.up.weight"), "model.layers.17");
  EXPECT_EQ(model("tok.weight"), "tok");
  EXPECT_EQ(model("scale"), "");
  EXPECT_EQ(model("list.3"), "list");
  EXPECT_EQ(model(""), "");
  EXPECT_EQ(model("a..b"), "a.");
  EXPECT_EQ(optim("optim.state.blocks.0.qkv.weight.exp_avg"), "blocks.0");
  EXPECT_EQ(optim("optim.state.scale.step"), "");
  EXPECT_EQ(optim("optim.state.tok.weight.step"), "tok");
  EXPECT_EQ(optim("step"), "");
}

TEST_F(CkptInspect, RanksOfFiles) {
  EXPECT_EQ(rank_of("model/shard-00012-model-00001-of-00002.safetensors"), 11);
  for (const char* name :
       {"model.safetensors", "shard-00000-model-00001-of-00001.safetensors", "shard--model-", "shard-1",
        "shard-99999999999-model-00001-of-00001.safetensors", ""})
    EXPECT_EQ(rank_of(name), std::nullopt) << name;
}

TEST_F(CkptInspect, NamesMayHoldAnything) {
  const std::string name = "a\x1b[2J\"\n.\xc3\xa9";
  const std::string path = make("run", 1, 1, test::cut_rows, {test::WholeTensor::random(name, {2}, 1)});
  EXPECT_THAT(ckpt("inspect --tensors " + path).out, HasSubstr("a\\u001b[2J\"\\u000a"));
  EXPECT_EQ(json::parse(ckpt("inspect --json " + path).out).at("tensors")[0].at("name"), name);
}

TEST_F(CkptInspect, ASaveFolderMeansItsNewestBySequence) {
  make("run", 2, 90);
  const std::string newest = make("run", 2, 50);  // resumed from an earlier step
  const json j = json::parse(ckpt("inspect --json " + (folder_ / "run")).out);
  EXPECT_EQ(j.at("path"), newest);
  EXPECT_EQ(j.at("newest_of"), 2);
  EXPECT_THAT(ckpt("inspect " + (folder_ / "run/")).out, HasSubstr("step_00000050 (the newest of 2)\n"));
}

TEST_F(CkptInspect, AnUnusableCheckpointMayBeTheNewest) {
  const std::string path = make("run", 1, 1);
  std::filesystem::create_directories(folder_ / "run/step_00000002/model");
  const Finished f = ckpt("inspect " + (folder_ / "run"));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(f.out, "");
  EXPECT_THAT(f.err,
              AllOf(StartsWith("sherd ckpt inspect: 1 of 2 checkpoints in "), HasSubstr("step_00000002"),
                    HasSubstr("such as " + path), HasSubstr("sherd ckpt verify")));
  EXPECT_THAT(ckpt("inspect " + path).out, HasSubstr("step 1,"));
}

TEST_F(CkptInspect, FoldersWithoutAManifest) {
  const std::string path = make("run", 2);
  for (const char* part : {"/model", "/optim"}) {
    const Finished f = ckpt("inspect " + path + part);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.out, AllOf(HasSubstr("no manifest"), ContainsRegex("\n  tok +")));
  }
  const json j = json::parse(ckpt("inspect --json " + path + "/optim").out);
  EXPECT_EQ(j.at("training"), nullptr);
  EXPECT_EQ(j.at("sequence"), nullptr);
  EXPECT_EQ(j.at("totals").at("optim").at("tensors"), 3);
}

TEST_F(CkptInspect, WhatCannotBeReadExitsWith1AndSaysWhatWasLookedFor) {
  folder_.write("notes/readme.txt", "hello");
  folder_.write("file", "no tensors");
  const std::string torn = make("torn", 1);
  std::filesystem::resize_file(torn + "/manifest.binpb", 60);
  std::filesystem::create_directories(folder_ / "lost/model");
  folder_.write("fresh/lock", "");
  std::filesystem::create_directories(folder_ / "step_00000110.tmp-5f0e61c2a9d3b478-3");
  const std::pair<std::string, std::string> cases[] = {
      {"none", "does not exist"},
      {"notes", "looked for manifest.binpb"},
      {"file", "file"},
      {"torn/step_00000040", "manifest.binpb"},
      {"torn", "1 of 1 checkpoint in "},
      {"lost", "lost its manifest? "},
      {"fresh", "nothing was saved there yet"},
      {"step_00000110.tmp-5f0e61c2a9d3b478-3", "unfinished save"}};
  for (auto& [name, message] : cases) {
    const Finished f = ckpt("inspect --json " + (folder_ / name));
    EXPECT_EQ(f.exit_code, 1) << name;
    EXPECT_EQ(f.out, "") << name;
    EXPECT_THAT(f.err, AllOf(StartsWith("sherd ckpt inspect: "), HasSubstr(name), HasSubstr(message)));
    EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  }
}

TEST_F(CkptInspect, OutputThatCannotBeWritten) {
  const std::string sherd = std::string(SHERD_TOOL) + " ckpt inspect --json " + make("run", 2);
  EXPECT_EQ(WEXITSTATUS(std::system((sherd + " >/dev/full 2>/dev/null").c_str())), 1);
  // A reader that is gone, with and without the signal.
  const std::string err = folder_ / "err";
  const auto piped = [&](const std::string& before) {
    const std::string script =
        before + "(sleep 0.2; " + sherd + " 2>" + err + ") | true; exit ${PIPESTATUS[0]}";
    return WEXITSTATUS(std::system(("bash -c '" + script + "'").c_str()));
  };
  EXPECT_EQ(piped(""), 128 + 13);
  EXPECT_EQ(read_bytes(err), "");
  EXPECT_EQ(piped("trap \"\" PIPE; "), 1);
  EXPECT_THAT(read_bytes(err), HasSubstr("or the reader gone?"));
}

}  // namespace
}  // namespace sherd::tools
