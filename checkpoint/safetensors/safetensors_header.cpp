#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd::safetensors {
namespace {

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("names and metadata must be valid UTF-8");
  }
}

}  // namespace

int64_t bytes_of(const SafetensorsSpec& tensor) {
  return checked_bytes(tensor.shape, size_of(tensor.dtype)).value();
}

std::string make_header(const std::vector<SafetensorsSpec>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(json_string(key) + ":" + json_string(value));
    members.push_back(fmt::format("\"{}\":{{{}}}", kMetadata, fmt::join(pairs, ",")));
  }
  int64_t begin = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t end = begin + bytes_of(tensor);
    std::string member =
        fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}])", json_string(tensor.name),
                    type_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, end);
    if (tensor.global_shape) {
      member += fmt::format(R"(,"global_shape":[{}])", fmt::join(*tensor.global_shape, ","));
    }
    members.push_back(member + "}");
    begin = end;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    throw InvalidArgument(
        fmt::format("names, shapes and metadata take {} bytes; the format allows {}: write several "
                    "files",
                    header.size(), kMaxHeaderBytes));
  }
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

}  // namespace sherd::safetensors
