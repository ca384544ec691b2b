// The example of FORMAT.md, section 6, byte for byte.
#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <map>
#include <regex>

#include <gtest/gtest.h>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/save_plan.h>

#include "support/hand_written.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

/// Files of the example by the names above their bytes: lines of an offset and bytes follow, other text after
/// two spaces is a remark.
std::map<std::string, std::string> example() {
  std::ifstream document(FORMAT_DOCUMENT);
  std::map<std::string, std::string> files;
  std::string* file = nullptr;
  bool in_example = false;
  static const std::regex name("^`([^`]+)`.*:$"),
      bytes("^    ([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$");
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("## ")) in_example = line == "## 6. Example";
    std::smatch match;
    if (!in_example) continue;
    if (std::regex_match(line, match, name)) file = &files[match[1]];
    if (file == nullptr || !std::regex_match(line, match, bytes)) continue;
    EXPECT_EQ(std::stoul(match[1], nullptr, 16), file->size()) << line;
    const std::string digits = match[2];
    for (size_t i = 0; i < digits.size(); i += 3)
      file->push_back(static_cast<char>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return files;
}

std::string bytes_of(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

/// Checkpoint of two ranks, by the code that saves.
struct Saved {
  std::shared_ptr<Device> device = make_cpu_device();
  Manifest manifest;
  std::map<std::string, std::string> files;
  PartMerger merger;

  Saved() {
    const Tensor row = Tensor::empty(*device, {3}, DType::f32, "test");
    add(0,
        {{"w", Section::model, DType::f32, {2, 3}, {{{0, 0}, {1, 3}}}, row},
         {"optim.state.w.step", Section::optim, DType::f32, {1}, {{{0}, {1}}}, {}, [] { return 100.0f; }}},
        {{"w", {0, 1, 2}}, {"optim.state.w.step", {100}}});
    add(1, {{"w", Section::model, DType::f32, {2, 3}, {{{1, 0}, {1, 3}}}, row}}, {{"w", {3, 4, 5}}});
    manifest = merger.take();
    manifest.sequence = 7;
    manifest.training = {100, 800, 42, {{"muon.momentum", "ema"}}};
  }

  void add(int rank, const std::vector<LocalTensor>& tensors,
           const std::map<std::string, std::vector<float>>& values) {
    std::vector<PlannedFile> plan = plan_files(rank, tensors);
    for (PlannedFile& file : plan) {
      std::string bytes = file.header;
      for (const PlannedEntry& entry : file.entries) bytes += bytes_of(values.at(tensors[entry.tensor].name));
      test::set_checksums(file.record, bytes);
      files[file.record.path] = bytes;
    }
    merger.add(part_of(plan, tensors));
  }
};

TEST(Format, ExampleIsWhatIsWritten) {
  const auto files = example();
  const Saved saved;
  ASSERT_EQ(files.size(), 2u);
  for (const auto& [name, bytes] : files)
    EXPECT_EQ(bytes, name == "manifest.binpb" ? encode_manifest(saved.manifest) : saved.files.at(name))
        << name;
}

TEST(Format, ExampleIsRead) {
  const TemporaryFolder folder;
  for (const auto& [name, bytes] : Saved().files) folder.write(name, bytes);
  for (const auto& [name, bytes] : example()) folder.write(name, bytes);
  EXPECT_TRUE(verify_checkpoint(folder.path()).empty());

  const SafetensorsReader file(folder / "model/shard-00002-model-00001-of-00001.safetensors");
  ASSERT_EQ(file.entries().size(), 1u);
  EXPECT_EQ(file.entries()[0].global_shape, (Shape{2, 3}));
  EXPECT_EQ(saved_offsets(file).at("w"), (Shape{1, 0}));

  auto reader = CheckpointReader::open(folder.path());
  EXPECT_EQ(reader.manifest().sequence, 7u);
  EXPECT_EQ(reader.manifest().training, (TrainingState{100, 800, 42, {{"muon.momentum", "ema"}}}));
  std::array<float, 6> w{};
  reader.read(*reader.find(Section::model, "w"), std::vector<Box>{{{0, 0}, {2, 3}}}, w.data());
  EXPECT_EQ(w, (std::array<float, 6>{0, 1, 2, 3, 4, 5}));
  float step = 0;
  reader.read(*reader.find(Section::optim, "optim.state.w.step"), std::vector<Box>{{{0}, {1}}}, &step);
  EXPECT_EQ(step, 100);
}

}  // namespace
}  // namespace sherd
