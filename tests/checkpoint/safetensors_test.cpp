#include <sherd/checkpoint/safetensors/safetensors.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <sherd/base/error.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

/// A file as the format describes it, with no check at all.
std::string raw_file(const std::string& header, const std::string& data = "") {
  return length_prefix(header.size()) + header + data;
}

// ---- what is written is read
// ----------------------------------------------------------------------------------------

TEST(Safetensors, RoundTripKeepsEverything) {
  const TemporaryFolder folder;
  const std::string path = folder / "all.safetensors";
  const std::vector<SafetensorsSpec> specs = {
      {"z.last \"quoted\" \xc3\xa9\n", DType::f32, {2, 3}},
      {"scalar", DType::f64, {}},
      {"empty", DType::i32, {0, 7}},
      {"b", DType::bf16, {5}},
      {"h", DType::f16, {1, 1}},
      {"i", DType::i32, {2}},
      {"l", DType::i64, {1}},
      {"a", DType::u8, {3}},
      {"void", DType::f32, {0}},
  };
  std::string data;
  for (const auto& spec : specs) {
    for (int64_t i = 0; i < numel_of(spec.shape) * size_of(spec.dtype); ++i) {
      data.push_back(static_cast<char>(data.size() * 37 + 1));
    }
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "\xe2\x82\xac \\ \""}};
  SafetensorsWriter writer(path, specs, metadata);
  for (size_t at = 0; at < data.size(); at += 5) {  // pieces that respect no tensor
    writer.append(data.data() + at, static_cast<int64_t>(std::min<size_t>(5, data.size() - at)));
  }
  writer.finish();

  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), metadata);
  ASSERT_EQ(reader.entries().size(), specs.size());
  int64_t begin = 0;
  for (const auto& spec : specs) {
    const SafetensorsEntry* entry = reader.find(spec.name);
    ASSERT_NE(entry, nullptr) << spec.name;
    EXPECT_EQ(entry->dtype, spec.dtype);
    EXPECT_EQ(entry->shape, spec.shape);
    EXPECT_EQ(entry->begin, begin) << "data follows the order given";
    const int64_t count = numel_of(spec.shape);
    std::string bytes(static_cast<size_t>(count * size_of(spec.dtype)), 'x');
    reader.read(*entry, 0, count, bytes.data());
    EXPECT_EQ(bytes, data.substr(static_cast<size_t>(begin), bytes.size()));
    begin = entry->end;
  }
  EXPECT_EQ(reader.find("no such name"), nullptr);
  EXPECT_EQ(reader.find("__metadata__"), nullptr);
}

TEST(Safetensors, BytesAreThoseOfTheFormat) {
  const TemporaryFolder folder;
  const std::string path = folder / "one.safetensors";
  SafetensorsWriter writer(path, {{"w", DType::f32, {2}}}, {{"format", "pt"}});
  const float values[] = {1.0f, -2.0f};
  writer.append(values, sizeof values);
  writer.finish();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_bytes(path), raw_file(header, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8)));
}

TEST(Safetensors, PieceCarriesTheShapeOfTheWhole) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "f", {{"e", DType::u8, {1}, Shape{4, 3}}, {"w", DType::u8, {1}}});
  writer.append("xy", 2);
  writer.finish();
  EXPECT_THAT(read_bytes(folder / "f"),
              HasSubstr(R"({"e":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"global_shape":[4,3]},)"
                        R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})"));
  const SafetensorsReader reader(folder / "f");
  EXPECT_EQ(reader.find("e")->shape, Shape{1});
}

TEST(Safetensors, DataStartsAtAMultipleOfEight) {
  const TemporaryFolder folder;
  for (size_t length = 1; length <= 16; ++length) {
    const std::string path = folder / "f";
    SafetensorsWriter writer(path, {{std::string(length, 'n'), DType::u8, {1}}});
    writer.append("!", 1);
    writer.finish();
    EXPECT_EQ(read_bytes(path).size() % 8, 1u);
  }
}

TEST(Safetensors, FileWithoutTensors) {
  const TemporaryFolder folder;
  SafetensorsWriter(folder / "none", {}).finish();
  EXPECT_EQ(read_bytes(folder / "none"), raw_file("{}      "));
  EXPECT_THAT(SafetensorsReader(folder / "none").entries(), IsEmpty());
}

