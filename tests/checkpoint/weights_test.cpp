// Weights go out whole, however a model was spread and whatever they are written as, and come back anywhere.
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <map>

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>

#include "support/message_of.h"
#include "support/pieces.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

const Spread kSpreads[] = {{},
                           {.tp = 2},
                           {.tp = 4, .experts = 4},
                           {.shard = 3, .tp = 2, .experts = 2},
                           {.replicas = 2, .shard = 2, .tp = 2, .experts = 4}};

void export_pieces(const Spread& spread, uint64_t seed, const fs::path& path,
                   const ExportOptions& options = {}) {
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread);
    model.wrap({}, {.seed = seed});
    export_weights(model, path, options);
  });
}

/// Returns the export of a model that imported `from`.
std::string imported(const Spread& spread, const fs::path& from, const TemporaryFolder& folder) {
  const auto again = folder / "again.safetensors";
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread);
    model.wrap({}, {.seed = 4});
    import_weights(model, from);
    export_weights(model, again);
  });
  return read_bytes(again);
}

std::vector<std::string> names_in(const fs::path& folder) { return FileSystem::posix().list(folder); }

/// The bytes of every tensor, by name.
std::map<std::string, std::string> tensors_in(const fs::path& file) {
  const SafetensorsReader reader(file);
  std::map<std::string, std::string> tensors;
  for (const SafetensorsEntry& e : reader.entries()) {
    std::string& bytes = tensors[e.name];
    bytes.resize(static_cast<size_t>(e.end - e.begin));
    reader.read(e, 0, numel_of(e.shape), bytes.data());
  }
  return tensors;
}

/// One parameter of chosen values, which fill all its rows.
class Line : public ModuleBase {
 public:
  explicit Line(Shape shape) { param("line", std::move(shape), constant(0)); }
};

void write_line(const fs::path& path, const Shape& shape, const std::vector<float>& values) {
  SafetensorsWriter writer(path, {{"line", DType::f32, shape}});
  writer.append(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
  writer.finish();
}

/// Values go in from one file and out into another.
void through_line(const fs::path& from, const fs::path& to, const Shape& shape,
                  const ExportOptions& options) {
  launch(3, [&](RankContext& r) {
    Line model(shape);
    fully_shard(model, DeviceMesh(r.world, {{"shard", 3}}));
    import_weights(model, from);
    export_weights(model, to, options);
  });
}

TEST(Weights, TheFileDoesNotShowHowTheModelWasSpread) {
  const TemporaryFolder folder;
  std::string want;
  for (const Spread& spread : kSpreads) {
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
        const auto path = folder / "w.safetensors";
        launch(spread.ranks(), [&](RankContext& r) {
          Pieces model(r, spread);
          model.wrap({.strategy = strategy, .outer = Outer::optim, .layout = layout}, {.seed = 3});
          export_weights(model, path);
        });
        if (want.empty()) {
          want = read_bytes(path);
          EXPECT_EQ(SafetensorsReader(path).find("qkv")->shape, (Shape{24, 5}));
          EXPECT_EQ(SafetensorsReader(path).find("experts.up")->shape, (Shape{4, 3, 2}));
        }
        EXPECT_TRUE(read_bytes(path) == want) << spread.ranks() << " ranks, tp " << spread.tp;
      }
    }
  }
}

TEST(Weights, EveryRankReadsItsPieces) {
  const TemporaryFolder folder;
  export_pieces({}, 3, folder / "first.safetensors");
  const std::string first = read_bytes(folder / "first.safetensors");
  for (const Spread& spread : kSpreads)
    EXPECT_TRUE(imported(spread, folder / "first.safetensors", folder) == first)
        << spread.ranks() << " ranks, tp " << spread.tp;
}

// ---- folders

