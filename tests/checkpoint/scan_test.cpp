#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/file_copies.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using Offsets = std::map<std::string, Shape>;

/// Data byte k of a file is k.
void write_file(const TemporaryFolder& folder, const std::string& name,
                const std::vector<SafetensorsSpec>& specs,
                const std::optional<Offsets>& offsets = std::nullopt) {
  std::map<std::string, std::string> metadata;
  if (offsets) {
    nlohmann::json info = nlohmann::json::object();
    for (const auto& [key, offset] : *offsets) info[key]["saved_offsets"] = offset;
    metadata = {{"DCP_SHARDING_INFO", info.dump()}};
  }
  SafetensorsWriter writer(folder / name, specs, metadata);
  std::string data;
  for (const auto& spec : specs)
    data.resize(data.size() + size_t(numel_of(spec.shape) * size_of(spec.dtype)));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i);
  writer.append(data.data(), std::ssize(data));
  writer.finish();
}

void write_index(const TemporaryFolder& folder, const std::string& map) {
  folder.write("model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":)" + map + "}");
}

std::string refusal(const std::filesystem::path& path) {
  return message_of<CorruptCheckpoint>([&] { (void)scan_safetensors(path); });
}

std::string bytes_of(const std::filesystem::path& path, const std::string& name) {
  auto reader = CheckpointReader::open(path);
  const CheckpointTensor& tensor = *reader.find(reader.manifest().tensors[0].section, name);
  std::string bytes(static_cast<size_t>(numel_of(tensor.shape) * size_of(tensor.dtype)), '?');
  reader.read(tensor, std::vector<Box>{{Shape(tensor.shape.size(), 0), tensor.shape}}, bytes.data());
  return bytes;
}

/// As git-lfs leaves it in the place of a large file.
std::string lfs_pointer() {
  return "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
         "\nsize 4000000000\n";
}

TEST(Scan, AFileOfAnotherKindIsNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& bytes) { return refusal(folder.write("model.safetensors", bytes)); };
  EXPECT_THAT(of(lfs_pointer()),
              HasSubstr("model.safetensors' is not a safetensors file: it is a git-lfs pointer, not the file "
                        "itself; run `git lfs pull` in its repository"));
  EXPECT_THAT(of(std::string("PK\3\4", 4) + std::string(60, '\0')),
              AllOf(HasSubstr("it is a zip archive, such as torch.save() writes"),
                    HasSubstr("safetensors.torch.save_file()")));
  EXPECT_THAT(of("<!DOCTYPE html><html><body>Access to this model is restricted</body></html>"),
              AllOf(HasSubstr("it is a web page"), HasSubstr("hf download")));
  EXPECT_THAT(of(std::string("GGUF") + std::string(60, '\0')), HasSubstr("a GGUF file of llama.cpp"));
  EXPECT_THAT(of("some text that is none of these, and long enough"),
              HasSubstr("is not a sound safetensors file: the header claims"));
  folder.write("model.safetensors.index.json", lfs_pointer());
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("model.safetensors.index.json': the index is a git-lfs pointer"));
}

TEST(Scan, AFolderWithoutSafetensorsIsNamedWithWhatItHolds) {
  const TemporaryFolder folder;
  const auto refusal_of = [&](const std::string& name) {
    return message_of<IoError>([&] { (void)scan_safetensors(folder / name); });
  };
  folder.write("bin/pytorch_model.bin", "x");
  EXPECT_THAT(
      refusal_of("bin"),
      AllOf(HasSubstr("it holds PyTorch's \"pytorch_model.bin\", and .safetensors files alone are read"),
            HasSubstr("from_pretrained('" + (folder / "bin") + "').save_pretrained(")));
  folder.write("run/step_00000002/manifest.binpb", "x");
  folder.write("run/step_00000010/manifest.binpb", "x");
  EXPECT_THAT(refusal_of("run"), HasSubstr("it is a folder of checkpoints; name one of them, such as '" +
                                           (folder / "run/step_00000010") + "'"));
  folder.write("other/readme", "x");
  EXPECT_THAT(refusal_of("other"), HasSubstr("it holds neither manifest.binpb nor .safetensors files"));
}

