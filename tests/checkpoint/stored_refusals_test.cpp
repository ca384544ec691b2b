// Weights in other programs' files: what is refused, and that nothing is written over or half.

#include <algorithm>
#include <cstring>
#include <random>

#include <unistd.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "support/stored_model.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

// ---- what does not fit

TEST(StoredRefusals, EverythingThatDoesNotFitIsInOneError) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(8);
  auto tensors = file_tensors(n, false, "F32", random);
  std::erase_if(tensors, [](const FileTensor& t) { return t.name.ends_with("experts.2.up_proj.weight"); });
  for (FileTensor& t : tensors) {
    if (t.name.ends_with("c_attn.bias")) t.shape = {3, n.dim};
    if (t.name.ends_with("ln_1.weight")) t.dtype = "I32";
  }
  tensors.push_back({"stranger", "F32", {1}, "1234"});
  write_folder(folder, "in", tensors, 2);
  for (const Spread& spread : kStoredSpreads) {
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { through(spread, n, folder / "in", {}); }),
        AllOf(HasSubstr(folder / "in"),
              HasSubstr("missing in it: transformer.h.0.mlp.experts.2.up_proj.weight"),
              HasSubstr("unknown to the run: stranger"), HasSubstr("'transformer.h.0.ln_1.weight' is i32"),
              HasSubstr("'transformer.h.0.attn.c_attn.bias' has shape [3, 4] where the run has [12]"),
              Not(HasSubstr("wte"))));
  }
}

// As torch.compile, DistributedDataParallel and FSDP write state dicts.
TEST(StoredRefusals, PrefixesOfWrappersAreNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const StoredSizes n;
  struct Case {
    std::string prefix, in_front_of;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {"_orig_mod.", "", {"'_orig_mod.' of torch.compile", "model._orig_mod"}},
      {"module.", "", {"'module.' of DistributedDataParallel", "model.module"}},
      {"module._orig_mod.", "", {"'_orig_mod.' of torch.compile and 'module.' of DistributedDataParallel"}},
      {"_orig_mod.", "attn.", {"'_orig_mod.' of torch.compile"}},
      {"_fsdp_wrapped_module.", "", {"'_fsdp_wrapped_module.' of FSDP", "get_model_state_dict()"}}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    std::mt19937_64 random(8);
    auto tensors = file_tensors(n, false, "F32", random);
    for (FileTensor& t : tensors) {
      const size_t at = cases[i].in_front_of.empty() ? 0 : t.name.find(cases[i].in_front_of);
      if (at != std::string::npos) t.name.insert(at, cases[i].prefix);
    }
    const std::string name = "in" + std::to_string(i);
    write_folder(folder, name, tensors);
    for (const bool unexpected : {false, true}) {
      const std::string message = message_of<InvalidArgument>(
          [&] { through({}, n, folder / name, {}, Strategy::optim, {.allow_unexpected = unexpected}); });
      for (const std::string& part : cases[i].named) EXPECT_THAT(message, HasSubstr(part)) << name;
      EXPECT_THAT(
          message,
          AllOf(HasSubstr("names of its tensors contain "), HasSubstr(" where the run has '"),
                HasSubstr("save the state dict of the module inside"), Not(HasSubstr("missing in it"))))
          << name;
    }
  }
}

TEST(StoredRefusals, WhatTheFileHasIsNamedBesideWhatIsMissing) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(8);
  auto tensors = file_tensors(n, false, "F32", random);
  for (FileTensor& t : tensors) t.name = "visual." + t.name;
  write_folder(folder, "in", tensors);
  EXPECT_THAT(
      message_of<InvalidArgument>(
          [&] { through({}, n, folder / "in", {}, Strategy::optim, {.allow_unexpected = true}); }),
      AllOf(HasSubstr("missing in it: "), HasSubstr("; it has: visual."),
            HasSubstr("these are tensors of another model: build that model, or name weights of this one")));
}