TEST(Weights, AFolderOfShardsHasTheFilesTensors) {
  const TemporaryFolder folder;
  export_pieces({}, 3, folder / "w.safetensors", {.metadata = {{"made by", "a test"}}});
  const auto whole = tensors_in(folder / "w.safetensors");
  for (const Spread& spread : kSpreads) {
    const fs::path out = folder / ("out" + std::to_string(spread.ranks()) + std::to_string(spread.tp));
    // qkv has 480 bytes, columns 224, rows 96, whole 36, ones 12, experts.up 96.
    export_pieces(spread, 3, out / "", {.max_shard_bytes = 240, .metadata = {{"made by", "a test"}}});
    std::vector<std::string> names = names_in(out);
    ASSERT_GE(names.size(), 4u);
    ASSERT_EQ(names.back(), "model.safetensors.index.json");
    names.pop_back();
    const auto index = nlohmann::json::parse(read_bytes(out / "model.safetensors.index.json"));
    EXPECT_EQ(index.at("metadata").at("total_size"), 480 + 224 + 96 + 36 + 12 + 96);
    EXPECT_EQ(index.at("weight_map").size(), whole.size());
    std::map<std::string, std::string> all;
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(names[i], "model-0000" + std::to_string(i + 1) + "-of-0000" + std::to_string(names.size()) +
                              ".safetensors");
      const auto tensors = tensors_in(out / names[i]);
      size_t bytes = 0;
      for (auto& [name, data] : tensors) {
        EXPECT_EQ(index["weight_map"][name], names[i]) << name;
        all[name] = data;
        bytes += data.size();
      }
      EXPECT_TRUE(bytes <= 240 || tensors.size() == 1) << bytes;
      EXPECT_EQ(SafetensorsReader(out / names[i]).metadata(),
                (std::map<std::string, std::string>{{"format", "pt"}, {"made by", "a test"}}));
    }
    EXPECT_TRUE(all == whole);
  }
}

TEST(Weights, AFolderOfOneShardNeedsNoIndex) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "out");  // an empty folder is as good as none
  export_pieces({.tp = 2}, 3, folder / "out/");
  export_pieces({.tp = 2}, 3, folder / "w.safetensors");
  EXPECT_THAT(names_in(folder / "out"), ElementsAre("model.safetensors"));
  EXPECT_TRUE(read_bytes(folder / "out/model.safetensors") == read_bytes(folder / "w.safetensors"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("out", "w.safetensors"));
}

TEST(Weights, NothingIsWrittenOver) {
  const TemporaryFolder folder;
  folder.write("full/other.txt", "keep");
  folder.write("file", "keep");
  const auto refusal = [&](const std::string& path) {
    const std::string early = message_of<IoError>([&] { check_export_path(path); });
    const std::string late = message_of<IoError>([&] { export_pieces({.tp = 2}, 3, path); });
    EXPECT_THAT(late, HasSubstr(early));
    return early;
  };
  EXPECT_THAT(refusal(folder / "full"), AllOf(HasSubstr(folder / "full"), HasSubstr("not empty")));
  EXPECT_THAT(refusal(folder / "file/"), HasSubstr("not a folder"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal("."), HasSubstr("name a file"));
  EXPECT_THAT(refusal(""), HasSubstr("name a file"));
  check_export_path(folder / "new/");
  check_export_path(folder / "new.safetensors");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("file", "full"));
  EXPECT_THAT(names_in(folder / "full"), ElementsAre("other.txt"));
  EXPECT_EQ(read_bytes(folder / "file"), "keep");
}

TEST(Weights, EveryRankKnowsWhatBecameOfThem) {
  const TemporaryFolder folder;
  launch(3, [&](RankContext& r) {
    Pieces model(r, {.shard = 3});
    model.wrap({}, {.seed = 3});
    EXPECT_THAT(message_of<IoError>([&] { export_weights(model, "/dev/null"); }),
                HasSubstr("not a regular file"))
        << r.world->rank();
    export_weights(model, folder / "w.safetensors");
    EXPECT_TRUE(fs::exists(folder / "w.safetensors"))
        << "rank " << r.world->rank() << " went on before it was there";
  });
}

// ---- element types

