// Weights in other programs' files: every rank reads what it holds and no more, and what goes in comes out.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include <sherd/checkpoint/saver.h>

#include "support/message_of.h"
#include "support/stored_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

// ---- what is read

TEST(StoredWeights, EveryRankReadsWhatItHoldsAndNoMore) {
  const TemporaryFolder folder;
  const StoredSizes n{.vocab = 12, .dim = 8, .experts = 4, .hidden = 5};
  std::mt19937_64 random(1);
  for (const std::string dtype : {"F32", "BF16", "F16"}) {
    for (const bool fused : {false, true}) {
      const std::string name = dtype + (fused ? "fused" : "");
      write_folder(folder, name, file_tensors(n, fused, dtype, random), 3);
      for (const Spread& spread : kStoredSpreads) {
        for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
          const Through outcome = through(spread, n, folder / name, {}, strategy);
          for (size_t r = 0; r < outcome.held.size(); ++r)
            EXPECT_EQ(outcome.reports[r].counts.bytes_read, outcome.held[r] * (dtype == "F32" ? 4 : 2))
                << name << ", rank " << r << " of " << outcome.held.size();
        }
      }
    }
  }
}

TEST(StoredWeights, WhatBelongsToNoParameterIsIgnoredAndSaid) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(2);
  auto tensors = file_tensors(n, false, "BF16", random);
  tensors.push_back({"transformer.h.0.attn.bias", "BOOL", {1, 1, 3, 3}, std::string(9, '\1')});
  tensors.push_back({"transformer.h.0.rotary.inv_freq", "F32", {2}, std::string(8, '\2')});
  const auto table = std::find_if(tensors.begin(), tensors.end(),
                                  [](const FileTensor& t) { return t.name == "transformer.wte.weight"; });
  tensors.push_back({"lm_head.weight", "BF16", table->shape, table->bytes});
  write_folder(folder, "in", tensors, 2);
  for (const Spread& spread : kStoredSpreads) {
    const fs::path out = folder / ("out" + std::to_string(spread.ranks()));
    const Through outcome = through(spread, n, folder / "in", out);
    for (const LoadReport& report : outcome.reports)
      EXPECT_THAT(report.ignored, ElementsAre("lm_head.weight", "transformer.h.0.attn.bias",
                                              "transformer.h.0.rotary.inv_freq"));
    // They are written back, the tied head from the table.
    EXPECT_EQ(contents(out), contents(folder / "in"));
  }
}

TEST(StoredWeights, NamesMayLackThePrefix) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(3);
  for (const bool fused : {false, true}) {
    auto tensors = file_tensors(n, fused, "F32", random);
    for (FileTensor& t : tensors) t.name = t.name.substr(std::string("transformer.").size());
    tensors.push_back({"h.0.attn.bias", "U8", {2}, "ab"});
    const std::string in = fused ? "fused" : "single";
    write_folder(folder, in, tensors);
    through({.shard = 2}, n, folder / in, folder / (in + ".out"));
    EXPECT_EQ(contents(folder / (in + ".out")), contents(folder / in));
  }
}

TEST(StoredWeights, ATiedHeadReplacesAMissingTable) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(4);
  auto tensors = file_tensors(n, false, "F16", random);
  for (FileTensor& t : tensors)
    if (t.name == "transformer.wte.weight") t.name = "lm_head.weight";
  write_folder(folder, "in", tensors);
  const Through outcome = through({.tp = 2}, n, folder / "in", folder / "out");
  EXPECT_THAT(outcome.reports[0].ignored, IsEmpty());
  EXPECT_EQ(contents(folder / "out"), contents(folder / "in"));
}

TEST(StoredWeights, ACopyThatIsNoneIsRefused) {
  const TemporaryFolder folder;
  const StoredSizes n{.vocab = 256};
  std::mt19937_64 random(15);
  for (const bool other_shape : {false, true}) {
    auto tensors = file_tensors(n, false, "BF16", random);
    const Shape shape = other_shape ? Shape{n.dim, n.vocab} : Shape{n.vocab, n.dim};
    tensors.push_back({"lm_head.weight", "F32", shape, exact_values("F32", numel_of(shape), random)});
    write_folder(folder, "in", tensors);
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { through({.shard = 2}, n, folder / "in", {}); }),
        AllOf(HasSubstr("'lm_head.weight' is not the copy of 'transformer.wte.weight'"), HasSubstr("tie")));
  }
}