TEST(StoredRefusals, WhatIsMissingKeepsItsValuesWhereThatIsAllowed) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(9);
  auto tensors = file_tensors(n, false, "F32", random);
  std::erase_if(tensors, [](const FileTensor& t) { return t.name.ends_with("experts.2.up_proj.weight"); });
  write_folder(folder, "in", tensors);
  const Through outcome =
      through({.shard = 2, .tp = 2}, n, folder / "in", {}, Strategy::optim, {.allow_missing = true});
  EXPECT_THAT(outcome.reports[3].missing, ElementsAre("transformer.h.0.mlp.experts.2.up_proj.weight"));
  int64_t held = 0;
  for (const int64_t elements : outcome.held) held += elements;
  EXPECT_LT(outcome.reports[0].counts.bytes_read, 4 * held);
}

TEST(StoredRefusals, OtherTensorsAreLeftOutAndCopiedWhereThatIsAllowed) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(16);
  auto tensors = file_tensors(n, false, "F32", random);
  tensors.push_back({"stranger", "F8_E4M3", {4}, "1234"});  // of no dtype that could be read
  tensors.push_back({"packed", "F4", {2, 4}, "abcd"});
  write_folder(folder, "in", tensors);
  for (const Spread& spread : kStoredSpreads) {
    fs::remove_all(folder / "out");
    const Through outcome =
        through(spread, n, folder / "in", folder / "out", Strategy::optim, {.allow_unexpected = true});
    for (const LoadReport& report : outcome.reports)
      EXPECT_THAT(report.unexpected, ElementsAre("packed", "stranger"));
    EXPECT_EQ(contents(folder / "out"), contents(folder / "in"));
  }
  auto narrow = tensors;
  for (FileTensor& t : narrow)
    if (t.name == "transformer.wte.weight") t.dtype = "F8_E4M3FNUZ", t.bytes.resize(t.bytes.size() / 4);
  write_folder(folder, "narrow", narrow);
  EXPECT_THAT(message_of<NotSupported>([&] {
                through({.shard = 2}, n, folder / "narrow", {}, Strategy::optim, {.allow_unexpected = true});
              }),
              AllOf(HasSubstr("\"transformer.wte.weight\" (F8_E4M3FNUZ"), Not(HasSubstr("packed"))));
  std::erase_if(tensors, [](const FileTensor& t) { return t.name == "transformer.wte.weight"; });
  write_folder(folder, "lacks", tensors);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                through({.shard = 2}, n, folder / "lacks", {}, Strategy::optim, {.allow_unexpected = true});
              }),
              HasSubstr("missing in it: transformer.wte.weight"));
}

