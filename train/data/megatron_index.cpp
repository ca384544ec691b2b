#include <sherd/train/data/megatron_index.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr char kMagic[] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int64_t kHeader = sizeof kMagic + 8 + 1 + 8 + 8;
constexpr int64_t kNumbers = 8192;  // numbers that are read at once
constexpr const char* kRemake = "; make it again, with Megatron's preprocess_data.py or scripts/tokenize.py";

[[noreturn]] void refuse_index(const FileBytes& index, const std::string& why) {
  throw IoError(fmt::format("the index '{}' {}", index.path().string(), why));
}

template <class T>
T number_at(const FileBytes& file, int64_t offset) {
  T value;
  file.read(offset, &value, sizeof value);
  return value;
}

TokenType type_of(const FileBytes& index, uint8_t code) {
  if (code == 4) return TokenType::i32;
  if (code == 8) return TokenType::u16;
  constexpr const char* kOthers[] = {"no type", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  refuse_index(
      index,
      fmt::format("has tokens of type {} ({}); 4 (i32) and 8 (u16) can be read: make it again with one of "
                  "these",
                  code, code < std::size(kOthers) ? kOthers[code] : "unknown"));
}

/// Calls f(i, number) for `count` numbers from byte `offset` on.
template <class T, class F>
void for_each_number(const FileBytes& file, int64_t offset, int64_t count, F&& f) {
  std::vector<T> chunk(static_cast<size_t>(std::min(kNumbers, count)));
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(kNumbers, count - done);
    file.read(offset + done * static_cast<int64_t>(sizeof(T)), chunk.data(),
              n * static_cast<int64_t>(sizeof(T)));
    for (int64_t i = 0; i < n; ++i) f(done + i, chunk[static_cast<size_t>(i)]);
    done += n;
  }
}

/// Each begins where the one before ends, and the last ends with `bin`.
void check_sequences(const FileBytes& index, const FileBytes& bin, int64_t count, TokenType type) {
  const int64_t lengths = kHeader, offsets = lengths + 4 * count;
  int64_t end = 0, at = 0;
  std::vector<int32_t> some(static_cast<size_t>(std::min(kNumbers, count)));
  for_each_number<int64_t>(index, offsets, count, [&](int64_t i, int64_t offset) {
    if (i % kNumbers == 0) {
      index.read(lengths + 4 * i, some.data(), 4 * std::min(kNumbers, count - i));
      at = i;
    }
    const int32_t length = some[static_cast<size_t>(i - at)];
    if (length < 0) refuse_index(index, fmt::format("gives sequence {} the length {}{}", i, length, kRemake));
    if (offset != end)
      refuse_index(
          index,
          fmt::format("has sequence {} begin at byte {} of '{}', not at {} where the one before ends{}", i,
                      offset, bin.path().string(), end, kRemake));
    end += length * bytes_of(type);
    if (end > bin.size())
      refuse_index(
          index,
          fmt::format("has sequence {} end at byte {} of '{}', which has {}; the .bin was cut short, or is "
                      "another one's{}",
                      i, end, bin.path().string(), bin.size(), kRemake));
  });
  if (end != bin.size())
    refuse_index(index, fmt::format("lists {} bytes of '{}', which has {}; the .bin is another one's{}", end,
                                    bin.path().string(), bin.size(), kRemake));
}

void check_documents(const FileBytes& index, int64_t offset, int64_t count, int64_t sequences) {
  int64_t before = 0;
  for_each_number<int64_t>(index, offset, count, [&](int64_t i, int64_t bound) {
    if ((i == 0 && bound != 0) || bound < before || bound > sequences)
      refuse_index(index, fmt::format("has {} as bound {} of its documents, after {}, of {} sequences{}",
                                      bound, i, before, sequences, kRemake));
    before = bound;
  });
  if (before != sequences)
    refuse_index(index, fmt::format("has documents of {} of its {} sequences{}", before, sequences, kRemake));
}

}  // namespace

bool is_megatron_index(const FileBytes& file) {
  char magic[sizeof kMagic];
  if (file.size() < static_cast<int64_t>(sizeof magic)) return false;
  file.read(0, magic, sizeof magic);
  return std::memcmp(magic, kMagic, sizeof magic) == 0;
}

std::vector<int64_t> megatron_documents(const FileBytes& index) {
  const auto sequences = static_cast<int64_t>(number_at<uint64_t>(index, 18)),
             bounds = static_cast<int64_t>(number_at<uint64_t>(index, 26));
  std::vector<int64_t> ends{0};  // of sequences, in tokens
  for_each_number<int32_t>(index, kHeader, sequences,
                           [&](int64_t, int32_t length) { ends.push_back(ends.back() + length); });
  std::vector<int64_t> documents;
  int64_t before = 0;
  for_each_number<int64_t>(index, kHeader + 12 * sequences, bounds, [&](int64_t i, int64_t bound) {
    const int64_t end = ends[static_cast<size_t>(bound)];
    if (i > 0) documents.push_back(end - before);
    before = end;
  });
  return documents;
}

TokenType read_megatron_index(const FileBytes& index, const FileBytes& bin) {
  if (!is_megatron_index(index) || index.size() < kHeader)
    refuse_index(index, fmt::format("does not begin as Megatron's do (MMIDIDX){}", kRemake));
  const auto version = number_at<uint64_t>(index, 9);
  if (version != 1)
    refuse_index(index, fmt::format("is of version {}; version 1 can be read{}", version, kRemake));
  const TokenType type = type_of(index, number_at<uint8_t>(index, 17));
  const auto sequences = number_at<uint64_t>(index, 18), bounds = number_at<uint64_t>(index, 26);
  // Counts that the file has no room for would overflow the sum below.
  const auto room = static_cast<uint64_t>(index.size());
  const bool fits = sequences <= room / 12 && bounds <= room / 8;
  const uint64_t expected = fits ? kHeader + 12 * sequences + 8 * bounds : 0;
  if (fits && sequences > 0 && expected + sequences == room)
    refuse_index(
        index,
        "holds a mode for each sequence, as data sets of text and images do; only those of text can be read");
  if (expected != room)
    refuse_index(index,
                 fmt::format("has {} bytes, which {} sequences and {} bounds of documents do not make{}",
                             index.size(), sequences, bounds, kRemake));
  check_sequences(index, bin, static_cast<int64_t>(sequences), type);
  check_documents(index, kHeader + 12 * static_cast<int64_t>(sequences), static_cast<int64_t>(bounds),
                  static_cast<int64_t>(sequences));
  return type;
}

}  // namespace sherd
