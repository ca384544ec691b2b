#include <sherd/checkpoint/format/manifest.h>

#include <cstring>
#include <functional>

#include <xxhash.h>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

/// A [2, 3] f32 tensor in two files, a [1] step, an empty tensor; 24, 16 and 0 bytes of data.
Manifest small() {
  Manifest m;
  m.sequence = 7;
  m.training = {100, 800, 42, {{"routing", "a \xe2\x82\xac"}, {"config", ""}}};
  m.files = {{"model/a.safetensors", 100 + 12, 100, 11, {1}},
             {"model/b.safetensors", 50 + 12, 50, 12, {2}},
             {"optim/c.safetensors", 50 + 4, 50, 13, {3}},
             {"optim/empty.safetensors", 10, 10, 14, {}}};
  m.tensors = {
      {"w", Section::model, DType::f32, {2, 3}, {{{{0, 0}, {1, 3}}, 0, 100}, {{{1, 0}, {1, 3}}, 1, 50}}},
      {"w", Section::optim, DType::f32, {1}, {{{{0}, {1}}, 2, 50}}},
      {"none", Section::model, DType::bf16, {0, 4}, {}}};
  return m;
}

/// Compares bytes: equal manifests have equal bytes.
void expect_equal(const Manifest& a, const Manifest& b) { EXPECT_EQ(encode_manifest(a), encode_manifest(b)); }

/// Returns decode_manifest's error for small() after a change, with correct checksums.
std::string refusal(const std::function<void(Manifest&)>& change) {
  Manifest m = small();
  change(m);
  const std::string bytes = encode_manifest(m);
  EXPECT_NO_THROW((void)decode_part(encode_part(m)));
  return message_of<CorruptCheckpoint>([&] { (void)decode_manifest(bytes); });
}

/// A manifest of any message, with the right prefix.
std::string with_prefix(const std::string& message, uint32_t version = 1, uint32_t zero = 0) {
  std::string prefix = "sherdckp" + std::string(40, '\0');
  const auto put = [&](size_t at, auto value) { std::memcpy(prefix.data() + at, &value, sizeof value); };
  put(8, version);
  put(12, zero);
  put(24, uint64_t{message.size()});
  put(32, uint64_t{XXH3_64bits(message.data(), message.size())});
  put(40, uint64_t{XXH3_64bits(prefix.data(), 40)});
  return prefix + message;
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest m = small();
  const std::string bytes = encode_manifest(m);
  const Manifest back = decode_manifest(bytes);
  EXPECT_EQ(back.sequence, 7u);
  EXPECT_EQ(back.training, m.training);
  EXPECT_TRUE(back.checksums);
  ASSERT_EQ(back.files.size(), 4u);
  EXPECT_EQ(back.files[1].path, "model/b.safetensors");
  EXPECT_EQ(back.files[1].bytes, 62);
  EXPECT_EQ(back.files[1].header_bytes, 50);
  EXPECT_EQ(back.files[1].header_checksum, 12u);
  EXPECT_EQ(back.files[1].block_checksums, std::vector<uint64_t>{2});
  ASSERT_EQ(back.tensors.size(), 3u);
  EXPECT_EQ(back.tensors[0].pieces[1].box, (Box{{1, 0}, {1, 3}}));
  EXPECT_EQ(back.tensors[0].pieces[1].file, 1);
  EXPECT_EQ(back.tensors[0].pieces[1].begin, 50);
  EXPECT_EQ(back.tensors[2].dtype, DType::bf16);
  expect_equal(m, back);
  EXPECT_EQ(decode_sequence(bytes), 7u);
  EXPECT_EQ(decode_sequence(bytes.substr(0, kManifestPrefix)), 7u);
  EXPECT_EQ(back.find(Section::optim, "w"), &back.tensors[1]);
  EXPECT_EQ(back.find(Section::optim, "none"), nullptr);
}

TEST(Manifest, OfNothing) { expect_equal(decode_manifest(encode_manifest({})), {}); }