TEST(Scan, OneFile) {
  const TemporaryFolder folder;
  write_file(folder, "a.safetensors",
             {{"w", DType::u8, {2, 2}}, {"scalar", DType::u8, {}}, {"empty", DType::f32, {0, 3}}});
  const std::filesystem::path path = folder / "a.safetensors";
  const Manifest manifest = scan_safetensors(path);
  EXPECT_FALSE(manifest.checksums);
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(manifest.files[0].path, "a.safetensors");
  EXPECT_EQ(manifest.files[0].bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
  EXPECT_EQ(manifest.find(Section::model, "scalar")->shape, Shape{1});
  EXPECT_EQ(manifest.find(Section::model, "empty")->shape, (Shape{0, 3}));
  EXPECT_TRUE(manifest.find(Section::model, "empty")->pieces.empty());
  EXPECT_EQ(bytes_of(path, "w"), std::string("\0\1\2\3", 4));
  EXPECT_EQ(bytes_of(path, "scalar"), "\4");
  EXPECT_EQ(bytes_of(path, "empty"), "");
  EXPECT_THROW((void)scan_safetensors(folder / "missing"), IoError);
}

TEST(Scan, PlainFilesOfDifferentTensors) {
  const TemporaryFolder folder;
  write_file(folder, "a.safetensors", {{"w", DType::u8, {2}}});
  write_file(folder, "b.safetensors", {{"v", DType::u8, {3}}});
  folder.write("readme.txt", "");
  EXPECT_EQ(scan_safetensors(folder.path()).files.size(), 2u);
  EXPECT_EQ(bytes_of(folder.path(), "v"), std::string("\0\1\2", 3));
  write_file(folder, "c.safetensors", {{"w", DType::u8, {2}}});
  EXPECT_THAT(refusal(folder.path()),
              AllOf(HasSubstr("c.safetensors"), HasSubstr("\"w\""), HasSubstr("another file")));
}

TEST(Scan, PiecesWithAndWithoutTheWholeShape) {
  for (const bool known : {false, true}) {
    const TemporaryFolder folder;
    const auto whole = known ? std::optional<Shape>({3, 2}) : std::nullopt;
    write_file(folder, "a.safetensors", {{"w", DType::u8, {1, 2}, whole}}, Offsets{{"w", {0, 0}}});
    write_file(folder, "b.safetensors", {{"w", DType::u8, {2, 2}, whole}}, Offsets{{"w", {1, 0}}});
    write_file(folder, "c.safetensors", {{"w", DType::u8, {0, 2}, whole}}, Offsets{{"w", {3, 0}}});  // empty
    const Manifest manifest = scan_safetensors(folder.path());
    EXPECT_EQ(manifest.tensors[0].shape, (Shape{3, 2}));
    EXPECT_EQ(manifest.tensors[0].pieces.size(), 2u);
    EXPECT_EQ(bytes_of(folder.path(), "w"), std::string("\0\1\0\1\2\3", 6));

    // A missing tail is detected where the shape is written; otherwise an empty piece shows it.
    std::filesystem::remove(folder / "b.safetensors");
    EXPECT_THAT(refusal(folder.path()), HasSubstr("element [1, 0] is in no piece"));
    std::filesystem::remove(folder / "c.safetensors");
    if (known) {
      EXPECT_THAT(refusal(folder.path()), HasSubstr("element [1, 0] is in no piece"));
    } else {
      EXPECT_EQ(scan_safetensors(folder.path()).tensors[0].shape, (Shape{1, 2}));
    }
  }
}

TEST(Scan, PiecesThatDoNotFitAreRefused) {
  const auto with = [](const SafetensorsSpec& spec, const std::optional<Offsets>& offsets) {
    const TemporaryFolder folder;
    write_file(folder, "a.safetensors", {{"w", DType::u8, {2, 2}, Shape{4, 2}}}, Offsets{{"w", {0, 0}}});
    write_file(folder, "b.safetensors", {spec}, offsets);
    return message_of<CorruptCheckpoint>([&] { (void)scan_safetensors(folder.path()); });
  };
  const SafetensorsSpec good{"w", DType::u8, {2, 2}, Shape{4, 2}};
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(with(good, Offsets{{"w", {2, 0}}}), "nothing was thrown");
  EXPECT_THAT(with(good, Offsets{{"w", {1, 0}}}), HasSubstr("element [1, 0] is in 2 pieces"));
  EXPECT_THAT(with(good, Offsets{{"w", {3, 0}}}), HasSubstr("not inside"));
  EXPECT_THAT(with(good, Offsets{{"w", {kMax, 0}}}), HasSubstr("not inside"));
  EXPECT_THAT(with(good, Offsets{{"w", {2}}}), HasSubstr("1 offsets for the 2 dimensions"));
  EXPECT_THAT(with(good, Offsets{{"v", {2, 0}}}), HasSubstr("has no tensor \"v\""));
  EXPECT_THAT(with(good, std::nullopt), HasSubstr("not both say"));
  EXPECT_THAT(with({"w", DType::u8, {2, 2}, Shape{5, 2}}, Offsets{{"w", {2, 0}}}),
              HasSubstr("does not agree"));
  EXPECT_THAT(with({"w", DType::u8, {2, 2}}, Offsets{{"w", {2, 0}}}), HasSubstr("does not agree"));
  EXPECT_THAT(with({"w", DType::u8, {4}, Shape{4}}, Offsets{{"w", {0}}}), HasSubstr("does not agree"));
  EXPECT_THAT(with({"w", DType::bf16, {2, 2}, Shape{4, 2}}, Offsets{{"w", {2, 0}}}), HasSubstr("bf16 here"));
}

TEST(Scan, HugeOffsetsAreRefused) {
  const TemporaryFolder folder;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  write_file(folder, "a.safetensors", {{"w", DType::u8, {1, 1}}}, Offsets{{"w", {kMax, 0}}});
  EXPECT_THAT(refusal(folder.path()), HasSubstr("too large"));
  write_file(folder, "a.safetensors", {{"w", DType::u8, {1, 1}}}, Offsets{{"w", {kMax - 1, kMax - 1}}});
  EXPECT_THAT(refusal(folder.path()), HasSubstr("2^63"));
}

TEST(Scan, ShardingInfoThatIsNoneIsRefused) {
  const TemporaryFolder folder;
  for (const char* info : {"", "{", "[]", R"({"w":1})", R"({"w":{}})", R"({"w":{"saved_offsets":[-1]}})",
                           R"({"w":{"saved_offsets":[0]},"w":{"saved_offsets":[0]}})"}) {
    SafetensorsWriter writer(folder / "a.safetensors", {{"w", DType::u8, {1}}},
                             {{"DCP_SHARDING_INFO", info}});
    writer.append("x", 1);
    writer.finish();
    EXPECT_THAT(refusal(folder.path()), HasSubstr("DCP_SHARDING_INFO")) << info;
  }
}

TEST(Scan, ScalarsOfShardedFiles) {
  const TemporaryFolder folder;
  write_file(folder, "a.safetensors", {{"a", DType::u8, {}}, {"b", DType::u8, {1}}},
             Offsets{{"a", {}}, {"b", {0}}});
  EXPECT_EQ(bytes_of(folder.path(), "a"), std::string("\0", 1));
  EXPECT_EQ(bytes_of(folder.path(), "b"), "\1");
  write_file(folder, "a.safetensors", {{"a", DType::u8, {}}}, Offsets{{"a", {0}}});
  EXPECT_EQ(scan_safetensors(folder.path()).tensors[0].shape, Shape{1});
}

TEST(Scan, IndexedFiles) {
  const TemporaryFolder folder;
  write_file(folder, "model-00001-of-00002.safetensors", {{"w", DType::u8, {2}}, {"v", DType::u8, {1}}});
  write_file(folder, "model-00002-of-00002.safetensors", {{"u", DType::u8, {2}}});
  write_file(folder, "consolidated.safetensors", {{"w", DType::u8, {2}}});  // not in the index: not looked at
  const std::string one = R"("model-00001-of-00002.safetensors")",
                    two = R"("model-00002-of-00002.safetensors")";
  write_index(folder, "{\"w\":" + one + ",\"v\":" + one + ",\"u\":" + two + "}");
  EXPECT_EQ(scan_safetensors(folder.path()).tensors.size(), 3u);
  EXPECT_EQ(bytes_of(folder.path(), "v"), "\2");

  // A tensor that it does not name, or names in another file than the one that has it, is read.
  for (const std::string& v : {std::string(), ",\"v\":" + two}) {
    write_index(folder, "{\"w\":" + one + v + ",\"u\":" + two + "}");
    EXPECT_EQ(scan_safetensors(folder.path()).tensors.size(), 3u);
    EXPECT_EQ(bytes_of(folder.path(), "v"), "\2");
  }
  // One that no file has was lost, unless the caller leaves it out.
  write_index(folder, "{\"w\":" + one + ",\"v\":" + one + ",\"gone\":" + two + "}");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("\"gone\" is not in file " + two));
  const auto left_out = [](std::string_view name) { return name == "gone"; };
  EXPECT_EQ(scan_safetensors(folder.path(), FileSystem::posix(), left_out).tensors.size(), 3u);
  write_index(folder, "{\"w\":" + one + ",\"v\":" + one + ",\"u\":\"gone.safetensors\"}");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("file \"gone.safetensors\" is missing"));
  for (const char* file : {R"("../a.safetensors")", R"("x/../../a.safetensors")", R"("x/../a.safetensors")",
                           R"("/a.safetensors")", R"(".//a.safetensors")", R"("x//a.safetensors")", R"("./")",
                           R"(".")", R"("")", "1"}) {
    write_index(folder, std::string("{\"w\":") + file + "}");
    EXPECT_THAT(refusal(folder.path()), HasSubstr("\"w\" is not in a file of this folder")) << file;
  }
  write_index(folder, "{\"w\":" + one + ",\"w\":" + two + "}");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("appears twice"));
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", "1"}) {
    folder.write("model.safetensors.index.json", text);
    EXPECT_THAT(refusal(folder.path()), HasSubstr("index.json")) << text;
  }
}

