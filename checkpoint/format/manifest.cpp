#include <sherd/checkpoint/format/manifest.h>

#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <xxhash.h>

#include <sherd/base/error.h>
#include <sherd/base/version.h>
#include <sherd/checkpoint/format/detail/manifest_message.h>

namespace sherd {
namespace {

constexpr std::string_view kMagic = "sherdckp";
constexpr uint32_t kVersion = 1;
/// Protobuf's own limit.
constexpr size_t kMaxMessage = std::numeric_limits<int>::max();

/// The first bytes of manifest.binpb, field by field as they lie in the file (little-endian).
struct Prefix {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t sequence;
  uint64_t message_bytes;
  uint64_t message_checksum;
  uint64_t prefix_checksum;
};
static_assert(sizeof(Prefix) == kManifestPrefix);
constexpr int64_t kChecked = offsetof(Prefix, prefix_checksum);

Prefix decode_prefix(std::string_view bytes) {
  if (bytes.size() < sizeof(Prefix)) {
    throw CorruptCheckpoint(
        fmt::format("it has {} bytes; a manifest has at least {}", bytes.size(), sizeof(Prefix)));
  }
  Prefix prefix;
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (std::string_view(prefix.magic, sizeof prefix.magic) != kMagic)
    throw CorruptCheckpoint("it does not begin with \"sherdckp\": this is not a manifest");
  if (prefix.prefix_checksum != checksum(&prefix, kChecked))
    throw CorruptCheckpoint("the checksum of its first 40 bytes differs: they are damaged");
  if (prefix.version > kVersion)
    throw NewerFormat(
        fmt::format("it has format version {}, and this program, sherd {}, reads versions up to {}; use the "
                    "newer program that wrote it, or another folder",
                    prefix.version, program_version(), kVersion));
  if (prefix.version == 0 || prefix.zero != 0)
    throw CorruptCheckpoint(
        fmt::format("it has format version {}.{}, which does not exist", prefix.version, prefix.zero));
  return prefix;
}

/// The same bytes every time: maps are written in the order of their keys.
std::string serialize(const proto::Manifest& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > kMaxMessage) {
    throw InvalidArgument(fmt::format(
        "the manifest of {} tensors in {} files takes {} bytes; {} are allowed: save fewer, larger tensors",
        message.tensors_size(), message.files_size(), bytes, kMaxMessage));
  }
  std::string text;
  text.reserve(bytes);
  google::protobuf::io::StringOutputStream stream(&text);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeWithCachedSizes(&coded);
  coded.Trim();
  return text;
}

/// A field that holds messages, and such fields of those.
struct Nested {
  int field;
  std::vector<Nested> inside;
};

/// Returns whether every message ends inside the enclosing one.
bool is_nested_right(google::protobuf::io::CodedInputStream& in, const std::vector<Nested>& fields) {
  using google::protobuf::internal::WireFormatLite;
  while (const uint32_t tag = in.ReadTag()) {
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Nested& f) {
      return tag == WireFormatLite::MakeTag(f.field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
    });
    if (field == fields.end()) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length) || length > in.BytesUntilLimit()) return false;
    const auto outer = in.PushLimit(length);
    if (!is_nested_right(in, field->inside)) return false;
    in.PopLimit(outer);
  }
  return in.BytesUntilLimit() == 0;
}

/// Protobuf finds out by itself too, but first believes the lengths and makes room for what they promise.
bool is_nested_right(std::string_view message) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()),
                                            static_cast<int>(message.size()));
  in.PushLimit(static_cast<int>(message.size()));
  return is_nested_right(in,
                         {{proto::Manifest::kTrainingFieldNumber, {{proto::Training::kInfoFieldNumber, {}}}},
                          {proto::Manifest::kFilesFieldNumber, {}},
                          {proto::Manifest::kTensorsFieldNumber, {{proto::Tensor::kPiecesFieldNumber, {}}}}});
}

Manifest parse(std::string_view bytes) {
  proto::Manifest message;
  if (bytes.size() > kMaxMessage || !is_nested_right(bytes) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    throw CorruptCheckpoint(fmt::format("its message of {} bytes cannot be parsed", bytes.size()));
  return from_message(message);
}

}  // namespace

const char* name_of(Section s) { return s == Section::model ? "model" : "optim"; }

uint64_t checksum(const void* data, int64_t bytes) { return XXH3_64bits(data, static_cast<size_t>(bytes)); }

const CheckpointTensor* Manifest::find(Section section, std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const CheckpointTensor& t) {
    return t.section == section && t.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

int64_t index_in_whole(const Shape& shape, const Box& box, int64_t at) {
  int64_t index = 0, stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    index += (box.offset[d] + at % box.size[d]) * stride;
    at /= box.size[d];
    stride *= shape[d];
  }
  return index;
}

NotFinite not_finite_of(const CheckpointTensor& tensor) {
  NotFinite all;
  for (const CheckpointPiece& piece : tensor.pieces) {
    if (piece.not_finite.count == 0) continue;
    const int64_t first = index_in_whole(tensor.shape, piece.box, piece.not_finite.first);
    all.first = all.count == 0 ? first : std::min(all.first, first);
    all.count += piece.not_finite.count;
  }
  return all;
}

int64_t model_not_finite(const Manifest& manifest) {
  int64_t count = 0;
  for (const CheckpointTensor& t : manifest.tensors)
    if (t.section == Section::model)
      for (const CheckpointPiece& piece : t.pieces) count += piece.not_finite.count;
  return count;
}

std::string encode_manifest(const Manifest& manifest) {
  const std::string message = serialize(to_message(manifest));
  Prefix prefix{};
  std::memcpy(prefix.magic, kMagic.data(), sizeof prefix.magic);
  prefix.version = kVersion;
  prefix.sequence = manifest.sequence;
  prefix.message_bytes = message.size();
  prefix.message_checksum = checksum(message.data(), static_cast<int64_t>(message.size()));
  prefix.prefix_checksum = checksum(&prefix, kChecked);
  return std::string(reinterpret_cast<const char*>(&prefix), sizeof prefix) + message;
}

uint64_t decode_sequence(std::string_view first_48_bytes) { return decode_prefix(first_48_bytes).sequence; }

uint64_t decode_message_checksum(std::string_view first_48_bytes) {
  return decode_prefix(first_48_bytes).message_checksum;
}

Manifest decode_manifest(std::string_view bytes) {
  const Prefix prefix = decode_prefix(bytes);
  const std::string_view message = bytes.substr(sizeof prefix);
  if (message.size() != prefix.message_bytes) {
    throw CorruptCheckpoint(fmt::format("its message has {} bytes instead of {}: it was cut off or extended",
                                        message.size(), prefix.message_bytes));
  }
  if (checksum(message.data(), static_cast<int64_t>(message.size())) != prefix.message_checksum)
    throw CorruptCheckpoint("the checksum of its message differs: it is damaged");
  Manifest manifest = parse(message);
  manifest.sequence = prefix.sequence;
  check_manifest(manifest);
  return manifest;
}

std::string encode_part(const Manifest& part) {
  proto::Manifest message = to_message(part);
  message.clear_training();
  return serialize(message);
}

Manifest decode_part(std::string_view bytes) { return parse(bytes); }

}  // namespace sherd