TEST(Weights, SixteenBitsAreRoundedToNearestTiesToEven) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Case {
    float value;
    uint16_t bf16_bits, f16_bits;
  };
  const Case cases[] = {
      {0.0f, 0x0000, 0x0000},
      {-0.0f, 0x8000, 0x8000},
      {1.0f, 0x3f80, 0x3c00},
      {-2.5f, 0xc020, 0xc100},
      {1 + 0x1p-8f, 0x3f80, 0x3c04},             // bf16: a tie, down to even
      {1 + 3 * 0x1p-8f, 0x3f82, 0x3c0c},         // bf16: a tie, up to even
      {1 + 0x1p-8f + 0x1p-20f, 0x3f81, 0x3c04},  // just above the tie
      {1 + 0x1p-11f, 0x3f80, 0x3c00},            // f16: a tie, down to even
      {1 + 3 * 0x1p-11f, 0x3f80, 0x3c02},        // f16: a tie, up to even
      {65504.0f, 0x4780, 0x7bff},                // the largest f16
      {65519.996f, 0x4780, 0x7bff},              // rounds to it
      {0x1p-14f, 0x3880, 0x0400},                // the smallest normal f16
      {0x1p-24f, 0x3380, 0x0001},                // the smallest f16
      {0x1p-25f, 0x3300, 0x0000},                // half of it, down to even
      {-3 * 0x1p-25f, 0xb3c0, 0x8002},           // one and a half, up to even
      {0x1p-126f, 0x0080, 0x0000},               // the smallest normal f32
      {kInf, 0x7f80, 0x7c00},
      {-kInf, 0xff80, 0xfc00},
  };
  const int64_t count = std::size(cases);
  std::vector<float> values;
  std::string want_bf16, want_f16;
  for (const Case& c : cases) {
    values.push_back(c.value);
    want_bf16.append(reinterpret_cast<const char*>(&c.bf16_bits), 2);
    want_f16.append(reinterpret_cast<const char*>(&c.f16_bits), 2);
  }
  const TemporaryFolder folder;
  write_line(folder / "in.safetensors", {count}, values);
  for (const auto& [dtype, want] : {std::pair(DType::bf16, want_bf16), std::pair(DType::f16, want_f16)}) {
    const auto out = folder / "out.safetensors";
    through_line(folder / "in.safetensors", out, {count}, {.dtype = dtype});
    EXPECT_EQ(SafetensorsReader(out).find("line")->dtype, dtype);
    EXPECT_TRUE(tensors_in(out)["line"] == want) << name_of(dtype);
    // Exported weights are imported unchanged, and exported again.
    through_line(out, folder / "again.safetensors", {count}, {.dtype = dtype});
    EXPECT_TRUE(read_bytes(folder / "again.safetensors") == read_bytes(out)) << name_of(dtype);
  }
  // NaN stays NaN.
  write_line(folder / "nan.safetensors", {1}, {std::numeric_limits<float>::quiet_NaN()});
  through_line(folder / "nan.safetensors", folder / "n.safetensors", {1}, {.dtype = DType::f16});
  f16 nan;
  std::memcpy(&nan, tensors_in(folder / "n.safetensors")["line"].data(), sizeof nan);
  EXPECT_TRUE(std::isnan(static_cast<float>(nan)));
}

TEST(Weights, LargeTensorsAreRoundedChunkByChunk) {
  const Shape shape = {3, 50000};
  std::vector<float> values(150000);
  std::string want;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(0.1f * static_cast<float>(i));
    const bf16 rounded(values[i]);
    want.append(reinterpret_cast<const char*>(&rounded), sizeof rounded);
  }
  const TemporaryFolder folder;
  write_line(folder / "in.safetensors", shape, values);
  through_line(folder / "in.safetensors", folder / "out.safetensors", shape, {.dtype = DType::bf16});
  EXPECT_TRUE(tensors_in(folder / "out.safetensors")["line"] == want);
}

TEST(Weights, WhatADtypeCannotHoldIsNamed) {
  const TemporaryFolder folder;
  write_line(folder / "in.safetensors", {2, 3}, {1, 2, 3, 4, -65520, 6});
  for (const char* name : {"out/", "out.safetensors"}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  through_line(folder / "in.safetensors", folder / name, {2, 3}, {.dtype = DType::f16});
                }),
                AllOf(HasSubstr("'line'"), HasSubstr("-65520"), HasSubstr("[1, 1]"), HasSubstr("f16")));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("in.safetensors"));
  write_line(folder / "in.safetensors", {1}, {std::numeric_limits<float>::max()});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                through_line(folder / "in.safetensors", folder / "out", {1}, {.dtype = DType::bf16});
              }),
              HasSubstr("bf16"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                through_line(folder / "in.safetensors", folder / "out", {1}, {.dtype = DType::i32});
              }),
              HasSubstr("i32"));
}

// ---- everything that is read

/// Saves the model as a checkpoint does, with an optimizer state beside it.
void save_pieces(const Spread& spread, uint64_t seed, const std::string& folder) {
  launch(spread.ranks(), [&](RankContext& r) {
    Pieces model(r, spread);
    model.wrap({}, {.seed = seed});
    auto tensors = checkpoint_tensors(model, nullptr);
    LocalTensor state{.name = "optim.state.whole.step",
                      .section = Section::optim,
                      .shape = {1},
                      .boxes = {},
                      .data = {},
                      .value = [] { return 1.0f; }};
    if (r.world->rank() == 0) state.boxes.push_back({{0}, {1}});
    tensors.push_back(state);
    CheckpointSaver saver(r.world, std::move(tensors), {.folder = folder});
    saver.save({.step = 1});
  });
}