TEST(StoredWeights, TheParametersOwnNamesAreReadToo) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(5);
  write_folder(folder, "in", file_tensors(n, true, "F32", random));
  const auto cycle = [&](const fs::path& from, const fs::path& to) {
    launch(2, [&](RankContext& r) {
      StoredModel model(r, {.tp = 2, .experts = 2}, n);
      model.wrap();
      import_weights(model, from, stored_forms(n));
      export_weights(model, to);
    });
  };
  cycle(folder / "in", folder / "own.safetensors");
  cycle(folder / "own.safetensors", folder / "again.safetensors");
  EXPECT_EQ(read_bytes(folder / "again.safetensors"), read_bytes(folder / "own.safetensors"));
}

TEST(StoredWeights, ColumnsOfTwoParametersMayAlternate) {
  const TemporaryFolder folder;
  const StoredSizes n{.vocab = 8, .dim = 4, .experts = 4, .hidden = 3};
  const std::string mixed = "transformer.h.0.mlp.experts.mixed";
  StoredForms forms{.forms = {stored_names(n, true)}};
  const Shape stack{n.experts, n.hidden, n.dim}, both{n.experts, n.hidden, 2 * n.dim};
  forms.forms[0]["experts.gate"] = {{mixed, both, {{0, 0, 0}, stack}, {{0, 0, 0}, stack}, 2}};
  forms.forms[0]["experts.up"] = {{mixed, both, {{0, 0, 0}, stack}, {{0, 0, 1}, stack}, 2}};
  std::mt19937_64 random(7);
  std::map<std::string, Shape> shapes = {{"transformer.wte.weight", {n.vocab, n.dim}},
                                         {"transformer.h.0.attn.c_proj.weight", {n.dim, n.dim}},
                                         {"transformer.h.0.ln_1.weight", {n.dim}}};
  for (const auto& [parameter, pieces] : forms.forms[0]) shapes[pieces[0].tensor] = pieces[0].shape;
  std::vector<FileTensor> tensors;
  for (const auto& [name, shape] : shapes)
    tensors.push_back({name, "F32", shape, exact_values("F32", numel_of(shape), random)});
  write_folder(folder, "in", tensors);
  for (const Spread& spread : kStoredSpreads) {
    const fs::path out = folder / ("out" + std::to_string(spread.ranks())),
                   own = folder / ("own" + std::to_string(spread.ranks()) + ".safetensors");
    launch(spread.ranks(), [&](RankContext& r) {
      StoredModel model(r, spread, n);
      model.wrap();
      import_weights(model, folder / "in", forms);
      export_weights(model, own);
      ExportOptions options;
      if (r.world->rank() == 0) options.like = StoredFolder::open(folder / "in");
      export_weights(model, out, forms, options);
    });
    EXPECT_EQ(contents(out), contents(folder / "in")) << spread.ranks();
    const auto values = [&](const fs::path& file, const std::string& name) {
      CheckpointReader reader = CheckpointReader::open(file);
      const CheckpointTensor* t = reader.find(Section::model, name);
      std::vector<float> all(static_cast<size_t>(numel_of(t->shape)));
      const Box whole{Shape(t->shape.size(), 0), t->shape};
      reader.read(*t, {&whole, 1}, all.data());
      return all;
    };
    const std::vector<float> file = values(folder / "in/model.safetensors", mixed),
                             gate = values(own, "experts.gate"), up = values(own, "experts.up");
    ASSERT_EQ(gate.size() + up.size(), file.size());
    for (size_t i = 0; i < gate.size(); ++i)
      EXPECT_EQ(std::pair(gate[i], up[i]), std::pair(file[2 * i], file[2 * i + 1]));
  }
  forms.forms[0]["experts.up"][0].step = 3;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                launch(1, [&](RankContext& r) {
                  StoredModel model(r, {}, n);
                  model.wrap();
                  import_weights(model, folder / "in", forms);
                });
              }),
              HasSubstr("experts.up"));
}

TEST(StoredWeights, OtherFilesBesideModelSafetensorsAreNotTheModels) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(6);
  write_folder(folder, "in", file_tensors(n, false, "F32", random));
  folder.write("in/adapter.safetensors", file_of({{"stranger", "F32", {1}, "1234"}}));
  folder.write("in/pytorch_model.bin", "old weights");
  folder.write("in/pytorch_model.bin.index.json", "of old weights");
  folder.write("in/.hidden", "x");
  folder.write("in/original/params.json", "{}");
  folder.write("in/LICENSE", "do");
  through({}, n, folder / "in", folder / "out");
  std::set<std::string> names;
  for (auto& [name, bytes] : contents(folder / "out")) names.insert(name);
  EXPECT_THAT(names, ElementsAre("LICENSE", "config.json", "model.safetensors", "tokenizer.json"));

  // For new weights neither an index nor any weights are needed.
  folder.write("in/" + std::string(kStoredIndex), "of other files");
  fs::remove(folder / "in/model.safetensors");
  names.clear();
  for (auto& [name, bytes] : StoredFolder::files_beside_weights(folder / "in")) names.insert(name);
  EXPECT_THAT(names, ElementsAre("LICENSE", "config.json", "tokenizer.json"));
}

