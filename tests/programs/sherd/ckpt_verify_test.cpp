// `sherd ckpt verify`: what is damaged is named.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

#include "ckpt/ckpt_prune.h"
#include "ckpt_rig.h"
#include "support/fault_file_system.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;

constexpr const char* kFile = "model/shard-00002-model-00001-of-00001.safetensors";

using CkptVerify = Ckpt;

TEST_F(CkptVerify, ASoundCheckpoint) {
  for (const std::string& path : {make("run", 3), folder_ / "run", make("one", 1)}) {
    const Finished f = ckpt("verify " + path);
    EXPECT_EQ(f.exit_code, 0) << f.out << f.err;
    EXPECT_THAT(f.out, AllOf(StartsWith(path), HasSubstr(": sound (step 40; 11 tensors in "),
                             HasSubstr("every byte verified")));
    EXPECT_EQ(f.err, "");
  }
}

TEST_F(CkptVerify, AFlippedByteIsNamedByFileTensorAndRange) {
  const std::string path = make("run", 3);
  const json j = json::parse(ckpt("inspect --json " + path).out);
  json piece;  // rank 1's of blocks.1.qkv.weight
  for (const json& t : j.at("tensors"))
    if (t.at("name") == "blocks.1.qkv.weight") piece = t.at("pieces")[1];
  const json& file = j.at("files").at(piece.at("file").get<size_t>());
  ASSERT_EQ(file.at("path"), kFile);
  flip(path + "/" + kFile, piece.at("begin").get<int64_t>() + 5);

  const Finished f = ckpt("verify " + path);
  EXPECT_EQ(f.exit_code, 1);
  // The tensor's bytes in the damaged block.
  const int64_t begin = piece.at("begin"), end = begin + 4 * 3 * 4;
  const std::string range = "bytes " + std::to_string(begin) + " to " + std::to_string(end);
  EXPECT_THAT(f.out,
              AllOf(HasSubstr(path + ": damaged\n"),
                    HasSubstr(std::string("  ") + kFile + ", " + range + ", tensor blocks.1.qkv.weight: ")));
  EXPECT_THAT(f.out, Not(HasSubstr("shard-00001")));
  EXPECT_THAT(f.err,
              AllOf(StartsWith("sherd ckpt verify: 1 of 1 checkpoint damaged; "), HasSubstr("resume from")));
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
}

TEST_F(CkptVerify, WeightsThatAreNotFiniteAreSoundAsAFileAndAFailure) {
  auto whole = tensors();
  const float wild[] = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  const auto spoil = [&](const std::string& name, size_t element) {
    for (auto& t : whole)
      if (t.name == name) std::memcpy(t.bytes.data() + element * sizeof(float), wild, sizeof wild);
  };
  spoil("optim.state.tok.weight.exp_avg", 3);
  const std::string state = make("state", 3, 40, test::cut_rows, whole);
  const Finished only_state = ckpt("verify " + state);
  EXPECT_EQ(only_state.exit_code, 0) << only_state.err;
  EXPECT_THAT(only_state.out, HasSubstr("but 2 values of 1 tensor are not finite"));

  spoil("blocks.0.qkv.weight", 3 * 4 + 2);  // the last column of one row, the first of the next
  const std::string path = make("run", 3, 40, test::cut_rows, whole);
  const Finished f = ckpt("verify " + path);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out,
              AllOf(HasSubstr(path + ": sound as a file (step 40; "),
                    HasSubstr("but 4 values of 2 tensors are not finite:\n"),
                    HasSubstr("  blocks.0.qkv.weight [11, 3]: 2 of 33 values, the first at [4, 2]\n")));
  EXPECT_THAT(f.err, AllOf(HasSubstr("1 of 1 checkpoint: weights are not finite"), HasSubstr("earlier one")));

  const Finished seen = ckpt("inspect " + path);
  EXPECT_EQ(seen.exit_code, 0);
  EXPECT_THAT(seen.out, AllOf(HasSubstr("not finite: 4 values of 2 tensors"),
                              HasSubstr("blocks.0.qkv.weight [11, 3]: 2 of 33 values, the first at [4, 2]")));
  const json inspected = json::parse(ckpt("inspect --json " + path).out);
  for (const json& t : inspected.at("tensors")) {
    const bool bad = t.at("name") == "blocks.0.qkv.weight";
    if (bad) {
      EXPECT_EQ(t.at("not_finite"), json::parse(R"({"values": 2, "first": [4, 2]})"));
    } else if (t.at("section") == "model") {
      EXPECT_EQ(t.at("not_finite"), json::parse(R"({"values": 0, "first": null})"));
    }
  }
  const Finished resharded = ckpt("reshard --world 2 " + path + " " + (folder_ / "two"));
  EXPECT_EQ(resharded.exit_code, 0) << resharded.err;
  EXPECT_THAT(ckpt("inspect " + (folder_ / "two")).out, HasSubstr("not finite: 4 values of 2 tensors"));
}