TEST(Scan, IndexedFilesMayBeInFoldersBelow) {
  const TemporaryFolder folder;
  folder.write("x/y/readme.txt", "");
  write_file(folder, "x/y/a.safetensors", {{"w", DType::u8, {2}}});
  write_file(folder, "b.safetensors", {{"v", DType::u8, {1}}});
  write_index(folder, R"({"w":"./x/./y/a.safetensors","v":"./b.safetensors"})");
  const Manifest manifest = scan_safetensors(folder.path());
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[0].path, "b.safetensors");
  EXPECT_EQ(manifest.files[1].path, "x/y/a.safetensors");
  EXPECT_EQ(bytes_of(folder.path(), "w"), std::string("\0\1", 2));
  EXPECT_TRUE(manifest.notes.empty());
  // A link that leads out of the folder.
  std::filesystem::remove_all(folder / "x");
  const TemporaryFolder other;
  write_file(other, "a.safetensors", {{"w", DType::u8, {2}}});
  std::filesystem::create_directory(folder / "x");
  std::filesystem::create_directory_symlink(other.path(), folder / "x/y");
  EXPECT_THAT(message_of<IoError>([&] { (void)scan_safetensors(folder.path()); }),
              HasSubstr("outside of its folder"));
}

TEST(Scan, TheIndexDecidesOnATensorOfSeveralFiles) {
  const TemporaryFolder folder;
  write_file(folder, "a.safetensors", {{"w", DType::u8, {2}}, {"v", DType::u8, {1}}});
  write_file(folder, "b.safetensors", {{"u", DType::u8, {2}}, {"w", DType::f32, {1}}});
  const std::string ends = R"(,"v":"a.safetensors","u":"b.safetensors"})";
  write_index(folder, R"({"w":"a.safetensors")" + ends);
  EXPECT_EQ(bytes_of(folder.path(), "w"), std::string("\0\1", 2));
  EXPECT_THAT(scan_safetensors(folder.path()).notes,
              testing::ElementsAre(
                  AllOf(HasSubstr("model.safetensors.index.json' decides"),
                        HasSubstr("\"w\" of \"a.safetensors\" is read, and not that of \"b.safetensors\""))));
  write_index(folder, R"({"w":"b.safetensors")" + ends);
  EXPECT_EQ(bytes_of(folder.path(), "w"), "\2\3\4\5");
  EXPECT_TRUE(scan_safetensors(folder.path(), FileSystem::posix(), [](auto name) { return name == "w"; })
                  .notes.empty())
      << "it is not read at all";
  // An index without the tensor selects none. Pieces are read together.
  write_index(folder, "{" + ends.substr(1));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("another file has it too"));
  write_file(folder, "a.safetensors", {{"w", DType::u8, {1}, Shape{2}}}, Offsets{{"w", {0}}});
  write_file(folder, "b.safetensors", {{"w", DType::u8, {1}, Shape{2}}}, Offsets{{"w", {1}}});
  write_index(folder, R"({"w":"a.safetensors","x":"b.safetensors"})");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("\"x\" is not in file \"b.safetensors\""));
  const auto no_x = [](std::string_view name) { return name == "x"; };
  EXPECT_EQ(scan_safetensors(folder.path(), FileSystem::posix(), no_x).tensors[0].pieces.size(), 2u);
}