TEST(StoredWeights, FoldersBelowTheIndexGoInAndOut) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(17);
  write_folder(folder, "flat", file_tensors(n, false, "BF16", random), 2);
  const std::string index = read_bytes(folder / ("flat/" + std::string(kStoredIndex)));
  // Files of one name in several folders.
  std::string below = index;
  for (size_t i = 0; i < 2; ++i) {
    const std::string own = (i == 0 ? "./part/" : "part/two/./") + std::string("model.safetensors");
    fs::create_directories(fs::path(folder / ("nested/" + own)).parent_path());
    fs::copy_file(folder / ("flat/" + name_of_file(i, 2)), folder / ("nested/" + own));
    for (size_t at; (at = below.find(name_of_file(i, 2))) != below.npos;)
      below.replace(at, name_of_file(i, 2).size(), own);
  }
  folder.write("nested/" + std::string(kStoredIndex), below);
  ExportOptions options;
  for (const Spread& spread : kStoredSpreads) {
    fs::remove_all(folder / "out");
    through(spread, n, folder / "nested", folder / "out");
    EXPECT_EQ(contents(folder / "out"), contents(folder / "nested"));
  }
  // The same again is accepted where that is asked for, and anything else is not.
  launch(1, [&](RankContext& r) {
    StoredModel model(r, {}, n);
    model.wrap();
    import_weights(model, folder / "nested", stored_forms(n));
    ExportOptions like{.existing = Existing::accept_equal, .like = StoredFolder::open(folder / "nested")};
    EXPECT_FALSE(export_weights(model, folder / "out", stored_forms(n), like));
    folder.write("out/part/two/model.safetensors", "x");
    EXPECT_THAT(message_of<IoError>([&] { export_weights(model, folder / "out", stored_forms(n), like); }),
                HasSubstr("'part/two/model.safetensors' has another size"));
  });
  const auto flat = contents(folder / "flat");
  EXPECT_EQ(read_bytes(folder / "nested/part/model.safetensors"), flat.at(name_of_file(0, 2)));
}

TEST(StoredWeights, AnIndexBesideModelSafetensorsIsOfOtherFiles) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(18);
  write_folder(folder, "in", file_tensors(n, false, "F32", random), 2);
  const auto newer = file_tensors(n, false, "F32", random);
  folder.write("in/model.safetensors", file_of(newer));
  write_folder(folder, "want", newer);
  for (const Spread& spread : kStoredSpreads) {
    fs::remove_all(folder / "out");
    const Through outcome = through(spread, n, folder / "in", folder / "out");
    for (const LoadReport& report : outcome.reports)
      EXPECT_THAT(report.notes, ElementsAre(HasSubstr(kStoredIndex)));
    std::set<std::string> names;
    for (auto& [name, bytes] : contents(folder / "out")) names.insert(name);
    EXPECT_THAT(names, ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
    EXPECT_EQ(read_bytes(folder / "out/model.safetensors"), read_bytes(folder / "in/model.safetensors"));
  }
}

// ---- what goes in comes out

void a_round_trip_keeps_every_byte() {
  const int tp = *rc::gen::element(1, 2), shard = *rc::gen::inRange(1, tp == 2 ? 4 : 7);
  Spread spread{.shard = shard, .tp = tp};
  if (tp == 1 && shard % 2 == 0 && *rc::gen::arbitrary<bool>()) spread = {.replicas = 2, .shard = shard / 2};
  spread.experts = spread.ranks() % 2 == 0 ? *rc::gen::element(1, 2) : 1;
  if (spread.ranks() == 3) spread.experts = *rc::gen::element(1, 3);
  const StoredSizes n{.vocab = 2 * *rc::gen::inRange(1, 9),
                      .dim = 2 * *rc::gen::inRange(1, 6),
                      .experts = spread.experts * *rc::gen::inRange(1, 4),
                      .hidden = *rc::gen::inRange(1, 6)};
  const auto strategy = *rc::gen::element(Strategy::no_shard, Strategy::optim, Strategy::optim_grads,
                                          Strategy::optim_grads_params);
  std::mt19937_64 random(*rc::gen::arbitrary<uint64_t>());
  const bool fused = *rc::gen::arbitrary<bool>(), mixed = *rc::gen::arbitrary<bool>();
  const std::string dtype = *rc::gen::element<std::string>("F32", "BF16", "F16");
  auto tensors = file_tensors(n, fused, dtype, random);
  for (FileTensor& t : tensors) {
    if (!mixed || random() % 2 == 0) continue;
    t.dtype = random() % 2 == 0 ? "F32" : "BF16";
    t.bytes = exact_values(t.dtype, numel_of(t.shape), random);
  }
  std::shuffle(tensors.begin(), tensors.end(), random);
  if (*rc::gen::arbitrary<bool>())
    for (FileTensor& t : tensors) t.name = t.name.substr(std::string("transformer.").size());

  const TemporaryFolder folder(TemporaryFolder::in_memory());
  write_folder(folder, "in", tensors, static_cast<size_t>(*rc::gen::inRange(1, 5)));
  const Through outcome = through(spread, n, folder / "in", folder / "out", strategy);
  RC_ASSERT(contents(folder / "out") == contents(folder / "in"));
  for (size_t r = 0; r < outcome.held.size(); ++r) {
    const int64_t read = outcome.reports[r].counts.bytes_read;
    RC_ASSERT(read <= 4 * outcome.held[r]);
    if (!mixed) RC_ASSERT(read == outcome.held[r] * (dtype == "F32" ? 4 : 2));
  }
}
RC_GTEST_PROP(StoredWeights, ARoundTripKeepsEveryByte, ()) { a_round_trip_keeps_every_byte(); }