TEST_F(CkptVerify, PruningKeepsTheNewestThatAreFinite) {
  auto wild = tensors();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(wild[0].bytes.data(), &nan, sizeof nan);
  for (const int64_t step : {1, 2}) make("run", 1, step);
  for (const int64_t step : {3, 4}) make("run", 1, step, test::cut_rows, wild);
  const Finished f = ckpt("prune --keep 1 " + (folder_ / "run"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("step_00000001"), HasSubstr("step_00000003"),
                           HasSubstr("2 removed, 2 checkpoints kept")));
}

TEST_F(CkptVerify, EveryOtherKindOfDamage) {
  const std::pair<const char*, std::function<void(const std::string&)>> cases[] = {
      {"manifest.binpb", [](auto& p) { std::filesystem::resize_file(p + "/manifest.binpb", 100); }},
      {"manifest.binpb", [](auto& p) { std::filesystem::resize_file(p + "/manifest.binpb", 0); }},
      {"manifest.binpb", [](auto& p) { std::filesystem::remove(p + "/manifest.binpb"); }},
      {"manifest.binpb", [](auto& p) { flip(p + "/manifest.binpb", 70); }},
      {kFile, [](auto& p) { std::filesystem::remove(p + "/" + kFile); }},
      {kFile, [](auto& p) { flip(p + "/" + kFile, 20); }},
      {kFile, [](auto& p) { std::filesystem::resize_file(p + "/" + kFile, 30); }},
      {kFile, [](auto& p) { std::ofstream(p + "/" + kFile, std::ios::app) << "x"; }},
      {"model/extra", [](auto& p) { std::ofstream(p + "/model/extra") << "x"; }}};
  int step = 0;
  for (auto& [file, harm] : cases) {
    const std::string path = make("run" + std::to_string(step), 2, step);
    harm(path);
    for (const std::string& named : {path, folder_ / ("run" + std::to_string(step))}) {
      const Finished f = ckpt("verify " + named);
      EXPECT_EQ(f.exit_code, 1) << step << f.out;
      EXPECT_THAT(f.out, AllOf(HasSubstr(path + ": damaged\n"), HasSubstr(file))) << step;
    }
    ++step;
  }
}

TEST_F(CkptVerify, ASaveFolderItsNewestOrAll) {
  const std::string first = make("run", 2, 10), second = make("run", 2, 20);
  flip(first + "/" + kFile, static_cast<int64_t>(std::filesystem::file_size(first + "/" + kFile)) - 1);
  const Finished newest = ckpt("verify " + (folder_ / "run"));
  EXPECT_EQ(newest.exit_code, 0) << newest.out;
  EXPECT_THAT(newest.out, AllOf(HasSubstr(second), Not(HasSubstr(first))));
  const Finished all = ckpt("verify --all " + (folder_ / "run"));
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.out, AllOf(HasSubstr(second + ": sound"), HasSubstr(first + ": damaged")));
  EXPECT_THAT(all.err, HasSubstr("1 of 2 checkpoints damaged"));
}

TEST_F(CkptVerify, ATornManifestCountsAlsoWhenAnotherCheckpointIsSound) {
  const std::string first = make("run", 2, 10), second = make("run", 2, 20);
  std::filesystem::resize_file(second + "/manifest.binpb", 47);
  const Finished f = ckpt("verify " + (folder_ / "run"));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out, AllOf(HasSubstr(first + ": sound"), HasSubstr(second + ": damaged\n  manifest.binpb")));
}

TEST_F(CkptVerify, WithoutChecksumsOnlyStructureIsChecked) {
  const std::string path = make("run", 2);
  const Finished f = ckpt("verify " + path + "/model");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, AllOf(HasSubstr("structure sound"),
                           HasSubstr("checksums are missing, the data was not verified")));
  std::filesystem::resize_file(path + "/" + kFile, std::filesystem::file_size(path + "/" + kFile) - 1);
  const Finished g = ckpt("verify " + path + "/model");
  EXPECT_EQ(g.exit_code, 1);
  EXPECT_THAT(g.err, AllOf(StartsWith("sherd ckpt verify: "), HasSubstr("shard-00002")));
}

using CkptSource = Ckpt;