TEST(Safetensors, ReadsPartsFromSeveralThreads) {
  const TemporaryFolder folder;
  std::vector<int32_t> values(10000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * i);
  SafetensorsWriter writer(folder / "f", {{"pad", DType::u8, {3}}, {"v", DType::i32, {100, 100}}});
  writer.append("abc", 3);
  writer.append(values.data(), 40000);
  writer.finish();
  const SafetensorsReader reader(folder / "f");
  const SafetensorsEntry& entry = *reader.find("v");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t first = static_cast<int64_t>(t); first + 9 <= 10000; first += 23) {
        std::vector<int32_t> part(9);
        reader.read(entry, first, 9, part.data());
        wrong[t] += !std::equal(part.begin(), part.end(), values.begin() + first);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(Safetensors, ReadOutsideTheTensorIsRefused) {
  const TemporaryFolder folder;
  const SafetensorsReader reader(
      folder.write("f", raw_file(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd")));
  char to[8] = {};
  const SafetensorsEntry& w = *reader.find("w");
  EXPECT_THROW(reader.read(w, -1, 1, to), InvalidArgument);
  EXPECT_THROW(reader.read(w, 0, -1, to), InvalidArgument);
  EXPECT_THROW(reader.read(w, 0, 5, to), InvalidArgument);
  EXPECT_THROW(reader.read(w, 5, 0, to), InvalidArgument);
  EXPECT_THROW(reader.read(w, 3, INT64_MAX, to), InvalidArgument);
  reader.read(w, 4, 0, to);
  reader.read(w, 1, 3, to);
  EXPECT_STREQ(to, "bcd");
}

TEST(Safetensors, ForeignTypesAreListedButNotRead) {
  const TemporaryFolder folder;
  const SafetensorsReader reader(
      folder.write("f", raw_file(R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},)"
                                 R"("q":{"dtype":"F8_E4M3","shape":[1,3],"data_offsets":[2,5]},)"
                                 R"("s":{"dtype":"I16","shape":[1],"data_offsets":[5,7]}})",
                                 "\x01\x02...ab")));
  EXPECT_EQ(reader.find("q")->shape, (Shape{1, 3}));
  EXPECT_EQ(reader.find("q")->dtype_name, "F8_E4M3");
  EXPECT_EQ(reader.find("s")->dtype, std::nullopt);
  char to[2];
  EXPECT_THAT(message_of<NotSupported>([&] { reader.read(*reader.find("mask"), 0, 2, to); }),
              AllOf(HasSubstr("mask"), HasSubstr("BOOL")));
}

TEST(Safetensors, TypesOfLessThanAByteArePacked) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& dtype, const std::string& shape, int64_t bytes) {
    return folder.write(
        "f", raw_file(fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})", dtype,
                                  shape, bytes),
                      std::string(static_cast<size_t>(bytes), 'x')));
  };
  for (const auto& [dtype, shape, bytes] : {std::tuple{"F4", "[3,2]", 3},
                                            {"F4", "[0]", 0},
                                            {"F6_E2M3", "[4]", 3},
                                            {"F6_E3M2", "[2,4]", 6},
                                            {"F8_E4M3FNUZ", "[5]", 5},
                                            {"F8_E5M2FNUZ", "[5]", 5},
                                            {"F8_E8M0", "[5]", 5},
                                            {"C64", "[2]", 16}}) {
    const SafetensorsReader reader(file(dtype, shape, bytes));
    const SafetensorsEntry& w = *reader.find("w");
    EXPECT_EQ(w.dtype, std::nullopt) << dtype;
    std::string all(static_cast<size_t>(bytes), ' ');
    reader.read_bytes(w, 0, bytes, all.data());
    EXPECT_EQ(all, std::string(static_cast<size_t>(bytes), 'x'));
  }
  // safetensors refuses these, too.
  const auto refusal = [&](const char* dtype, const char* shape, int64_t bytes) {
    return message_of<CorruptCheckpoint>([&] { SafetensorsReader reader(file(dtype, shape, bytes)); });
  };
  EXPECT_THAT(refusal("F4", "[3]", 2),
              HasSubstr("F4 of shape [3] takes 12 bits, which do not fill the last byte"));
  EXPECT_THAT(refusal("F4", "[]", 1), HasSubstr("takes 4 bits"));
  EXPECT_THAT(refusal("F6_E2M3", "[2]", 2), HasSubstr("takes 12 bits"));
  EXPECT_THAT(refusal("F6_E2M3", "[4]", 4), HasSubstr("takes 3 bytes, but its data has 4"));
  EXPECT_THAT(refusal("F4", "[4611686018427387904]", 8), HasSubstr("2^63"));
  EXPECT_THAT(refusal("I4", "[2]", 1), HasSubstr("unknown dtype \"I4\""));
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  const TemporaryFolder folder;
  // Names in any order, empty tensors at any boundary, unknown members of an entry, spaces, no metadata.
  const SafetensorsReader reader(
      folder.write("f", raw_file("{ \"b\" : {\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},\n"
                                 "\"a\":{\"data_offsets\":[0,4],\"dtype\":\"F32\",\"shape\":[],\"another_"
                                 "shape\":[[1],{\"x\":null}]},\n"
                                 "\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[4,4]},\n"
                                 "\"e2\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[6,6]} }   ",
                                 "123456")));
  std::vector<std::string> order;
  for (const auto& entry : reader.entries()) order.push_back(entry.name);
  EXPECT_THAT(order, ElementsAre("a", "e", "b", "e2"));
  EXPECT_EQ(reader.find("a")->shape, Shape{});
}