TEST(StoredWeights, AnotherModelsWeightsGoOutInTheFolderThatCameIn) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(7);
  write_folder(folder, "a", file_tensors(n, false, "BF16", random), 2);
  write_folder(folder, "b", file_tensors(n, false, "BF16", random), 2);
  const auto want = contents(folder / "b");
  launch(3, [&](RankContext& r) {
    StoredModel model(r, {.shard = 3, .experts = 3}, StoredSizes{.experts = 3});
    model.wrap();
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { import_weights(model, folder / "a", stored_forms({.experts = 3})); }),
                HasSubstr("experts.3"));
  });
  launch(4, [&](RankContext& r) {
    StoredModel model(r, {.shard = 2, .tp = 2, .experts = 4}, n);
    model.wrap();
    ExportOptions options;
    if (r.world->rank() == 0) options.like = StoredFolder::open(folder / "a");
    options.files = {{"config.json", want.at("config.json")}, {"notes.txt", "new"}};
    r.world->barrier(r.device->compute());
    r.device->compute().synchronize();
    if (r.world->rank() == 0) fs::remove_all(folder / "a");  // what was opened needs it no more
    import_weights(model, folder / "b", stored_forms(n));
    export_weights(model, folder / "out", stored_forms(n), options);
  });
  auto got = contents(folder / "out");
  EXPECT_EQ(got["notes.txt"], "new");
  got.erase("notes.txt");
  EXPECT_EQ(got, want);
}

// ---- from scratch

TEST(StoredWeights, ANewFolderIsAsTransformersWritesIt) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::string first;
  for (const Spread& spread : kStoredSpreads) {
    const fs::path out = folder / ("out" + std::to_string(spread.ranks()));
    launch(spread.ranks(), [&](RankContext& r) {
      StoredModel model(r, spread, n);
      model.wrap();
      export_weights(model, out, stored_forms(n), {.dtype = DType::bf16, .files = {{"config.json", "{}"}}});
    });
    const SafetensorsReader file(out / "model.safetensors");
    std::vector<std::string> names;
    for (const SafetensorsEntry& e : file.entries()) names.push_back(e.name);
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
    EXPECT_EQ(names.size(), 2 + 3 + 3 * static_cast<size_t>(n.experts));
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
    EXPECT_EQ(read_bytes(out / "config.json"), "{}");
    EXPECT_FALSE(fs::exists(out / kStoredIndex));
    if (first.empty()) first = read_bytes(out / "model.safetensors");
    EXPECT_EQ(read_bytes(out / "model.safetensors"), first) << "the mesh shows";
    through(spread, n, out, folder / ("again" + std::to_string(spread.ranks())));
    EXPECT_EQ(contents(folder / ("again" + std::to_string(spread.ranks()))), contents(out));
  }
  launch(2, [&](RankContext& r) {
    StoredModel model(r, {.shard = 2}, n);
    model.wrap();
    export_weights(model, folder / "split", stored_forms(n), {.max_shard_bytes = 200});
  });
  const auto index = nlohmann::json::parse(read_bytes(folder / (std::string("split/") + kStoredIndex)));
  int64_t bytes = 0;
  for (auto& [name, data] : contents(folder / "split")) {
    if (!name.ends_with(".safetensors")) continue;
    const SafetensorsReader file(folder / ("split/" + name));
    bytes += file.entries().back().end;
    EXPECT_TRUE(file.entries().back().end <= 200 || file.entries().size() == 1) << name;
    for (const SafetensorsEntry& e : file.entries()) EXPECT_EQ(index["weight_map"][e.name], name);
  }
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(index["metadata"]["total_parameters"], bytes / 4);
}

}  // namespace
}  // namespace sherd::test