TEST_F(CkptSource, WhatMayBeTheNewestIsNotPassedOver) {
  const std::string other = make("other", 1, 10), run = folder_ / "run";
  const std::function<void(const std::string&)> harms[] = {
      make_unreadable, [](auto& manifest) { std::filesystem::resize_file(manifest, 47); },
      [](auto& manifest) { std::filesystem::remove(manifest); }};
  for (const auto& harm : harms) {
    std::filesystem::remove_all(run);
    const std::string first = make("run", 2, 10), second = make("run", 2, 20);
    harm(second + "/manifest.binpb");
    const std::string out = folder_ / "out";
    for (const std::string& command :
         {"inspect " + run, "inspect --json " + run, "export --quiet " + run + " " + out + ".safetensors",
          "reshard --quiet --world 2 " + run + " " + out, "diff --quiet " + run + " " + other,
          "diff --quiet " + other + " " + run}) {
      const Finished f = ckpt(command);
      EXPECT_EQ(f.exit_code, 1) << command << f.out;
      EXPECT_EQ(f.out, "") << command;
      EXPECT_THAT(f.err, AllOf(HasSubstr(second + "/manifest.binpb"),
                               HasSubstr("the newest checkpoint is unknown"), HasSubstr("such as " + first)))
          << command;
    }
    EXPECT_FALSE(std::filesystem::exists(out));
    EXPECT_EQ(ckpt("diff --quiet " + first + " " + other).exit_code, 0) << "a step is named";
    EXPECT_EQ(ckpt("inspect " + first).exit_code, 0);
    EXPECT_EQ(ckpt("verify --quiet " + run).exit_code, 1);
  }
}

TEST_F(CkptSource, ANewerFormatIsRefusedWithItsVersion) {
  const std::string run = folder_ / "run";
  for (const int64_t newer : {10, 20}) {  // an older checkpoint, or the newest
    std::filesystem::remove_all(run);
    const std::string first = make("run", 2, 10), second = make("run", 2, 20);
    make_newer((newer == 10 ? first : second) + "/manifest.binpb");
    for (const std::string& command :
         {"inspect " + run, "verify " + run, "verify --all " + run, "diff " + run + " " + run,
          "export " + run + " " + (folder_ / "out/"), "reshard --world 1 " + run + " " + (folder_ / "two"),
          "prune --keep 1 " + run, "verify " + (newer == 10 ? first : second)}) {
      const Finished f = ckpt(command);
      EXPECT_EQ(f.exit_code, 1) << command;
      EXPECT_THAT(f.err, AllOf(HasSubstr("format version 7"), HasSubstr("reads versions up to 1"),
                               HasSubstr("manifest.binpb")))
          << command;
    }
    EXPECT_TRUE(std::filesystem::exists(first));
    EXPECT_EQ(ckpt("verify " + (newer == 10 ? second : first)).exit_code, 0) << "the other one by its name";
  }
}

/// A disk of which one opening of a file fails.
class OnceUnreadable : public FaultFileSystem {
 public:
  explicit OnceUnreadable(int at) : left_(at) {}
  std::unique_ptr<ReadableFile> open(const std::filesystem::path& path) override {
    if (left_-- == 0) throw IoError("cannot open '" + path.string() + "': Input/output error");
    return FaultFileSystem::open(path);
  }
  bool struck() const { return left_ < 0; }

 private:
  int left_;
};

TEST_F(CkptVerify, PruningCountsWhatIsThereWhateverReadFails) {
  bool struck = true;
  for (int at = 0; struck; ++at) {
    std::filesystem::remove_all(folder_ / "run");
    for (const int64_t step : {1, 2, 3, 4}) make("run", 1, step);
    OnceUnreadable files(at);
    std::ostringstream out, err;
    const auto left = [&] { return list_checkpoints(folder_ / "run", FileSystem::posix()).size(); };
    try {
      prune({.save_folder = folder_ / "run", .keep = 2}, {out, err, Progress::Mode::off}, files);
      const std::string kept = std::to_string(left()) + " checkpoints kept\n";
      // Unless it was the last look that failed.
      EXPECT_TRUE(out.str().ends_with(", " + kept) || !err.str().empty())
          << at << ": " << out.str() << err.str();
      EXPECT_EQ(std::ranges::count(out.str(), '\n'), 5 - static_cast<int64_t>(left())) << at;
    } catch (const Error&) {
      EXPECT_TRUE(files.struck()) << at;
    }
    struck = files.struck();
    EXPECT_GE(left(), 2u) << at;
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run/step_00000004")) << at;
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run/step_00000003")) << at;
  }
}

TEST_F(CkptVerify, NothingToVerify) {
  folder_.write("fresh/lock", "");
  EXPECT_EQ(ckpt("verify " + (folder_ / "fresh")).exit_code, 1);
  EXPECT_EQ(ckpt("verify " + (folder_ / "none")).exit_code, 1);
  const Finished f = ckpt("verify --all " + make("run", 1));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("--all needs a save folder"));
}

}  // namespace
}  // namespace sherd::tools