TEST(StoredRefusals, NamesThatDoNotFitTheModelAreRefused) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(10);
  write_folder(folder, "in", file_tensors(n, false, "F32", random));
  StoredForms forms = stored_forms(n);
  StoredNames& names = forms.forms[0];
  names["experts.up"].pop_back();                       // an expert is missing
  names["experts.down"][1].in_parameter.offset[0] = 0;  // an expert is there twice
  names["nobody"] = {};
  names["transformer.h.0.attn.q.bias"][0].in_tensor.size[0] = 1;
  names["transformer.h.0.attn.k.bias"][0].shape = {5};
  launch(2, [&](RankContext& r) {
    StoredModel model(r, {.shard = 2}, n);
    model.wrap();
    for (const bool in : {true, false}) {
      EXPECT_THAT(message_of<InvalidArgument>([&] {
                    if (in)
                      import_weights(model, folder / "in", forms);
                    else
                      export_weights(model, folder / "out", forms);
                  }),
                  AllOf(HasSubstr("'experts.up' is covered 0 times at [3, 0, 0]"),
                        HasSubstr("'experts.down' is covered 2 times at [0, 0, 0]"),
                        HasSubstr("'nobody' is not a parameter"), HasSubstr("'transformer.h.0.attn.q.bias'"),
                        HasSubstr("'transformer.h.0.attn.k.bias'")));
    }
  });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(StoredRefusals, DamagedFoldersAreRefusedOnEveryRank) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(11);
  const auto tensors = file_tensors(n, false, "F32", random);
  const auto refusal = [&](auto kind, const std::string& name) {
    return message_of<decltype(kind)>([&] { through({.shard = 2}, n, folder / name, {}); });
  };
  const CorruptCheckpoint corrupt("");
  const IoError io("");

  write_folder(folder, "short", tensors, 2);
  const std::string first = "short/" + name_of_file(0, 2);
  folder.write(first, read_bytes(folder / first).substr(0, 1500));
  EXPECT_THAT(refusal(corrupt, "short"), HasSubstr(name_of_file(0, 2)));

  write_folder(folder, "lost", tensors, 2);
  fs::remove(folder / ("lost/" + name_of_file(1, 2)));
  EXPECT_THAT(refusal(corrupt, "lost"), AllOf(HasSubstr(name_of_file(1, 2)), HasSubstr("missing")));

  // The index decides, but a folder like it cannot be written.
  write_folder(folder, "twice", tensors, 2);
  folder.write("twice/" + name_of_file(1, 2), file_of(tensors));
  EXPECT_THAT(refusal(corrupt, "twice"), "nothing was thrown");
  EXPECT_THAT(message_of<CorruptCheckpoint>([&] { (void)StoredFolder::open(folder / "twice"); }),
              AllOf(HasSubstr(name_of_file(1, 2)), HasSubstr("another file"), HasSubstr("remove one")));

  folder.write("out of it/config.json", "{}");
  folder.write("out of it/" + std::string(kStoredIndex),
               R"({"weight_map":{"a":"../lost/model.safetensors"}})");
  EXPECT_THAT(refusal(corrupt, "out of it"), HasSubstr("not in a file of this folder"));

  folder.write("empty/config.json", "{}");
  EXPECT_THAT(refusal(io, "empty"), HasSubstr("safetensors"));
  EXPECT_THAT(refusal(io, "nowhere"), HasSubstr("nowhere"));
  EXPECT_THAT(message_of<IoError>([&] { (void)StoredFolder::open(folder / "nowhere"); }),
              HasSubstr("not a folder"));
  EXPECT_THAT(message_of<IoError>([&] { (void)StoredFolder::open(folder / "empty"); }),
              HasSubstr("no .safetensors"));

  // The hub's cache: every file is a link to one outside of the folder, and is copied as a file.
  write_folder(folder, "blobs", tensors);
  fs::create_directories(folder / "snapshots/0f3a");
  for (auto& [name, bytes] : contents(folder / "blobs"))
    fs::create_symlink("../../blobs/" + name, folder / ("snapshots/0f3a/" + name));
  through({.shard = 2}, n, folder / "snapshots/0f3a", folder / "out");
  EXPECT_EQ(contents(folder / "out"), contents(folder / "blobs"));
  EXPECT_FALSE(fs::is_symlink(folder / "out/config.json"));
  fs::remove(folder / "blobs/tokenizer.json");
  EXPECT_THAT(message_of<IoError>([&] { (void)StoredFolder::open(folder / "snapshots/0f3a"); }),
              HasSubstr("tokenizer.json"));
}

TEST(StoredRefusals, LinksOutOfAFolderAreNotFollowed) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(15);
  write_folder(folder, "own", file_tensors(n, false, "F32", random));
  folder.write("secret", "a private key");
  fs::create_symlink("../secret", folder / "own/chat_template.jinja");
  fs::create_symlink("config.json", folder / "own/params.txt");
  fs::create_directory_symlink("own", folder / "other_name");
  const auto opened = StoredFolder::open(folder / "other_name");
  EXPECT_FALSE(opened->others().contains("chat_template.jinja"));
  EXPECT_TRUE(opened->others().contains("params.txt")) << "a link inside the folder";
  EXPECT_FALSE(StoredFolder::files_beside_weights(folder / "own").contains("chat_template.jinja"));
  EXPECT_THAT(StoredFolder::links_outside(folder / "own"), ElementsAre("chat_template.jinja"));

  // Neither are weights that are such a link, nor a hub's snapshot that points past its blobs.
  for (const char* place : {"loose", "models/snapshots/0f3a"}) {
    fs::create_directories(folder / place);
    fs::create_symlink(folder / "own/model.safetensors",
                       folder / (std::string(place) + "/model.safetensors"));
    EXPECT_THAT(message_of<IoError>([&] { (void)StoredFolder::open(folder / place); }),
                HasSubstr("outside of its folder"));
    EXPECT_THAT(message_of<IoError>([&] { through({.shard = 2}, n, folder / place, {}); }),
                HasSubstr("outside of its folder"));
  }
}

