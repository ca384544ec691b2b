#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>

#include "support/hand_written.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using test::cut;
using test::HandTensor;
using test::write_by_hand;

/// Two tensors in two files, an optimizer's in a third.
Manifest write_small(const TemporaryFolder& folder) {
  HandTensor w{"w", Section::model, DType::f32, {2, 3}, {}};
  for (const Box& box : cut(w.shape, 0, 2)) w.pieces.emplace_back(box, box.offset[0] == 0 ? "a" : "b");
  const HandTensor v{"v", Section::model, DType::bf16, {5}, {{{{0}, {5}}, "a"}}};
  const HandTensor s{"optim.state.w.step", Section::optim, DType::f32, {1}, {{{{0}, {1}}, "a"}}};
  return write_by_hand(folder.path(), {w, v, s});
}

std::vector<std::string> files_of(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const Damage& d : verify_checkpoint(folder.path())) names.push_back(d.file);
  return names;
}

const CheckpointFile* record_of(const Manifest& manifest, const std::string& path) {
  for (const CheckpointFile& file : manifest.files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

/// The tensor whose bytes hold byte `at` of a file.
std::string tensor_at(const Manifest& manifest, const std::string& path, int64_t at) {
  for (const CheckpointTensor& tensor : manifest.tensors) {
    for (const CheckpointPiece& piece : tensor.pieces) {
      if (manifest.files[static_cast<size_t>(piece.file)].path == path && piece.begin <= at &&
          at < piece.begin + numel_of(piece.box.size) * size_of(tensor.dtype))
        return tensor.name;
    }
  }
  return "";
}

const std::vector<std::string> kFiles = {"manifest.binpb", "model/a", "model/b", "optim/a"};

TEST(Verify, SoundIsSound) {
  const TemporaryFolder folder;
  write_small(folder);
  EXPECT_THAT(files_of(folder), ElementsAre());
}

TEST(Verify, EveryFlippedByteIsReported) {
  const TemporaryFolder folder;
  const Manifest manifest = write_small(folder);
  for (const std::string& path : kFiles) {
    const std::string sound = read_bytes(folder / path);
    const CheckpointFile* record = record_of(manifest, path);
    for (size_t i = 0; i < sound.size(); ++i) {
      std::string bytes = sound;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      folder.write(path, bytes);
      const std::vector<Damage> damage = verify_checkpoint(folder.path());
      const auto at = static_cast<int64_t>(i);
      ASSERT_FALSE(damage.empty()) << path << " " << i;
      for (const Damage& d : damage) EXPECT_EQ(d.file, path) << i;
      if (record == nullptr || at < record->header_bytes) {
        ASSERT_EQ(damage.size(), 1u);
        EXPECT_EQ(damage[0].tensor, "");
        EXPECT_EQ(damage[0].end, record == nullptr ? 0 : record->header_bytes);
        continue;
      }
      // The block is reported once for each of its tensors; the one that was hit is among them.
      const std::string hit = tensor_at(manifest, path, at);
      int hits = 0;
      for (const Damage& d : damage) {
        EXPECT_EQ(tensor_at(manifest, path, d.begin), d.tensor);
        EXPECT_EQ(tensor_at(manifest, path, d.end - 1), d.tensor);
        hits += d.begin <= at && at < d.end && d.tensor == hit;
      }
      EXPECT_EQ(hits, 1) << path << " " << i;
      EXPECT_EQ(damage.size(), path == "model/a" ? 2u : 1u);
    }
    folder.write(path, sound);
  }
  EXPECT_THAT(files_of(folder), ElementsAre());
}

TEST(Verify, EveryOtherLengthIsReported) {
  const TemporaryFolder folder;
  write_small(folder);
  for (const std::string& path : kFiles) {
    const std::string sound = read_bytes(folder / path);
    for (size_t length = 0; length < sound.size(); ++length) {
      folder.write(path, sound.substr(0, length));
      EXPECT_THAT(files_of(folder), AllOf(Not(IsEmpty()), Each(path))) << length;
    }
    folder.write(path, sound + '\0');
    EXPECT_THAT(files_of(folder), AllOf(Not(IsEmpty()), Each(path)));
    std::filesystem::remove(folder / path);
    if (path != "manifest.binpb") {
      const auto damage = verify_checkpoint(folder.path());  // the file, and what lay in it to its end
      ASSERT_GE(damage.size(), 2u);
      EXPECT_EQ(damage[0].tensor, "");
      EXPECT_NE(damage[1].tensor, "");
      EXPECT_EQ(damage.back().end, static_cast<int64_t>(sound.size()));
    }
    EXPECT_THAT(files_of(folder), AllOf(Not(IsEmpty()), Each(path)));
    std::filesystem::create_directory(folder / path);
    EXPECT_THAT(files_of(folder), AllOf(Not(IsEmpty()), Each(path)));
    std::filesystem::remove(folder / path);
    folder.write(path, sound);
  }
}

TEST(Verify, UnknownFilesAreReported) {
  const TemporaryFolder folder;
  write_small(folder);
  folder.write("model/c", "");
  folder.write("notes", "");
  folder.write("other/deep/a", "");
  EXPECT_THAT(files_of(folder), ElementsAre("model/c", "notes", "other"));
}

TEST(Verify, SeveralBlocksAndTensors) {
  const TemporaryFolder folder;
  // Data: u8 "a" [0, 1.5 MiB), "b" [1.5, 1.75), "c" [1.75, 3.25)
  constexpr int64_t kQuarter = kChecksumBlock / 4;
  const auto tensor = [](const char* name, int64_t size) {
    return HandTensor{name, Section::model, DType::u8, {size}, {{{{0}, {size}}, "f"}}};
  };
  const Manifest manifest = write_by_hand(
      folder.path(), {tensor("a", 6 * kQuarter), tensor("b", kQuarter), tensor("c", 6 * kQuarter)});
  const int64_t data = manifest.files[0].header_bytes;
  std::string bytes = read_bytes(folder / "model/f");
  bytes[static_cast<size_t>(data + kChecksumBlock)] ^= 1;
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("model/f", bytes);
  std::vector<std::pair<int64_t, int64_t>> calls;
  const std::vector<Damage> damage =
      verify_checkpoint(folder.path(), [&](int64_t done, int64_t all) { calls.emplace_back(done, all); });
  ASSERT_EQ(damage.size(), 4u);
  const std::tuple<const char*, int64_t, int64_t> expected[] = {
      {"a", 4, 6}, {"b", 6, 7}, {"c", 7, 8}, {"c", 12, 13}};
  for (size_t i = 0; i < 4; ++i) {
    const auto& [name, begin, end] = expected[i];
    EXPECT_EQ(damage[i].tensor, name);
    EXPECT_EQ(damage[i].begin, data + begin * kQuarter);
    EXPECT_EQ(damage[i].end, data + end * kQuarter);
  }
  const auto all = static_cast<int64_t>(bytes.size());
  EXPECT_GE(calls.size(), 4u);
  EXPECT_TRUE(std::is_sorted(calls.begin(), calls.end()));
  EXPECT_EQ(calls.back(), std::make_pair(all, all));
}

TEST(Verify, HeadersMustSayWhatTheManifestSays) {
  const auto after = [](const std::function<void(Manifest&)>& change) {
    const TemporaryFolder folder;
    Manifest manifest = write_small(folder);
    change(manifest);
    folder.write("manifest.binpb", encode_manifest(manifest));
    std::string text;
    for (const Damage& d : verify_checkpoint(folder.path()))
      text += d.file + " " + d.tensor + ": " + d.what + "\n";
    return text;
  };
  EXPECT_EQ(after([](Manifest&) {}), "");
  EXPECT_THAT(after([](Manifest& m) { m.tensors[0].dtype = DType::i32; }),
              HasSubstr("model/b w: the header does not"));
  EXPECT_THAT(after([](Manifest& m) { m.tensors[1].name = "u"; }), HasSubstr("model/a u: the manifest puts"));
  EXPECT_THAT(after([](Manifest& m) { m.tensors[1].name = "u"; }),
              HasSubstr("model/a v: the header names it"));
  EXPECT_THAT(after([](Manifest& m) {
                m.tensors[1].shape = {5, 1};
                m.tensors[1].pieces[0].box = {{0, 0}, {5, 1}};
              }),
              HasSubstr("model/a v: the header does not"));
  EXPECT_THAT(after([](Manifest& m) { std::swap(m.tensors[0].pieces[0].box, m.tensors[0].pieces[1].box); }),
              HasSubstr("model/b w: the header does not"));
  EXPECT_THAT(after([](Manifest& m) {
                CheckpointTensor& v = m.tensors[1];
                v.pieces.push_back({{{3}, {2}}, v.pieces[0].file, v.pieces[0].begin + 6});
                v.pieces[0].box.size = {3};
              }),
              HasSubstr("two pieces"));
}

TEST(Verify, OnlyAMissingFolderThrows) {
  const TemporaryFolder folder;
  EXPECT_THROW((void)verify_checkpoint(folder.path() / "missing"), IoError);
  EXPECT_THROW((void)verify_checkpoint(folder.write("file", "")), IoError);
  std::filesystem::remove(folder / "file");
  EXPECT_THAT(files_of(folder), ElementsAre("manifest.binpb"));
}

}  // namespace
}  // namespace sherd
