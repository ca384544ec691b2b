// `sherd ckpt export`, `import`, `reshard` and `prune`.
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

#include "ckpt_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
using test::WholeTensor;
using ::testing::UnorderedElementsAre;

class CkptConvert : public Ckpt {
 protected:
  void expect_done(const std::string& arguments) const {
    const Finished f = ckpt(arguments);
    EXPECT_EQ(f.exit_code, 0) << arguments << "\n" << f.out << f.err;
    EXPECT_EQ(f.err, "") << arguments;
  }
  void expect_same(const std::string& a, const std::string& b, const std::string& flags = "") const {
    const Finished f = ckpt("diff " + flags + " " + a + " " + b);
    EXPECT_EQ(f.exit_code, 0) << f.out << f.err;
    EXPECT_THAT(f.out, HasSubstr("bit-identical"));
  }
  std::vector<std::string> names_in(const std::string& name) const {
    std::vector<std::string> names;
    for (auto& e : std::filesystem::directory_iterator(folder_ / name)) names.push_back(e.path().filename());
    return names;
  }
};

// Returns the content of a tensor of a file.
std::string bytes_in(const SafetensorsReader& file, const std::string& name) {
  const SafetensorsEntry* e = file.find(name);
  if (e == nullptr) return "missing";
  std::string bytes(static_cast<size_t>(e->end - e->begin), '\0');
  file.read(*e, 0, numel_of(e->shape), bytes.data());
  return bytes;
}

TEST_F(CkptConvert, ExportedFilesHoldWholeTensors) {
  for (const auto& [cut, ranks] :
       {std::pair{test::Cut(test::cut_rows), 3}, {test::cut_flat, 4}, {test::cut_columns, 2}}) {
    const std::string path = make("run" + std::to_string(ranks), ranks, 40, cut);
    expect_done("export " + path + " " + (folder_ / "out.safetensors"));
    const SafetensorsReader file(folder_ / "out.safetensors");
    EXPECT_EQ(file.entries().size(), 8u);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const WholeTensor& t : tensors()) {
      if (t.section == Section::optim) continue;
      EXPECT_EQ(bytes_in(file, t.name), t.bytes) << t.name;
      EXPECT_EQ(file.find(t.name)->shape, t.shape);
      EXPECT_EQ(file.find(t.name)->dtype, t.dtype);
    }
    for (const SafetensorsEntry& e : file.entries()) EXPECT_EQ(e.begin % size_of(*e.dtype), 0) << e.name;
    expect_same(path, folder_ / "out.safetensors", "--model-only");
  }
}

TEST_F(CkptConvert, ExportedDtypes) {
  const std::string path = make("run", 2);
  const auto whole = tensors();
  const std::string out = folder_ / "out.safetensors";
  expect_done("export --optim --dtype bf16 " + path + " " + out);
  {
    const SafetensorsReader file(out);
    EXPECT_EQ(file.find("count")->dtype, DType::i64);
    EXPECT_EQ(file.find("optim.state.tok.weight.step")->dtype, DType::f32);
    std::vector<float> values(35);
    std::memcpy(values.data(), whole[0].bytes.data(), whole[0].bytes.size());
    std::vector<bf16> want;
    for (const float v : values) want.emplace_back(v);
    EXPECT_EQ(bytes_in(file, "tok.weight"), WholeTensor::of("", {35}, want).bytes);
    EXPECT_EQ(bytes_in(file, "head.weight"), whole[4].bytes);
    EXPECT_EQ(file.entries().size(), 11u);
  }
  EXPECT_EQ(ckpt("diff --tolerance 0.004 " + path + " " + out).exit_code, 0);
  expect_same(path, out, "--optim-only");
  expect_done("export --dtype fp32 " + out + " " + (folder_ / "wide.safetensors"));
  EXPECT_EQ(ckpt("diff --model-only --tolerance 0 " + out + " " + (folder_ / "wide.safetensors")).exit_code,
            0);

  const std::string big =
      make("big", 1, 1, test::cut_rows, {WholeTensor::of<float>("x", {2, 2}, {1, 2, 70000, 3})});
  const Finished f = ckpt("export --dtype fp16 " + big + " " + (folder_ / "half.safetensors"));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err,
              AllOf(HasSubstr("'x' holds a value at [1, 0] that f16 cannot hold"), HasSubstr("--dtype")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "half.safetensors"));
}

