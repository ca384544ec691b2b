#include <sherd/checkpoint/checkpoint_reader.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sherd/base/error.h>

#include "checkpoint/pick.h"
#include "support/hand_written.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using test::cut;
using test::HandTensor;
using test::write_by_hand;

/// Each box in a file of its own.
HandTensor spread(std::string name, const Shape& shape, const std::vector<Box>& boxes,
                  DType dtype = DType::f32) {
  HandTensor tensor{std::move(name), Section::model, dtype, shape, {}};
  for (const Box& box : boxes)
    tensor.pieces.emplace_back(box, "f" + std::to_string(tensor.pieces.size()) + ".safetensors");
  return tensor;
}

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

std::string read(CheckpointReader& reader, const std::string& name, const std::vector<Box>& boxes) {
  const CheckpointTensor* tensor = reader.find(Section::model, name);
  if (tensor == nullptr) return "no such tensor";
  int64_t count = 0;
  for (const Box& box : boxes) count += numel_of(box.size);
  std::string bytes(static_cast<size_t>(count * size_of(tensor->dtype)), '?');
  reader.read(*tensor, boxes, bytes.data());
  return bytes;
}

void flip(const std::string& path, size_t at) {
  std::string bytes = read_bytes(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

RC_GTEST_PROP(CheckpointReader, AnyBoxesOfAnyPieces, ()) {
  Shape shape(static_cast<size_t>(pick(1, 4)));
  for (int64_t& size : shape) size = pick(1, 6);
  std::vector<Box> pieces = {whole(shape)};
  for (int64_t cuts = pick(0, 6); cuts > 0; --cuts) {
    const auto which = static_cast<size_t>(pick(0, std::ssize(pieces) - 1));
    const auto d = static_cast<size_t>(pick(0, std::ssize(shape) - 1));
    if (pieces[which].size[d] < 2) continue;
    Box second = pieces[which];
    const int64_t at = pick(1, second.size[d] - 1);
    second.offset[d] += at;
    second.size[d] -= at;
    pieces[which].size[d] = at;
    pieces.push_back(second);
  }
  constexpr DType kTypes[] = {DType::u8, DType::bf16, DType::f32, DType::f64};
  const HandTensor tensor = spread("t", shape, pieces, kTypes[pick(0, 3)]);
  const HandTensor other = spread("other", {5}, {whole({5})}, DType::u8);

  std::vector<Box> boxes(static_cast<size_t>(pick(0, 3)));
  std::string expected;
  for (Box& box : boxes) {
    box = whole(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      box.offset[d] = pick(0, shape[d]);
      box.size[d] = pick(0, shape[d] - box.offset[d]);
    }
    expected += tensor.bytes(box);
  }

  const TemporaryFolder folder;
  write_by_hand(folder.path(), {other, tensor});
  auto committed = CheckpointReader::open(folder.path());
  auto plain = CheckpointReader::open(folder.path() / "model");
  RC_ASSERT(read(committed, "t", boxes) == expected);
  RC_ASSERT(read(plain, "t", boxes) == expected);
  RC_ASSERT(committed.counts().bytes_used == std::ssize(expected));
  RC_ASSERT(plain.counts().bytes_read == std::ssize(expected));
  RC_ASSERT(plain.counts().blocks_verified == 0);
}

TEST(CheckpointReader, ShowsWhatIsThere) {
  const TemporaryFolder folder;
  HandTensor step = spread("optim.state.w.step", {1}, {whole({1})});
  step.section = Section::optim;
  write_by_hand(folder.path(), {spread("w", {4, 2}, cut({4, 2}, 0, 2)), step});
  auto reader = CheckpointReader::open(folder.path());
  EXPECT_EQ(reader.path(), folder.path());
  EXPECT_EQ(reader.manifest().training.step, 100);
  EXPECT_NO_THROW(reader.check_files());
  EXPECT_EQ(reader.find(Section::model, "optim.state.w.step"), nullptr);
  EXPECT_EQ(reader.find(Section::optim, "w"), nullptr);
  ASSERT_NE(reader.find(Section::optim, "optim.state.w.step"), nullptr);
  const CheckpointTensor* w = reader.find(Section::model, "w");
  CheckpointReader moved = std::move(reader);
  EXPECT_EQ(moved.find(Section::model, "w"), w);
  EXPECT_EQ(read(moved, "w", {whole({4, 2})}), spread("w", {4, 2}, {}).bytes());
  EXPECT_EQ(CheckpointReader::open(folder.path() / "optim").manifest().tensors[0].section, Section::optim);
}

TEST(CheckpointReader, ReadsOnlyTouchedBlocks) {
  const TemporaryFolder folder;
  const Shape shape = {1024, 1024};  // 4 blocks of 256 rows
  const HandTensor tensor = spread("w", shape, {whole(shape)});
  write_by_hand(folder.path(), {tensor});
  const auto counts_of = [&](const Box& box) {
    auto reader = CheckpointReader::open(folder.path());
    EXPECT_EQ(read(reader, "w", {box}), tensor.bytes(box));
    EXPECT_EQ(reader.counts().bytes_used, numel_of(box.size) * 4);
    EXPECT_EQ(reader.counts().bytes_read, reader.counts().blocks_verified * kChecksumBlock);
    return reader.counts().blocks_verified;
  };
  for (int64_t rank = 0; rank < 4; ++rank) EXPECT_EQ(counts_of({{256 * rank, 0}, {256, 1024}}), 1);
  for (int64_t rank = 0; rank < 16; ++rank) EXPECT_EQ(counts_of({{64 * rank, 0}, {64, 1024}}), 1);
  EXPECT_EQ(counts_of({{100, 0}, {200, 1024}}), 2);
  EXPECT_EQ(counts_of({{255, 1023}, {1, 1}}), 1);
  EXPECT_EQ(counts_of({{0, 7}, {1024, 3}}), 4);
  EXPECT_EQ(counts_of({{0, 0}, {0, 1024}}), 0);
  EXPECT_EQ(counts_of(whole(shape)), 4);
}

TEST(CheckpointReader, NeighboursShareABlock) {
  const TemporaryFolder folder;
  std::vector<HandTensor> tensors;
  for (int i = 0; i < 50; ++i)
    tensors.push_back(spread("t" + std::to_string(i), {30, 30}, cut({30, 30}, 1, 3)));
  write_by_hand(folder.path(), tensors);
  auto reader = CheckpointReader::open(folder.path());
  for (const HandTensor& tensor : tensors)
    EXPECT_EQ(read(reader, tensor.name, {whole({30, 30})}), tensor.bytes());
  EXPECT_EQ(reader.counts().blocks_verified, 3);
  EXPECT_EQ(reader.counts().bytes_read, reader.counts().bytes_used);
}

TEST(CheckpointReader, MoreFilesThanStayOpen) {
  const TemporaryFolder folder;
  const HandTensor a = spread("a", {300, 2}, cut({300, 2}, 0, 300)),
                   b = spread("b", {300}, cut({300}, 0, 300));
  write_by_hand(folder.path(), {a, b});
  auto reader = CheckpointReader::open(folder.path());
  EXPECT_NO_THROW(reader.check_files());
  EXPECT_EQ(read(reader, "a", {whole({300, 2})}), a.bytes());
  EXPECT_EQ(read(reader, "b", {whole({300})}), b.bytes());
  EXPECT_EQ(reader.counts().blocks_verified, 600);
}

TEST(CheckpointReader, ManyPiecesAreFoundQuickly) {
  const TemporaryFolder folder;
  constexpr int64_t kPieces = 20'000;
  for (const size_t d : {size_t{0}, size_t{1}}) {
    const Shape shape = d == 0 ? Shape{kPieces, 2} : Shape{2, kPieces};
    HandTensor tensor{"w", Section::model, DType::u8, shape, {{whole(shape), "a.safetensors"}}};
    Manifest manifest = write_by_hand(folder.path(), {tensor});
    auto& pieces = manifest.tensors[0].pieces;
    const int64_t begin = pieces[0].begin;
    pieces.clear();
    for (const Box& box : cut(shape, d, kPieces)) pieces.push_back({box, 0, begin + 2 * std::ssize(pieces)});
    folder.write("manifest.binpb", encode_manifest(manifest));
    auto reader = CheckpointReader::open(folder.path());
    for (const Box& box : cut(shape, d, kPieces / 2)) read(reader, "w", {box});
    EXPECT_EQ(reader.counts().blocks_verified, 1);
    EXPECT_EQ(reader.counts().bytes_used, 2 * kPieces);
  }
}

TEST(CheckpointReader, NoByteOfADamagedBlockIsUsed) {
  const TemporaryFolder folder;
  const Shape shape = {3 * 1024, 1024};  // 3 blocks of u8
  const HandTensor tensor = spread("w", shape, {whole(shape)}, DType::u8);
  const Manifest manifest = write_by_hand(folder.path(), {tensor});
  const int64_t header = manifest.files[0].header_bytes;
  flip(folder / "model/f0.safetensors", static_cast<size_t>(header + kChecksumBlock + 5));
  auto reader = CheckpointReader::open(folder.path());
  EXPECT_NO_THROW(reader.check_files());
  const Box first{{0, 0}, {1024, 1024}}, second{{1500, 0}, {1, 1}}, last{{2048, 0}, {1024, 1024}};
  EXPECT_EQ(read(reader, "w", {first}), tensor.bytes(first));
  for (int again = 0; again < 2; ++again) {
    char byte = '?';
    EXPECT_THAT(message_of<CorruptCheckpoint>(
                    [&] { reader.read(*reader.find(Section::model, "w"), std::vector<Box>{second}, &byte); }),
                AllOf(HasSubstr("\"w\""), HasSubstr("f0.safetensors"),
                      HasSubstr("[" + std::to_string(header + kChecksumBlock) + ", " +
                                std::to_string(header + 2 * kChecksumBlock) + ")")));
    EXPECT_EQ(byte, '?');
  }
  EXPECT_EQ(read(reader, "w", {last}), tensor.bytes(last));
}

/// Expects an error of reading, and of checking, after `spoil` has changed file f1 of two.
void expect_refusal(const std::function<void(const std::string& path)>& spoil, const std::string& why) {
  const TemporaryFolder folder;
  const Shape shape = {4, 2};
  const HandTensor tensor = spread("w", shape, cut(shape, 0, 2));
  write_by_hand(folder.path(), {tensor});
  spoil(folder / "model/f1.safetensors");
  auto reader = CheckpointReader::open(folder.path());
  const Box sound{{0, 0}, {2, 2}}, spoilt{{1, 0}, {2, 2}};
  EXPECT_EQ(read(reader, "w", {sound}), tensor.bytes(sound));
  const auto said = AllOf(HasSubstr("f1.safetensors"), HasSubstr(why));
  EXPECT_THAT(message_of<CorruptCheckpoint>([&] { read(reader, "w", {spoilt}); }), said);
  EXPECT_THAT(message_of<CorruptCheckpoint>([&] { reader.check_files(); }), said);
}

TEST(CheckpointReader, FilesThatAreNotAsRecordedAreRefused) {
  expect_refusal([](const std::string& path) { std::filesystem::remove(path); }, "missing");
  expect_refusal([](const std::string& path) { std::filesystem::resize_file(path, 10); }, "10 bytes instead");
  expect_refusal([](const std::string& path) { std::ofstream(path, std::ios::app) << "x"; }, "bytes instead");
  expect_refusal([](const std::string& path) { flip(path, 20); }, "header");
  expect_refusal([](const std::string& path) { flip(path, 0); }, "header");
}

TEST(CheckpointReader, TornManifestIsRefused) {
  const TemporaryFolder folder;
  write_by_hand(folder.path(), {spread("w", {4}, {whole({4})})});
  flip(folder / "manifest.binpb", 60);
  EXPECT_THAT(message_of<CorruptCheckpoint>([&] { (void)CheckpointReader::open(folder.path()); }),
              HasSubstr("manifest.binpb"));
}

TEST(CheckpointReader, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW((void)CheckpointReader::open(folder.path() / "missing"), IoError);
  EXPECT_THROW((void)CheckpointReader::open("/dev/null"), IoError);
  EXPECT_THAT(message_of<IoError>([&] { (void)CheckpointReader::open(folder.path()); }),
              HasSubstr("neither manifest.binpb nor"));
  folder.write("text", "hello, world");
  EXPECT_THROW((void)CheckpointReader::open(folder.path() / "text"), CorruptCheckpoint);
}

TEST(CheckpointReader, BoxesOutsideAreRefused) {
  const TemporaryFolder folder;
  write_by_hand(folder.path(), {spread("w", {4, 2}, {whole({4, 2})})});
  auto reader = CheckpointReader::open(folder.path());
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const Box& box : std::vector<Box>{{{0, 0}, {5, 2}},
                                         {{4, 0}, {1, 2}},
                                         {{-1, 0}, {1, 2}},
                                         {{0, 0}, {-1, 2}},
                                         {{kMax, 0}, {1, 1}},
                                         {{1, 0}, {kMax, 1}},
                                         {{0}, {4}},
                                         {{}, {}},
                                         {{0, 0, 0}, {1, 1, 1}}}) {
    EXPECT_THROW(reader.read(*reader.find(Section::model, "w"), std::vector<Box>{box}, nullptr),
                 InvalidArgument)
        << to_string(box.offset) << to_string(box.size);
  }
  EXPECT_NO_THROW(
      reader.read(*reader.find(Section::model, "w"), std::vector<Box>{{{4, 2}, {0, 0}}}, nullptr));
  const CheckpointTensor foreign = reader.manifest().tensors[0];
  EXPECT_THROW(reader.read(foreign, {}, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace sherd