TEST(Scan, ModelSafetensorsIsReadBesideAnIndex) {
  const TemporaryFolder folder;
  write_file(folder, "model-00001-of-00001.safetensors", {{"w", DType::u8, {2}}});
  write_file(folder, "model.safetensors", {{"w", DType::u8, {3}}});
  for (const char* file : {"model-00001-of-00001.safetensors", "gone.safetensors"}) {
    write_index(folder, std::string("{\"w\":\"") + file + "\"}");
    const Manifest manifest = scan_safetensors(folder.path());
    EXPECT_EQ(manifest.tensors[0].shape, Shape{3}) << "as transformers does";
    EXPECT_THAT(manifest.notes, testing::ElementsAre(AllOf(HasSubstr(folder / "model.safetensors'"),
                                                           HasSubstr("model.safetensors.index.json"))));
    EXPECT_EQ(weights_copies(folder.path()).size(), 1u) << "what is not read may differ between ranks";
    EXPECT_EQ(stored_weights_copies(folder.path()).size(), 1u);
  }
}

TEST(Scan, WhatSherdHasNoTensorsOfIsNamed) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
      R"("deep":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[3,4]}})";
  folder.write("a.safetensors",
               std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "abcd");
  EXPECT_THAT(message_of<NotSupported>([&] { (void)scan_safetensors(folder.path()); }),
              AllOf(HasSubstr("\"mask\" (BOOL [2])"), HasSubstr("\"deep\""), Not(HasSubstr("\"w\""))));
}

TEST(Scan, SectionFollowsFromNames) {
  const TemporaryFolder folder;
  write_file(folder, "a.safetensors", {{"optim.state.w.step", DType::f32, {1}}});
  EXPECT_EQ(scan_safetensors(folder.path()).tensors[0].section, Section::optim);
  write_file(folder, "b.safetensors", {{"w", DType::f32, {1}}});
  for (const auto& tensor : scan_safetensors(folder.path()).tensors)
    EXPECT_EQ(tensor.section, Section::model);
  write_file(folder, "a.safetensors", {});
  write_file(folder, "b.safetensors", {});
  EXPECT_TRUE(scan_safetensors(folder.path()).tensors.empty());
}

}  // namespace
}  // namespace sherd