TEST_F(CkptConvert, AFolderAsHuggingFaceReadsIt) {
  const std::string path = make("run", 3);
  expect_done("export --max-shard-size 200 " + path + " " + (folder_ / "hf/"));
  const json index = json::parse(read_bytes(folder_ / "hf/model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size"), 582);
  EXPECT_EQ(index.at("weight_map").size(), 8u);
  for (auto& [name, file] : index.at("weight_map").items()) {
    const SafetensorsReader reader(folder_ / ("hf/" + file.get<std::string>()));
    EXPECT_NE(reader.find(name), nullptr);
    EXPECT_LE(reader.entries().back().end, 200);
  }
  expect_same(path, folder_ / "hf", "--model-only");
  const Finished again = ckpt("export " + path + " " + (folder_ / "hf/"));
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, AllOf(StartsWith("sherd ckpt export: "), HasSubstr("name a new one")));
  EXPECT_EQ(ckpt("export " + path + " " + (folder_ / "none/out.safetensors")).exit_code, 1);
}

TEST_F(CkptConvert, ADamagedSourceLeavesNothing) {
  const std::string path = make("run", 2);
  const std::string file = "model/shard-00002-model-00001-of-00001.safetensors";
  flip(path + "/" + file, static_cast<int64_t>(std::filesystem::file_size(path + "/" + file)) - 1);
  std::filesystem::create_directory(folder_ / "out");
  for (const std::string& command : {"export " + path + " " + (folder_ / "out/a.safetensors"),
                                     "export " + path + " " + (folder_ / "out/hf"),
                                     "reshard --world 3 " + path + " " + (folder_ / "out/run")}) {
    const Finished f = ckpt(command);
    EXPECT_EQ(f.exit_code, 1) << command;
    EXPECT_THAT(f.err, HasSubstr(file)) << command;
  }
  EXPECT_THAT(names_in("out"), ElementsAre("run"));
  EXPECT_THAT(names_in("out/run"), ElementsAre("lock"));
}