// ---- damaged and hostile files
// --------------------------------------------------------------------------------------

struct Damaged {
  const char* name;
  std::string bytes;
  const char* reason;  // part of the message
};

std::string entry(const std::string& body) { return raw_file("{\"w\":{" + body + "}}", "12345678"); }

std::vector<Damaged> damaged_files() {
  const std::string ok = R"("dtype":"U8","shape":[8],"data_offsets":[0,8])";
  const std::string u8 = R"({"dtype":"U8","shape":[4],"data_offsets":)";
  const std::string zero(1, '\0');
  return {
      {"empty", "", "0 bytes are too few"},
      {"seven_bytes", std::string(7, '\0'), "7 bytes are too few"},
      {"length_zero", raw_file(""), "does not start with '{'"},
      {"length_beyond_file", length_prefix(100) + "{}", "claims 100 bytes, but only 2 follow"},
      {"length_over_limit", length_prefix(100'000'001) + "{}", "claims 100000001 bytes"},
      {"length_huge", length_prefix(UINT64_MAX) + "{}", "claims 18446744073709551615"},
      {"header_truncated", entry(ok).substr(0, 30), "claims"},
      {"data_truncated", entry(ok).substr(0, entry(ok).size() - 1), "\"w\": its data ends at byte 8"},
      {"data_missing", raw_file("{\"w\":{" + ok + "}}"),
       "\"w\": its data ends at byte 8, but the file has 0"},
      {"trailing_bytes", entry(ok) + "9", "1 bytes follow the last tensor"},
      {"trailing_bytes_without_tensors", raw_file("{}", "x"), "1 bytes follow"},
      {"starts_with_space", raw_file(" {}"), "does not start with '{'"},
      {"starts_with_array", raw_file("[]"), "does not start with '{'"},
      {"starts_with_byte_order_mark", raw_file("\xef\xbb\xbf{}"), "does not start with '{'"},
      {"json_cut", raw_file("{\"w\":{"), "not valid JSON"},
      {"json_twice", raw_file("{}{}"), "not valid JSON"},
      {"json_comment", raw_file("{/**/}"), "not valid JSON"},
      {"json_deep", raw_file("{\"w\":" + std::string(100'000, '[')), "nested more than 64 deep"},
      {"json_number_overflow", raw_file(R"({"w":{"x":1e999}})"), "not valid JSON"},
      {"zero_byte_after_json", raw_file("{}" + zero + "junk"), "zero byte"},
      {"invalid_utf8_name", raw_file("{\"\xff\":{" + ok + "}}", "12345678"), "not valid JSON"},
      {"overlong_utf8_name", raw_file("{\"\xc0\xaf\":{" + ok + "}}", "12345678"), "not valid JSON"},
      {"surrogate_utf8_name", raw_file("{\"\xed\xa0\x80\":{" + ok + "}}", "12345678"), "not valid JSON"},
      {"invalid_utf8_metadata", raw_file("{\"__metadata__\":{\"k\":\"\x80\"}}"), "not valid JSON"},
      {"same_name_twice", raw_file("{\"w\":" + u8 + "[0,4]},\"w\":" + u8 + "[4,8]}}", "12345678"),
       "\"w\" appears twice"},
      {"same_name_escaped", raw_file("{\"w\":" + u8 + "[0,4]},\"\\u0077\":" + u8 + "[4,8]}}", "12345678"),
       "\"w\" appears twice"},
      {"same_key_in_entry", entry(ok + R"(,"shape":[8])"), "\"shape\" appears twice"},
      {"same_key_in_metadata", raw_file(R"({"__metadata__":{"a":"1","a":"2"}})"), "\"a\" appears twice"},
      {"metadata_twice", raw_file(R"({"__metadata__":{},"__metadata__":{}})"), "appears twice"},
      {"metadata_no_object", raw_file(R"({"__metadata__":["a"]})"), "\"__metadata__\": it is not an object"},
      {"metadata_number", raw_file(R"({"__metadata__":{"a":1}})"), "the value of \"a\" is not a string"},
      {"hole_at_start", raw_file("{\"w\":" + u8 + "[1,5]}}", "12345"), "\"w\": its data begins at byte 1"},
      {"hole_between", raw_file("{\"v\":" + u8 + "[0,4]},\"w\":" + u8 + "[5,9]}}", "123456789"),
       "there is a hole"},
      {"overlap", raw_file("{\"v\":" + u8 + "[0,4]},\"w\":" + u8 + "[3,7]}}", "1234567"),
       "\"w\": its data begins at byte 3, but what lies before ends at 4: they overlap"},
      {"same_bytes_twice", raw_file("{\"v\":" + u8 + "[0,4]},\"w\":" + u8 + "[0,4]}}", "1234"),
       "they overlap"},
      {"empty_inside_other",
       raw_file("{\"v\":" + u8 + R"([0,4]},"w":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})", "1234"),
       "overlap"},
      {"end_before_begin", entry(R"("dtype":"U8","shape":[8],"data_offsets":[8,0])"),
       "\"w\": its data ends at 0"},
      {"offsets_negative", entry(R"("dtype":"U8","shape":[8],"data_offsets":[-8,0])"), "integers from 0"},
      {"offsets_fraction", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,8.0])"), "integers from 0"},
      {"offsets_above_63_bits", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,9223372036854775808])"),
       "integers from 0"},
      {"offsets_above_64_bits", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551624])"),
       "integers from 0"},
      {"offsets_three", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,4,8])"), "not a pair"},
      {"offsets_string", entry(R"("dtype":"U8","shape":[8],"data_offsets":"08")"), "not an array"},
      {"offsets_missing", entry(R"("dtype":"U8","shape":[8])"), "\"data_offsets\" is missing"},
      {"shape_too_small", entry(R"("dtype":"U8","shape":[7],"data_offsets":[0,8])"),
       "\"w\": U8 of shape [7] takes 7 bytes, but its data has 8"},
      {"shape_too_large", entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "takes 12 bytes"},
      {"shape_negative", entry(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])"), "\"shape\" holds"},
      {"shape_bool", entry(R"("dtype":"U8","shape":[true],"data_offsets":[0,8])"), "\"shape\" holds"},
      {"shape_missing", entry(R"("dtype":"U8","data_offsets":[0,8])"), "\"shape\" is missing"},
      // 2^32 * 2^32 wraps to 0 in 64 bits, 2^61 * 8 too.
      {"product_overflow", entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       "2^63 - 1"},
      {"product_overflow_by_type",
       entry(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"), "2^63 - 1"},
      {"product_overflow_times_zero",
       entry(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), "2^63 - 1"},
      {"dtype_unknown", entry(R"("dtype":"F31","shape":[8],"data_offsets":[0,8])"), "unknown dtype \"F31\""},
      {"dtype_lower_case", entry(R"("dtype":"u8","shape":[8],"data_offsets":[0,8])"), "unknown dtype"},
      {"dtype_missing", entry(R"("shape":[8],"data_offsets":[0,8])"), "\"dtype\" is missing"},
      {"dtype_number", entry(R"("dtype":8,"shape":[8],"data_offsets":[0,8])"),
       "\"dtype\" is missing or not a string"},
      {"entry_no_object", raw_file(R"({"w":[0,8]})", "12345678"), "\"w\": the entry is not an object"},
      {"name_absurdly_long", raw_file("{\"" + std::string(100'000, 'x') + "\":3}"),
       "the entry is not an object"},
  };
}

class DamagedFile : public ::testing::TestWithParam<Damaged> {};

TEST_P(DamagedFile, IsNamedWithItsOffender) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.safetensors", GetParam().bytes);
  const std::string message = message_of<CorruptCheckpoint>([&] { SafetensorsReader reader(path); });
  EXPECT_THAT(message, AllOf(HasSubstr(path), HasSubstr(GetParam().reason)));
  EXPECT_LT(message.size(), 1000u);
}

INSTANTIATE_TEST_SUITE_P(Safetensors, DamagedFile, ::testing::ValuesIn(damaged_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, RandomDamageNeverGetsPastTheChecks) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "f", {{"alpha", DType::f32, {4, 2}}, {"beta", DType::u8, {3}}},
                           {{"k", "v"}});
  writer.append(std::string(35, 'd').data(), 35);
  writer.finish();
  const std::string sound = read_bytes(folder / "f");
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string bytes = sound;
    for (auto n = random() % 3 + 1; n > 0; --n)
      bytes[random() % (bytes.size() - 35)] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const std::string path = folder.write("g", bytes);
    try {
      const SafetensorsReader reader(path);
      std::vector<char> to(bytes.size());
      for (const auto& e : reader.entries()) {
        if (e.dtype) reader.read(e, 0, numel_of(e.shape), to.data());
      }
    } catch (const CorruptCheckpoint&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST(Safetensors, MissingFileIsAnIoErrorWithTheSystemsReason) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsReader reader(folder / "missing"); }),
              AllOf(HasSubstr(folder / "missing"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsReader reader(folder.path()); }), HasSubstr("directory"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { SafetensorsReader reader(folder / "pipe"); }),
              HasSubstr("regular file"));
}

