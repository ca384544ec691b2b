#include <sherd/checkpoint/safetensors/safetensors.h>

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/detail/foreign_content.h>
#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd {
namespace {

using nlohmann::json;
using namespace safetensors;

/// Checks one entry by itself; the caller adds name and file to the message.
SafetensorsEntry parse_entry(const json& value, int64_t data_bytes) {
  if (!value.is_object()) throw CorruptCheckpoint("the entry is not an object");
  SafetensorsEntry entry;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string())
    throw CorruptCheckpoint("\"dtype\" is missing or not a string");
  entry.dtype_name = dtype->get<std::string>();
  const Type* type = find_type(entry.dtype_name);
  if (type == nullptr) throw CorruptCheckpoint(fmt::format("unknown dtype {}", shown(entry.dtype_name)));
  entry.dtype = type->dtype;
  entry.shape = whole_numbers(value, "shape");
  if (value.contains("global_shape")) entry.global_shape = whole_numbers(value, "global_shape");
  const Shape offsets = whole_numbers(value, "data_offsets");
  if (offsets.size() != 2) throw CorruptCheckpoint("\"data_offsets\" is not a pair");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end < entry.begin) {
    throw CorruptCheckpoint(
        fmt::format("its data ends at {}, before its begin at {}", entry.end, entry.begin));
  }
  if (entry.end > data_bytes) {
    throw CorruptCheckpoint(
        fmt::format("its data ends at byte {}, but the file has {} bytes of data: it was cut off", entry.end,
                    data_bytes));
  }
  const bool packed = type->bits % 8 != 0;
  std::optional<int64_t> needed = checked_bytes(entry.shape, packed ? type->bits : type->bits / 8);
  if (!needed) throw CorruptCheckpoint("the product of its shape passes 2^63 - 1 bytes");
  if (packed) {
    if (*needed % 8 != 0)
      throw CorruptCheckpoint(fmt::format("{} of shape {} takes {} bits, which do not fill the last byte",
                                          entry.dtype_name, to_string(entry.shape), *needed));
    needed = *needed / 8;
  }
  if (*needed != entry.end - entry.begin) {
    throw CorruptCheckpoint(fmt::format("{} of shape {} takes {} bytes, but its data has {}",
                                        entry.dtype_name, to_string(entry.shape), *needed,
                                        entry.end - entry.begin));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const json& value) {
  if (!value.is_object()) throw CorruptCheckpoint("it is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      throw CorruptCheckpoint(fmt::format("the value of {} is not a string", shown(key)));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// Sorts by place and demands that the entries cover the data without hole, overlap or rest.
void check_coverage(std::vector<SafetensorsEntry>& entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      throw CorruptCheckpoint(fmt::format(
          "{}: its data begins at byte {}, but what lies before ends at {}: {}", shown(entry.name),
          entry.begin, covered, entry.begin < covered ? "they overlap" : "there is a hole"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw CorruptCheckpoint(
        fmt::format("{} bytes follow the last tensor and belong to none", data_bytes - covered));
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, FileSystem& files)
    : file_(files.open(path)) {
  try {
    const int64_t size = file_->size();
    if (size < kLengthBytes) {
      throw CorruptCheckpoint(fmt::format("{} bytes are too few to hold even a header's length", size));
    }
    uint64_t length = 0;
    file_->read_at(0, &length, kLengthBytes);
    if (length > kMaxHeaderBytes) {
      throw CorruptCheckpoint(
          fmt::format("the header claims {} bytes; the format allows {}", length, kMaxHeaderBytes));
    }
    const auto header_bytes = static_cast<int64_t>(length);
    if (header_bytes > size - kLengthBytes) {
      throw CorruptCheckpoint(
          fmt::format("the header claims {} bytes, but only {} follow: the file was cut off", header_bytes,
                      size - kLengthBytes));
    }
    std::string header(length, '\0');
    file_->read_at(kLengthBytes, header.data(), header_bytes);
    data_start_ = kLengthBytes + header_bytes;
    parse(header, size - data_start_);
  } catch (const CorruptCheckpoint& e) {
    std::string begin(static_cast<size_t>(std::min<int64_t>(file_->size(), kForeignBytes)), '\0');
    file_->read_at(0, begin.data(), std::ssize(begin));
    if (const std::string what = foreign_content(begin); !what.empty())
      throw CorruptCheckpoint(
          fmt::format("'{}' is not a safetensors file: it {}", printable(path.string()), what));
    throw CorruptCheckpoint(
        fmt::format("'{}' is not a sound safetensors file: {}", printable(path.string()), e.what()));
  }
}

void SafetensorsReader::parse(std::string_view header, int64_t data_bytes) {
  if (!header.starts_with('{')) throw CorruptCheckpoint("the header does not start with '{'");
  const json parsed = parse_json(header, "the header");
  for (const auto& [name, value] : parsed.items()) {
    try {
      if (name == kMetadata) {
        metadata_ = parse_metadata(value);
        continue;
      }
      entries_.push_back(parse_entry(value, data_bytes));
      entries_.back().name = name;
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("{}: {}", shown(name), e.what()));
    }
  }
  check_coverage(entries_, data_bytes);
  for (size_t i = 0; i < entries_.size(); ++i) by_name_[entries_[i].name] = i;
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsReader::read(const SafetensorsEntry& entry, int64_t first, int64_t count, void* to) const {
  if (!entry.dtype) {
    throw NotSupported(
        fmt::format("'{}': {} has dtype {}, which sherd cannot read; convert the file to one of "
                    "F32, BF16, F16, F64, I32, I64, U8, I8, F8_E4M3",
                    path().string(), shown(entry.name), entry.dtype_name));
  }
  const int64_t numel = numel_of(entry.shape);
  if (first < 0 || count < 0 || first > numel || count > numel - first) {
    throw InvalidArgument(fmt::format("'{}': {} elements from {} on are outside {}, which has {}",
                                      path().string(), count, first, shown(entry.name), numel));
  }
  const int64_t width = size_of(*entry.dtype);
  file_->read_at(data_start_ + entry.begin + first * width, to, count * width);
}

void SafetensorsReader::read_bytes(const SafetensorsEntry& entry, int64_t first, int64_t bytes,
                                   void* to) const {
  const int64_t size = entry.end - entry.begin;
  if (first < 0 || bytes < 0 || first > size || bytes > size - first) {
    throw InvalidArgument(fmt::format("'{}': {} bytes from {} on are outside {}, which has {}",
                                      path().string(), bytes, first, shown(entry.name), size));
  }
  file_->read_at(data_start_ + entry.begin + first, to, bytes);
}

void SafetensorsReader::read_data(int64_t begin, int64_t bytes, void* to) const {
  file_->read_at(data_start_ + begin, to, bytes);
}

void SafetensorsReader::will_read(int64_t begin, int64_t bytes) const {
  file_->will_read(data_start_ + begin, bytes);
}

std::string SafetensorsReader::header() const {
  std::string bytes(static_cast<size_t>(data_start_), '\0');
  file_->read_at(0, bytes.data(), data_start_);
  return bytes;
}

}  // namespace sherd