TEST_F(CkptConvert, ImportedWeightsAreACheckpoint) {
  const std::string path = make("run", 3, 40, test::cut_flat);
  expect_done("export " + path + " " + (folder_ / "w.safetensors"));
  expect_done("export --max-shard-size 100B " + path + " " + (folder_ / "hf/"));
  int step = 0;
  for (const std::string& source : {folder_ / "w.safetensors", folder_ / "hf"}) {
    expect_done("import --step " + std::to_string(++step) + " " + source + " " + (folder_ / "new"));
    EXPECT_EQ(ckpt("verify " + (folder_ / "new")).exit_code, 0);
    expect_same(path, folder_ / "new", "--model-only");
  }
  expect_done("import " + path + "/optim/../model " + (folder_ / "dcp"));
  EXPECT_THAT(names_in("dcp"), UnorderedElementsAre("lock", "latest", "step_00000000"));
  const json j = json::parse(ckpt("inspect --json " + (folder_ / "new")).out);
  EXPECT_EQ(j.at("training").at("step"), 2);
  EXPECT_EQ(j.at("totals").at("optim").at("tensors"), 0);
  EXPECT_EQ(j.at("files").size(), 1u);
  EXPECT_THAT(names_in("new/step_00000002"), UnorderedElementsAre("manifest.binpb", "model"));

  const Finished taken = ckpt("import --step 2 " + (folder_ / "hf") + " " + (folder_ / "new"));
  EXPECT_EQ(taken.exit_code, 1);
  EXPECT_THAT(taken.err, HasSubstr("step_00000002 is there already"));
  const Finished itself = ckpt("import " + (folder_ / "hf") + " " + (folder_ / "hf"));
  EXPECT_EQ(itself.exit_code, 1);
  EXPECT_THAT(itself.err, HasSubstr("cannot become a save folder"));
  expect_same(path, folder_ / "hf", "--model-only");
  const Finished checkpoint = ckpt("import " + path + " " + (folder_ / "other"));
  EXPECT_EQ(checkpoint.exit_code, 1);
  EXPECT_THAT(checkpoint.err, HasSubstr("sherd ckpt reshard"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
}

TEST_F(CkptConvert, ImportLeavesOptimizerStateOut) {
  const std::string path = make("run", 1);
  expect_done("export --optim " + path + " " + (folder_ / "w.safetensors"));
  const Finished f = ckpt("import " + (folder_ / "w.safetensors") + " " + (folder_ / "new"));
  EXPECT_EQ(f.exit_code, 0);
  EXPECT_EQ(f.err, "sherd ckpt import: 3 tensors of optimizer state left out\n");
  expect_same(path, folder_ / "new", "--model-only");
  EXPECT_EQ(ckpt("import " + path + "/optim " + (folder_ / "none")).exit_code, 1);
}

TEST_F(CkptConvert, ReshardedThereAndBack) {
  const std::string path = make("run", 3, 40, test::cut_flat);
  std::string from = folder_ / "run";
  for (const int world : {5, 1, 16}) {
    const std::string to = folder_ / ("run" + std::to_string(world));
    const Finished f = ckpt("reshard --world " + std::to_string(world) + " " + from + " " + to);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(f.err, "");
    EXPECT_THAT(f.out,
                HasSubstr("step_00000040 committed: 11 tensors, 858 B, pieces of " + std::to_string(world)));
    EXPECT_EQ(ckpt("verify " + to).exit_code, 0);
    expect_same(path, to);
    expect_same(path + "/model", to + "/step_00000040/model");  // as other programs see it
    const json a = json::parse(ckpt("inspect --json " + path).out),
               b = json::parse(ckpt("inspect --json " + to).out);
    EXPECT_EQ(a.at("training"), b.at("training"));
    EXPECT_EQ(b.at("sequence"), 1);
    EXPECT_EQ(b.at("ranks").size(), std::min(world, 11));  // the longest tensors have 11 rows
    for (const json& t : b.at("tensors"))
      for (const json& p : t.at("pieces")) {
        const int64_t rows = t.at("shape")[0], some = p.at("size")[0];
        EXPECT_TRUE(some == rows / world || some == rows / world + 1) << t;
        for (size_t d = 1; d < p.at("offset").size(); ++d) EXPECT_EQ(p.at("offset")[d], 0) << t;
      }
    from = to;
  }
  const Finished f = ckpt("reshard --world 2 " + path + "/model " + (folder_ / "x"));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("sherd ckpt import"));
  EXPECT_THAT(ckpt("reshard --world 2 " + path + " " + (folder_ / "run")).err, HasSubstr("is there already"));
  expect_same(path, folder_ / "run1");  // and it is still what it was
}

TEST_F(CkptConvert, MoreThanABlock) {
  // Several checksum blocks and chunks; ranges end within both.
  const auto whole =
      std::vector{WholeTensor::random("x", {1023, 1031}, 9), WholeTensor::random("y", {700'001}, 8)};
  const std::string path = make("run", 3, 1, test::cut_flat, whole);
  expect_done("reshard --world 2 " + path + " " + (folder_ / "two"));
  expect_done("export " + (folder_ / "two") + " " + (folder_ / "x.safetensors"));
  const SafetensorsReader file(folder_ / "x.safetensors");
  for (auto& t : whole) EXPECT_TRUE(bytes_in(file, t.name) == t.bytes) << t.name;
  EXPECT_EQ(ckpt("verify " + (folder_ / "two")).exit_code, 0);
}

TEST_F(CkptConvert, PruneKeepsTheNewest) {
  for (const int64_t step : {30, 10, 20}) make("run", 1, step);
  const Finished f = ckpt("prune --keep 2 " + (folder_ / "run"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.out, "removed " + (folder_ / "run/step_00000030") + "\n1 removed, 2 checkpoints kept\n");
  EXPECT_THAT(names_in("run"), UnorderedElementsAre("lock", "latest", "step_00000010", "step_00000020"));
  EXPECT_EQ(ckpt("prune --keep 2 " + (folder_ / "run")).out, "0 removed, 2 checkpoints kept\n");
  for (const char* wrong : {"none", "run/step_00000010"}) {
    EXPECT_EQ(ckpt("prune --keep 1 " + (folder_ / wrong)).exit_code, 1);
    EXPECT_EQ(names_in("run").size(), 4u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  const CheckpointFolder busy(folder_ / "run", FileSystem::posix());
  const Finished locked = ckpt("prune --keep 1 " + (folder_ / "run"));
  EXPECT_EQ(locked.exit_code, 1);
  EXPECT_THAT(locked.err, AllOf(StartsWith("sherd ckpt prune: "), HasSubstr("another run")));
  EXPECT_EQ(names_in("run").size(), 4u);
}

}  // namespace
}  // namespace sherd::tools