TEST(Safetensors, FileThatShrinksWhileOpenIsAnIoError) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])"));
  const SafetensorsReader reader(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  char to[8];
  EXPECT_THAT(message_of<IoError>([&] { reader.read(*reader.find("w"), 0, 8, to); }),
              HasSubstr("it ends at"));
}

// ---- the writer leaves either the whole file or nothing
// ----------------------------------------------------------------

TEST(SafetensorsWriter, WhatKilledWritersLeftIsRemovedAndNothingThatIsStillWritten) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  folder.write("f.tmp-123456-0", "left");
  folder.write("f.tmp-123456-0.bak", "a user's");
  folder.write("g.tmp-123456-0", "of another path");
  SafetensorsWriter first(path, {{"w", DType::u8, {1}}});
  const std::string own = "f.tmp-" + std::to_string(::getpid()) + "-0";
  EXPECT_THAT(names_in(folder.path()),
              ::testing::UnorderedElementsAre(own, "f.tmp-123456-0.bak", "g.tmp-123456-0"));
  SafetensorsWriter second(path, {{"w", DType::u8, {1}}});
  first.append("1", 1);
  first.finish();
  second.append("2", 1);
  second.finish();
  EXPECT_THAT(names_in(folder.path()),
              ::testing::UnorderedElementsAre("f", "f.tmp-123456-0.bak", "g.tmp-123456-0"));
}