TEST(StoredRefusals, AFolderThatIsToBeFollowedMustFit) {
  const TemporaryFolder folder;
  const StoredSizes n, other{.experts = 2};
  std::mt19937_64 random(12);
  write_folder(folder, "in", file_tensors(n, false, "F32", random));
  write_folder(folder, "other", file_tensors(other, false, "F32", random));
  launch(2, [&](RankContext& r) {
    StoredModel model(r, {.shard = 2}, n);
    model.wrap();
    ExportOptions options;
    if (r.world->rank() == 0) options.like = StoredFolder::open(folder / "other");
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { export_weights(model, folder / "out", stored_forms(n), options); }),
        AllOf(HasSubstr("to be followed"), HasSubstr("experts.3.")));
  });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(StoredRefusals, ADtypeThatIsFollowedCannotBeChosen) {
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(15);
  auto tensors = file_tensors(n, false, "F32", random);
  for (FileTensor& t : tensors) {
    const float large = 1e6f;
    if (t.name.ends_with("ln_1.weight")) std::memcpy(t.bytes.data(), &large, sizeof large);
  }
  write_folder(folder, "in", tensors);
  write_folder(folder, "half", file_tensors(n, false, "F16", random));
  launch(1, [&](RankContext& r) {
    StoredModel model(r, {}, n);
    model.wrap();
    import_weights(model, folder / "in", stored_forms(n));
    const auto refusal = [&](const ExportOptions& options) {
      return message_of<InvalidArgument>(
          [&] { export_weights(model, folder / "out", stored_forms(n), options); });
    };
    EXPECT_THAT(
        refusal({.like = StoredFolder::open(folder / "half")}),
        AllOf(
            HasSubstr("ln_1.weight' holds 1000000 at [0], which f16 cannot hold; the folder to be followed"),
            HasSubstr("without ExportOptions::like"), Not(HasSubstr("export as f32"))));
    EXPECT_THAT(refusal({.dtype = DType::f16}), HasSubstr("cannot hold; export as f32"));
  });
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// ---- destinations

TEST(StoredRefusals, NothingIsWrittenOverOrHalf) {
  const TemporaryFolder folder;
  const StoredSizes n{.experts = 1};
  std::mt19937_64 random(13);
  write_folder(folder, "in", file_tensors(n, true, "BF16", random), 2);
  const auto before = contents(folder / "in");
  EXPECT_THAT(message_of<IoError>([&] { through({.shard = 2}, n, folder / "in", folder / "in"); }),
              HasSubstr("not empty"));
  EXPECT_THAT(
      message_of<IoError>([&] { through({.shard = 2}, n, folder / "in", folder / "in/config.json"); }),
      HasSubstr("not a folder"));
  EXPECT_EQ(contents(folder / "in"), before);
  EXPECT_THAT(message_of<IoError>([&] { through({.shard = 2}, n, folder / "in", folder / "no/where"); }),
              HasSubstr("no/where"));

  // A full disk, wherever it strikes.
  FaultFileSystem files;
  through({}, n, folder / "in", folder / "out/", Strategy::no_shard, {}, files);
  const size_t calls = files.calls().size();
  ASSERT_GT(calls, 20u);
  for (size_t at = 0; at + 1 < calls; ++at) {
    fs::remove_all(folder / "out");
    files.arm({.effect = FileFault::Effect::short_write, .error = ENOSPC, .at = at});
    EXPECT_THROW(through({}, n, folder / "in", folder / "out", Strategy::no_shard, {}, files), IoError) << at;
    EXPECT_TRUE(files.struck()) << at;
    EXPECT_THAT(FileSystem::posix().list(folder.path()), ElementsAre("in")) << at;
  }
}

TEST(StoredRefusals, AReadOnlyDestinationIsSaidOnEveryRank) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  const TemporaryFolder folder;
  const StoredSizes n;
  std::mt19937_64 random(14);
  write_folder(folder, "in", file_tensors(n, false, "F32", random));
  fs::create_directory(folder / "locked");
  fs::permissions(folder / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(message_of<IoError>([&] { through({.shard = 3}, n, folder / "in", folder / "locked/out"); }),
              HasSubstr("locked/out"));
  fs::permissions(folder / "locked", fs::perms::owner_all);
}

}  // namespace
}  // namespace sherd::test