TEST(Weights, CheckpointsAreRead) {
  const TemporaryFolder folder;
  for (const Spread& from : {Spread{.shard = 3}, Spread{.shard = 3, .tp = 2, .experts = 2}}) {
    export_pieces(from, 3, folder / "want.safetensors");
    const std::string saved = folder / ("saved" + std::to_string(from.tp));
    save_pieces(from, 3, saved);
    for (const Spread& to : kSpreads) {
      for (const char* part : {"", "model"})
        EXPECT_TRUE(imported(to, fs::path(saved) / "step_00000001" / part, folder) ==
                    read_bytes(folder / "want.safetensors"))
            << "'" << part << "' on " << to.ranks() << " ranks";
    }
    const std::string refused =
        message_of<InvalidArgument>([&] { imported({}, saved + "/step_00000001/optim", folder); });
    EXPECT_THAT(refused, AllOf(HasSubstr("missing"), HasSubstr("qkv"), HasSubstr("experts.up")));
  }
}

/// A file of a folder of pieces, as PyTorch's distributed writer makes them.
void write_pieces(const fs::path& path, DType dtype, const std::map<std::string, Box>& pieces,
                  const std::vector<float>& values) {
  std::vector<SafetensorsSpec> specs;
  nlohmann::json offsets;
  for (auto& [name, box] : pieces) {
    specs.push_back({name, dtype, box.size});
    offsets[name] = {{"saved_offsets", box.offset}};
  }
  SafetensorsWriter writer(path, specs, {{"DCP_SHARDING_INFO", offsets.dump()}});
  for (const float value : values) {
    const bf16 half(value);
    writer.append(dtype == DType::bf16 ? static_cast<const void*>(&half) : &value, size_of(dtype));
  }
  writer.finish();
}

TEST(Weights, PiecesOfPyTorchAreRead) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const fs::path from = folder / name_of(dtype);
    fs::create_directory(from);
    write_pieces(from / "shard-00001-model-00001-of-00001.safetensors", dtype, {{"line", {{0, 0}, {2, 3}}}},
                 {0, 1, 2, 10, 11, 12});
    write_pieces(from / "shard-00002-model-00001-of-00001.safetensors", dtype, {{"line", {{0, 3}, {2, 1}}}},
                 {3, 13});
    write_pieces(from / "shard-00003-model-00001-of-00001.safetensors", dtype, {{"line", {{0, 4}, {2, 0}}}},
                 {});
    through_line(from, folder / "out.safetensors", {2, 4}, {});
    const std::vector<float> want = {0, 1, 2, 3, 10, 11, 12, 13};
    EXPECT_EQ(tensors_in(folder / "out.safetensors")["line"],
              std::string(reinterpret_cast<const char*>(want.data()), want.size() * sizeof(float)));
    // PyTorch would leave the hole as it finds it.
    fs::remove(from / "shard-00001-model-00001-of-00001.safetensors");
    EXPECT_THAT(message_of<CorruptCheckpoint>([&] {
                  through_line(from, folder / "out.safetensors", {2, 4}, {});
                }),
                HasSubstr("line"));
  }
}

TEST(Weights, EverythingThatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const SafetensorsSpec good[] = {{"qkv", DType::f32, {24, 5}}, {"whole", DType::bf16, {9}}};
  const std::vector<SafetensorsSpec> bad = {
      {"rows", DType::f32, {3, 8}}, {"ones", DType::i32, {3}}, {"stranger", DType::f32, {2}}};
  std::vector<SafetensorsSpec> all(good, std::end(good));
  all.insert(all.end(), bad.begin(), bad.end());
  fs::create_directory(folder / "hf");
  for (const std::string path : {"one.safetensors", "hf/model.safetensors"}) {
    SafetensorsWriter writer(folder / path, all);
    const std::vector<char> zeros(24 * 5 * 4 + 9 * 2 + 24 * 4 + 3 * 4 + 2 * 4);
    writer.append(zeros.data(), static_cast<int64_t>(zeros.size()));
    writer.finish();
  }
  for (const char* from : {"one.safetensors", "hf"}) {
    for (const Spread& spread : {Spread{}, Spread{.shard = 3, .tp = 2, .experts = 2}}) {
      EXPECT_THAT(
          message_of<InvalidArgument>([&] { imported(spread, folder / from, folder); }),
          AllOf(HasSubstr(folder / from), HasSubstr("columns"), HasSubstr("experts.up"),
                HasSubstr("'rows' has shape [3, 8] where the run has [8, 3]"), HasSubstr("'ones' is i32"),
                HasSubstr("stranger"), Not(HasSubstr("qkv")), Not(HasSubstr("whole"))));
    }
  }
  EXPECT_THAT(message_of<IoError>([&] { imported({.tp = 2}, folder / "missing", folder); }),
              HasSubstr(folder / "missing"));
}

}  // namespace
}  // namespace sherd::test