TEST(SafetensorsWriter, FileAppearsOnlyWhenFinished) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "the old file");
  {
    SafetensorsWriter writer(path, {{"w", DType::u8, {2}}});
    writer.append("ab", 2);
    EXPECT_EQ(read_bytes(path), "the old file");
    EXPECT_EQ(names_in(folder.path()).size(), 2u);
    EXPECT_THAT(names_in(folder.path())[1], HasSubstr("f.tmp-"));
    writer.finish();
    EXPECT_THROW(writer.append("c", 1), InvalidArgument);
    EXPECT_THROW(writer.finish(), InvalidArgument);
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
  EXPECT_EQ(SafetensorsReader(path).entries().size(), 1u);
}

TEST(SafetensorsWriter, UnfinishedLeavesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "the old file");
  {
    SafetensorsWriter writer(path, {{"w", DType::u8, {2}}, {"v", DType::f32, {3, 1}}});
    EXPECT_THROW(writer.append("1234567890abcdef", 15), InvalidArgument);
    writer.append("1234567", 7);
    EXPECT_THAT(message_of<InvalidArgument>([&] { writer.finish(); }),
                AllOf(HasSubstr("7 of 14 bytes"), HasSubstr("'v'"), HasSubstr(path)));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
  EXPECT_EQ(read_bytes(path), "the old file");
}

