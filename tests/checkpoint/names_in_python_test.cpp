// Names and shapes in files are those of Python's state_dict(): tied tensors under each name, scalars without dimensions.

#include <fmt/format.h>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>

#include "support/make_checkpoint.h"
#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsSupersetOf;

// A table that is the head as well, a scalar parameter, and statistics that two modules share. `swapped`: the head comes first.
struct TiedNet : ModuleBase {
  struct Part : ModuleBase {
    using ModuleBase::buffer;
    using ModuleBase::param;
    using ModuleBase::tie;
  };
  explicit TiedNet(bool swapped = false) {
    Part &first = swapped ? head : tok, &second = swapped ? tok : head;
    child(swapped ? "head" : "tok", first);
    child(swapped ? "tok" : "head", second);
    second.tie("weight", first.param("weight", {5, 3}, normal(1)));
    scale = param("scale", {}, normal(1));
    count = buffer("count", {}, DType::i64, constant(3));
    second.tie("mean", first.buffer("mean", {4}, DType::f32, constant(0.5f)));
    weight = first.own_parameters()[0];
  }
  Part tok, head;
  Parameter weight, scale;
  Buffer count;
};

const char* const kNames[] = {"count", "head.mean", "head.weight", "scale", "tok.mean", "tok.weight"};

fs::path save(const fs::path& folder, int ranks, const fs::path& exported = {}) {
  launch(ranks, [&](RankContext& r) {
    TiedNet model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, mesh_of(r), {}, {.seed = 8});
    Optimizer optimizer(model, routing, {});
    CheckpointSaver saver(r.world, checkpoint_tensors(model, &optimizer), {.folder = folder});
    saver.save({.step = 4});
    if (!exported.empty()) export_weights(model, exported);
  });
  return folder / "step_00000004";
}

std::vector<float> values_of(CheckpointReader& reader, const std::string& name) {
  const CheckpointTensor* t = reader.find(Section::model, name);
  if (t == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(numel_of(t->shape)));
  const Box all{Shape(t->shape.size(), 0), t->shape};
  reader.read(*t, {&all, 1}, values.data());
  return values;
}

TEST(NamesInPython, ScalarsHaveNoDimensionsInTheFilesOfACheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = save(folder / "run", 3);
  std::vector<std::string> seen;
  for (const std::string& file : FileSystem::posix().list(path / "model")) {
    const SafetensorsReader reader(path / "model" / file);
    const auto offsets = saved_offsets(reader);
    for (const char* name : {"scale", "count"}) {
      const SafetensorsEntry* e = reader.find(name);
      if (e == nullptr) continue;
      seen.emplace_back(name);
      EXPECT_EQ(e->shape, Shape{}) << name;
      EXPECT_EQ(e->global_shape, Shape{}) << name;
      EXPECT_EQ(offsets.at(name), Shape{}) << name;
    }
  }
  EXPECT_THAT(seen, ::testing::UnorderedElementsAre("scale", "count"));
  EXPECT_THAT(verify_checkpoint(path), IsEmpty());
  EXPECT_EQ(CheckpointReader::open(path).find(Section::model, "scale")->stored_shape(), Shape{});
  EXPECT_EQ(scan_safetensors(path / "model").find(Section::model, "scale")->stored_shape(), Shape{});
}

