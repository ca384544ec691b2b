// Buffers in checkpoints and exported weights, and loading models that have changed.

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>

#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

struct Kept : ModuleBase {
  explicit Kept(bool with_buffers = true, bool more = false) {
    weight = param("weight", {7, 3}, normal(1));
    if (more) late = param("late", {2}, constant(9));
    if (!with_buffers) return;
    table =
        buffer("table", {3, 5}, DType::f32, from_function([](int64_t i) { return static_cast<float>(i); }));
    half = buffer("half", {3}, DType::bf16, constant(0.5f));
    count = buffer("count", {}, DType::i64, constant(0));
    bytes = buffer("bytes", {5}, DType::u8, constant(200));
    cache = buffer("cache", {4}, DType::f32, constant(1), false);
    buffer("none", {0, 2}, DType::f32, constant(1));
  }
  Parameter weight, late;
  Buffer table, half, count, bytes, cache;
};

void set_count(Kept& model, int64_t n) {
  Stream& s = model.count.data().device().compute();
  ops::copy_from_host(s, model.count.data(), &n, 8);
}
int64_t count_of(Kept& model) {
  int64_t n = 0;
  ops::copy_to_host(model.count.data().device().compute(), &n, model.count.data());
  return n;
}

fs::path save(const fs::path& folder, int ranks, const std::function<void(Kept&, int rank)>& change,
              bool with_buffers = true, bool async = false) {
  launch(ranks, [&](RankContext& r) {
    Kept model(with_buffers);
    fully_shard(model, mesh_of(r), {}, {.seed = 8});
    if (change) change(model, r.world->rank());
    CheckpointSaver saver(r.world, checkpoint_tensors(model, nullptr), {.folder = folder, .async = async});
    saver.save({.step = 4});
    saver.wait();
  });
  return folder / "step_00000004";
}

TEST(BufferCheckpoints, WorldRankZerosValuesComeBackOnEveryRank) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    const auto path = save(
        folder / "run", 3,
        [](Kept& model, int rank) {
          set_count(model, (int64_t{1} << 50) + rank);
          Stream& s = model.table.data().device().compute();
          ops::fill(s, model.table.data(), 10 + rank);
          ops::fill(s, model.cache.data(), 77);
        },
        true, async);
    EXPECT_THAT(verify_checkpoint(path), IsEmpty());
    const CheckpointReader reader = CheckpointReader::open(path);
    EXPECT_EQ(reader.find(Section::model, "count")->dtype, DType::i64);
    EXPECT_EQ(reader.find(Section::model, "cache"), nullptr);
    for (const int ranks : {1, 2, 5})
      launch(ranks, [&](RankContext& r) {
        Kept model;
        fully_shard(model, mesh_of(r), {}, {.seed = 9});
        resume(path, model, nullptr, {.optimizer = false});
        EXPECT_EQ(count_of(model), int64_t{1} << 50);
        Stream& s = r.device->compute();
        EXPECT_THAT(ops::to_floats(s, model.table.data()), ::testing::Each(10));
        EXPECT_THAT(ops::to_floats(s, model.half.data()), ElementsAre(0.5f, 0.5f, 0.5f));
        EXPECT_THAT(ops::to_floats(s, model.cache.data()), ::testing::Each(1)) << "not persistent";
      });
  }
}

TEST(BufferCheckpoints, OldCheckpointsSayWhatTheyLackOrAreTakenOnRequest) {
  const TemporaryFolder folder;
  const auto path = save(folder / "run", 2, nullptr, false);
  launch(3, [&](RankContext& r) {
    Kept model(true, true);
    fully_shard(model, mesh_of(r), {}, {.seed = 9});
    set_count(model, 5);
    try {
      resume(path, model, nullptr, {.optimizer = false});
      ADD_FAILURE() << "it fits";
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("missing in it"), HasSubstr("late"), HasSubstr("table"),
                                  HasSubstr("count")));
    }
    const LoadReport report =
        resume(path, model, nullptr, {.optimizer = false, .allow_missing = true}).report;
    EXPECT_THAT(report.missing, ElementsAre("late", "table", "half", "count", "bytes", "none"));
    EXPECT_THAT(report.unexpected, IsEmpty());
    EXPECT_EQ(count_of(model), 5) << "keeps its value";
  });
}

TEST(BufferCheckpoints, UnusedTensorsAreNamedOrLeftOutOnRequest) {
  const TemporaryFolder folder;
  const auto path = save(folder / "run", 2, nullptr);
  launch(2, [&](RankContext& r) {
    Kept model(false);
    fully_shard(model, mesh_of(r));
    try {
      resume(path, model, nullptr, {.optimizer = false});
      ADD_FAILURE() << "it fits";
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("unknown to the run"), HasSubstr("table")));
    }
    EXPECT_EQ(
        resume(path, model, nullptr, {.optimizer = false, .allow_unexpected = true}).report.unexpected.size(),
        5u);
  });
}

TEST(BufferCheckpoints, WeightsAreExportedWithThemAndImported) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto path = folder / (std::string(name_of(dtype)) + ".safetensors");
    launch(3, [&](RankContext& r) {
      Kept model;
      fully_shard(model, mesh_of(r), {}, {.seed = 8});
      set_count(model, 123 + r.world->rank());
      export_weights(model, path, {.dtype = dtype});
    });
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.find("weight")->dtype, dtype);
    EXPECT_EQ(reader.find("table")->dtype, DType::f32) << "buffers keep their dtype";
    EXPECT_EQ(reader.find("count")->shape, Shape{});
    EXPECT_EQ(reader.find("cache"), nullptr);
    for (const SafetensorsEntry& e : reader.entries()) EXPECT_EQ(e.begin % size_of(*e.dtype), 0) << e.name;
    launch(2, [&](RankContext& r) {
      Kept model;
      fully_shard(model, mesh_of(r), {}, {.seed = 9});
      import_weights(model, path);
      EXPECT_EQ(count_of(model), 123);
      EXPECT_THAT(ops::to_floats(r.device->compute(), model.half.data()), ElementsAre(0.5f, 0.5f, 0.5f));
      Kept changed(false);
      fully_shard(changed, mesh_of(r));
      EXPECT_EQ(import_weights(changed, path, {.allow_unexpected = true}).unexpected.size(), 5u);
    });
  }
}

}  // namespace
}  // namespace sherd::test