TEST(SafetensorsWriter, TwoWritersOfOnePathDoNotMix) {
  const TemporaryFolder folder;
  SafetensorsWriter a(folder / "f", {{"a", DType::u8, {1}}}), b(folder / "f", {{"b", DType::u8, {1}}});
  a.append("A", 1);
  b.append("B", 1);
  a.finish();
  EXPECT_NE(SafetensorsReader(folder / "f").find("a"), nullptr);
  b.finish();
  EXPECT_NE(SafetensorsReader(folder / "f").find("b"), nullptr);
}

TEST(SafetensorsWriter, NamesAllUnusableTensors) {
  const TemporaryFolder folder;
  const auto write = [&](std::vector<SafetensorsSpec> specs) {
    return message_of<InvalidArgument>([&] { SafetensorsWriter writer(folder / "f", std::move(specs)); });
  };
  EXPECT_THAT(write({{"a", DType::u8, {1}},
                     {"a", DType::u8, {1}},
                     {"__metadata__", DType::u8, {1}},
                     {"n", DType::u8, {-1}},
                     {"o", DType::f32, {int64_t{1} << 62}}}),
              AllOf(HasSubstr("'a' [1]: this name appears twice"),
                    HasSubstr("'__metadata__' [1]: this name is reserved"), HasSubstr("'n' [-1]"),
                    HasSubstr("'o' [4611686018427387904]")));
  EXPECT_THAT(write({{"p", DType::u8, {INT64_MAX}}, {"q", DType::u8, {1}}}), HasSubstr("'q' [1]"));
  EXPECT_THAT(write({{"\xff", DType::u8, {1}}}), HasSubstr("UTF-8"));
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(SafetensorsWriter, UnwritablePlacesAreIoErrors) {
  const TemporaryFolder folder;
  const auto write = [](const std::string& path) {
    return message_of<IoError>([&] { SafetensorsWriter writer(path, {}); });
  };
  EXPECT_THAT(write(folder / "no/such/folder/f"),
              AllOf(HasSubstr("no/such/folder/f"), HasSubstr("No such file")));
  EXPECT_THAT(write(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(write("/dev/null"), HasSubstr("not a regular file"));
}

/// Writing beyond `bytes` in a file fails while this lives, after what still fits was taken: a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(SafetensorsWriter, FullDiskIsAnIoErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "the old file");
  const std::string data(100'000, 'x');
  std::string in_header, in_data, after;
  {
    const FullDisk disk(20);
    in_header = message_of<IoError>([&] { SafetensorsWriter writer(path, {{"w", DType::u8, {1}}}); });
  }
  {
    const FullDisk disk(50'000);
    SafetensorsWriter writer(path, {{"w", DType::u8, {100'000}}});
    in_data = message_of<IoError>([&] { writer.append(data.data(), 100'000); });
    after = message_of<InvalidArgument>([&] { writer.append(data.data(), 100'000); });
  }
  EXPECT_THAT(in_header, AllOf(HasSubstr("cannot write"), HasSubstr(path), HasSubstr("File too large")));
  EXPECT_THAT(in_data, AllOf(HasSubstr("cannot write"), HasSubstr(path), HasSubstr("File too large")));
  EXPECT_THAT(after, HasSubstr("has failed"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("f"));
  EXPECT_EQ(read_bytes(path), "the old file");
}

}  // namespace
}  // namespace sherd