TEST(NamesInPython, WhatIsTiedIsSavedAndExportedUnderEachOfItsNames) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 4}) {
    const fs::path exported = folder / fmt::format("{}.safetensors", ranks);
    const fs::path path = save(folder / std::to_string(ranks), ranks, exported);
    EXPECT_THAT(verify_checkpoint(path), IsEmpty());
    for (const fs::path& from : {path, path / "model", exported}) {
      CheckpointReader reader = CheckpointReader::open(from);
      std::vector<std::string> names;
      for (const CheckpointTensor& t : reader.manifest().tensors)
        if (t.section == Section::model) names.push_back(t.name);
      EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(kNames)) << from;
      EXPECT_EQ(values_of(reader, "head.weight"), values_of(reader, "tok.weight")) << from;
      EXPECT_THAT(values_of(reader, "head.mean"), ElementsAre(0.5f, 0.5f, 0.5f, 0.5f)) << from;
    }
    CheckpointReader reader = CheckpointReader::open(path);
    const std::vector<float> want = values_of(reader, "tok.weight");
    for (const int others : {1, 2, 7})
      launch(others, [&](RankContext& r) {
        // The optimizer's state is found under the other name, too.
        for (const bool swapped : {false, true}) {
          TiedNet model(swapped);
          const Routing routing = route(model, {.optimizer = Algorithm::adamw});
          fully_shard(model, mesh_of(r), {}, {.seed = 9});
          Optimizer optimizer(model, routing, {});
          resume(path, model, &optimizer);
          const StateDict all = state_dict(model, nullptr, DictKind::on_all);
          EXPECT_THAT(all.model.at(swapped ? "head.weight" : "tok.weight").values<float>(),
                      ::testing::ElementsAreArray(want));
          TiedNet again(swapped);
          fully_shard(again, mesh_of(r), {}, {.seed = 9});
          EXPECT_THAT(import_weights(again, exported).unexpected, IsEmpty());
          import_weights(again, exported, StoredForms{});
          load_state_dict(again, nullptr, all, DictKind::on_all, {.optimizer = false});
        }
      });
  }
}

TEST(NamesInPython, OneNameOfATiedTensorIsEnoughAndTwoHaveToAgree) {
  const TemporaryFolder folder;
  const auto tensors = [](const std::vector<std::string>& names, bool equal = true) {
    std::vector<WholeTensor> all{WholeTensor::random("scale", {1}, 1),
                                 WholeTensor::of<int64_t>("count", {1}, {6}),
                                 WholeTensor::random("head.mean", {4}, 3)};
    for (const std::string& name : names) all.push_back(WholeTensor::random(name, {5, 3}, 2));
    if (!equal) all.back().bytes[33] ^= 1;
    return all;
  };
  // Saved as by earlier versions: [1] instead of a scalar, one name.
  auto old = tensors({"tok.weight"});
  old.back().tied = {"head.weight"};
  const fs::path paths[] = {make_checkpoint(folder / "old", 2, old),
                            make_checkpoint(folder / "other", 2, tensors({"head.weight"})),
                            make_checkpoint(folder / "both", 3, tensors({"head.weight", "tok.weight"}))};
  const fs::path apart = make_checkpoint(folder / "apart", 3, tensors({"head.weight", "tok.weight"}, false));
  launch(3, [&](RankContext& r) {
    TiedNet model;
    fully_shard(model, mesh_of(r), {}, {.seed = 9});
    for (const fs::path& path : paths) {
      CheckpointReader reader = CheckpointReader::open(path);
      const bool first = reader.find(Section::model, "tok.weight") != nullptr;
      import_weights(model, path);
      const StateDict dict = state_dict(model, nullptr, DictKind::on_all);
      EXPECT_THAT(dict.model.at("tok.weight").values<float>(),
                  ::testing::ElementsAreArray(values_of(reader, first ? "tok.weight" : "head.weight")));
      import_weights(model, path, StoredForms{});
    }
    const StateDict before = state_dict(model, nullptr, DictKind::on_all);
    try {
      import_weights(model, apart);
      ADD_FAILURE() << "two values for one tensor were taken";
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(),
                  AllOf(HasSubstr("'tok.weight'"), HasSubstr("'head.weight'"), HasSubstr("not tied")));
    }
    EXPECT_THAT(state_dict(model, nullptr, DictKind::on_all).model.at("tok.weight").values<float>(),
                ::testing::ElementsAreArray(before.model.at("tok.weight").values<float>()));
    StateDict two = before;
    two.model["head.weight"] = two.model.at("tok.weight");
    load_state_dict(model, nullptr, two, DictKind::on_all, {.optimizer = false});
    two.model["head.weight"].data[0] ^= std::byte{1};
    EXPECT_THROW(load_state_dict(model, nullptr, two, DictKind::on_all, {.optimizer = false}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace sherd::test