TEST(Manifest, LargeNumbersComeBack) {
  Manifest m;
  m.sequence = ~uint64_t{0};
  m.training = {kLargest, kLargest, ~uint64_t{0}, {}};
  m.tensors = {{"empty", Section::optim, DType::f64, {kLargest / 8, 0}, {}}};
  const Manifest back = decode_manifest(encode_manifest(m));
  EXPECT_EQ(back.training, m.training);
  expect_equal(m, back);
}

TEST(Manifest, PrefixIsAsTheFormatSays) {
  const std::string bytes = encode_manifest(small());
  EXPECT_EQ(bytes.substr(0, 16), std::string("sherdckp\1\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(bytes.substr(16, 8), std::string("\7\0\0\0\0\0\0\0", 8));
  const std::string again = with_prefix(bytes.substr(48));
  EXPECT_EQ(bytes.substr(24, 16), again.substr(24, 16));
}

TEST(Manifest, EveryFlippedBitIsRefused) {
  const std::string sound = encode_manifest(small());
  for (size_t at = 0; at < sound.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = sound;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      EXPECT_THROW((void)decode_manifest(bytes), CorruptCheckpoint) << at;
      if (at < 48) {
        EXPECT_THROW((void)decode_sequence(bytes), CorruptCheckpoint) << at;
      }
    }
  }
}

TEST(Manifest, EveryOtherLengthIsRefused) {
  const std::string sound = encode_manifest(small());
  for (size_t length = 0; length < sound.size(); ++length)
    EXPECT_THROW((void)decode_manifest(sound.substr(0, length)), CorruptCheckpoint) << length;
  EXPECT_THROW((void)decode_manifest(sound + '\0'), CorruptCheckpoint);
  EXPECT_THROW((void)decode_manifest(sound + sound), CorruptCheckpoint);
}

TEST(Manifest, OtherVersionsAreRefusedByNumber) {
  EXPECT_NO_THROW((void)decode_manifest(with_prefix("")));
  EXPECT_THAT(message_of<NewerFormat>([] { (void)decode_manifest(with_prefix("", 2)); }),
              AllOf(HasSubstr("version 2"), HasSubstr("reads versions up to 1"), HasSubstr("newer program")));
  EXPECT_THROW((void)decode_manifest(with_prefix("", 0)), CorruptCheckpoint);
  EXPECT_THROW((void)decode_manifest(with_prefix("", 1, 1)), CorruptCheckpoint);
}

TEST(Manifest, MessagesThatAreNoneAreRefused) {
  EXPECT_THROW((void)decode_manifest(with_prefix("\x12")), CorruptCheckpoint);  // cut off
  EXPECT_THROW((void)decode_manifest(with_prefix("\x12\x7f"
                                                 "a")),
               CorruptCheckpoint);  // too long
  EXPECT_THROW((void)decode_manifest(with_prefix("\x12\x04\x0a\x02\xff\xff")),
               CorruptCheckpoint);                                      // no UTF-8
  EXPECT_NO_THROW((void)decode_manifest(with_prefix("\x98\x06\x01")));  // field 99, of a later sherd
  EXPECT_THROW((void)decode_part("\x12\x7f"), CorruptCheckpoint);
  // A key that ends within its entry, an entry that ends behind the message that holds it.
  EXPECT_NO_THROW((void)decode_part("\x0a\x05\x22\x03\x0a\x01k"));
  EXPECT_THROW((void)decode_part("\x0a\x05\x22\x04\x0a\x02kk"), CorruptCheckpoint);
  EXPECT_THROW((void)decode_part("\x1a\x02\x1a\x00"), CorruptCheckpoint);  // a tensor without dtype
  EXPECT_THROW((void)decode_part("\x1a\x07\x10\x05\x1a\x03"
                                 "F32"),
               CorruptCheckpoint);  // section 5
}

TEST(Manifest, TextThatIsNotUtf8IsNotWritten) {
  Manifest m = small();
  m.tensors[1].name = "a\xff";
  EXPECT_THROW((void)encode_manifest(m), InvalidArgument);
  EXPECT_THROW((void)encode_part(m), InvalidArgument);
  m = small();
  m.training.info["\xc0\x80"] = "";
  EXPECT_THROW((void)encode_manifest(m), InvalidArgument);
}

TEST(Manifest, BadPathsAreRefused) {
  for (const char* path :
       {"", "/etc/passwd", "a/", "a//b", ".", "..", "./a", "a/./b", "a/../b", "../a", "a/.."}) {
    EXPECT_THAT(refusal([&](Manifest& m) { m.files[0].path = path; }), HasSubstr("plain path")) << path;
  }
  EXPECT_THAT(refusal([](Manifest& m) { m.files[0].path = std::string("a\0b", 3); }),
              HasSubstr("plain path"));
  EXPECT_THAT(refusal([](Manifest& m) { m.files[0].path = m.files[2].path; }), HasSubstr("named twice"));
  EXPECT_EQ(refusal([](Manifest& m) { m.files[0].path = "..a/.b/c..d/..."; }), "nothing was thrown");
}

TEST(Manifest, BadFilesAreRefused) {
  const auto file_0 = [](const std::function<void(CheckpointFile&)>& change) {
    return refusal([&](Manifest& m) { change(m.files[0]); });
  };
  EXPECT_THAT(file_0([](auto& f) { f.header_bytes = 7; }), HasSubstr("impossible"));
  EXPECT_THAT(file_0([](auto& f) { f.header_bytes = -1; }), HasSubstr("impossible"));
  EXPECT_THAT(file_0([](auto& f) { f.bytes = 99; }), HasSubstr("impossible"));
  EXPECT_THAT(file_0([](auto& f) { f.bytes = -1; }), HasSubstr("impossible"));
  EXPECT_THAT(file_0([](auto& f) { f.bytes = kLargest; }), HasSubstr("impossible"));
  EXPECT_THAT(file_0([](auto& f) { f.bytes = kLargest / 2; }), HasSubstr("1 checksums"));
  EXPECT_THAT(file_0([](auto& f) { f.block_checksums = {}; }), HasSubstr("0 checksums"));
  EXPECT_THAT(file_0([](auto& f) { f.block_checksums = {1, 2}; }), HasSubstr("2 checksums"));
  EXPECT_THAT(refusal([](Manifest& m) { m.files[3].block_checksums = {1}; }), HasSubstr("1 checksums"));
}

TEST(Manifest, BadTensorsAreRefused) {
  const auto tensor_0 = [](const std::function<void(CheckpointTensor&)>& change) {
    return refusal([&](Manifest& m) { change(m.tensors[0]); });
  };
  EXPECT_THAT(refusal([](Manifest& m) { m.tensors[2].name = "w"; }),
              HasSubstr("model tensor \"w\": it is named twice"));
  EXPECT_THAT(refusal([](Manifest& m) { m.tensors[2].shape = {}; }), HasSubstr("0 dimensions"));
  EXPECT_THAT(refusal([](Manifest& m) { m.tensors[2].shape = Shape(9, 0); }), HasSubstr("9 dimensions"));
  EXPECT_THAT(refusal([](Manifest& m) { m.tensors[2].shape = {0, -1}; }), HasSubstr("negative"));
  EXPECT_THAT(refusal([](Manifest& m) { m.tensors[2].shape = {0, kLargest, 2}; }), HasSubstr("2^63"));
  EXPECT_THAT(tensor_0([](auto& t) { t.shape = {int64_t{1} << 31, int64_t{1} << 30}; }), HasSubstr("2^63"));
  EXPECT_THAT(tensor_0([](auto& t) { t.pieces.pop_back(); }), HasSubstr("element [1, 0] is in no piece"));
  EXPECT_THAT(tensor_0([](auto& t) { t.pieces.push_back(t.pieces[1]); }),
              HasSubstr("element [1, 0] is in 2 pieces"));
  EXPECT_THAT(tensor_0([](auto& t) { t.shape = {3, 3}; }), HasSubstr("element [2, 0] is in no piece"));
  EXPECT_THAT(tensor_0([](auto& t) { t.dtype = DType::bf16; }), HasSubstr("belong to no tensor"));
}

TEST(Manifest, BadPiecesAreRefused) {
  const auto piece = [](const std::function<void(CheckpointPiece&)>& change) {
    return refusal([&](Manifest& m) { change(m.tensors[0].pieces[1]); });
  };
  EXPECT_THAT(piece([](auto& p) { p.box.offset = {1}; }), HasSubstr("1 offsets and 2 sizes"));
  EXPECT_THAT(piece([](auto& p) { p.box.size = {1, 3, 1}; }), HasSubstr("2 offsets and 3 sizes"));
  EXPECT_THAT(piece([](auto& p) { p.box.size = {0, 3}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.size = {-1, 3}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.size = {2, 3}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.size = {kLargest, kLargest}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.offset = {-1, 0}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.offset = {2, 0}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.box.offset = {kLargest, kLargest}; }), HasSubstr("empty or not inside"));
  EXPECT_THAT(piece([](auto& p) { p.file = 4; }), HasSubstr("there are 4 files"));
  EXPECT_THAT(piece([](auto& p) { p.file = std::numeric_limits<int>::max(); }),
              HasSubstr("there are 4 files"));
  EXPECT_THAT(piece([](auto& p) { p.begin = 49; }), HasSubstr("outside the data"));
  EXPECT_THAT(piece([](auto& p) { p.begin = 51; }), HasSubstr("outside the data"));
  EXPECT_THAT(piece([](auto& p) { p.begin = -1; }), HasSubstr("outside the data"));
  EXPECT_THAT(piece([](auto& p) { p.begin = kLargest; }), HasSubstr("outside the data"));
  EXPECT_THAT(piece([](auto& p) { p.file = 0, p.begin = 100; }), HasSubstr("they overlap"));
}

TEST(Manifest, DataOfNoTensorIsRefused) {
  const auto grown = [](int64_t header, int64_t rest) {
    return refusal([=](Manifest& m) {
      m.files[0].bytes += rest;
      m.files[0].header_bytes -= header;
    });
  };
  EXPECT_THAT(grown(1, 0), HasSubstr("there is a hole"));
  EXPECT_THAT(grown(0, 1), HasSubstr("bytes [112, 113) belong to no tensor"));
  EXPECT_THAT(refusal([](Manifest& m) {
                m.files[3].bytes = 11;
                m.files[3].block_checksums = {0};
              }),
              HasSubstr("bytes [10, 11) belong to no tensor"));
}

TEST(Manifest, NegativeStepsAreRefused) {
  EXPECT_THAT(refusal([](Manifest& m) { m.training.step = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refusal([](Manifest& m) { m.training.sequences = -1; }), HasSubstr("negative"));
}

TEST(Manifest, WithoutChecksumsHasNone) {
  Manifest m = small();
  m.checksums = false;
  EXPECT_THROW(check_manifest(m), CorruptCheckpoint);
  for (CheckpointFile& file : m.files) file.block_checksums.clear();
  EXPECT_NO_THROW(check_manifest(m));
}

TEST(Manifest, PartsFollowNoRules) {
  Manifest m = small();
  m.tensors.erase(m.tensors.begin(), m.tensors.begin() + 2);
  m.files[0].bytes = -5;
  const Manifest back = decode_part(encode_part(m));
  EXPECT_EQ(back.files[0].bytes, -5);
  EXPECT_EQ(back.training, TrainingState{});
  ASSERT_EQ(back.tensors.size(), 1u);
  EXPECT_EQ(back.tensors[0].shape, (Shape{0, 4}));
}

TEST(Manifest, BlocksOfAFile) {
  CheckpointFile file{"a", 100 + 2 * kChecksumBlock + 1, 100, 0, {}};
  EXPECT_EQ(file.blocks(), 3);
  EXPECT_EQ(file.block_begin(2), 100 + 2 * kChecksumBlock);
  EXPECT_EQ(file.block_end(2), file.bytes);
  file.bytes -= 1;
  EXPECT_EQ(file.blocks(), 2);
  file.bytes = 100;
  EXPECT_EQ(file.blocks(), 0);
}

}  // namespace
}  // namespace sherd
