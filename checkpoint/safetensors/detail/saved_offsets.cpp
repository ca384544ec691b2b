#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>

#include <fmt/format.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

std::map<std::string, Shape> parse(const SafetensorsReader& file, const std::string& text) {
  std::map<std::string, Shape> offsets;
  const nlohmann::json info = parse_json(text, "it");
  if (!info.is_object()) throw CorruptCheckpoint("it is not an object");
  for (const auto& [name, value] : info.items()) {
    const SafetensorsEntry* entry = file.find(name);
    if (entry == nullptr) throw CorruptCheckpoint(fmt::format("the file has no tensor {}", shown(name)));
    if (!value.is_object()) throw CorruptCheckpoint(fmt::format("{}: not an object", shown(name)));
    Shape offset = whole_numbers(value, "saved_offsets");
    if (entry->shape.empty() && offset == Shape{0}) offset.clear();
    if (offset.size() != entry->shape.size()) {
      throw CorruptCheckpoint(fmt::format("{}: {} offsets for the {} dimensions of {}", shown(name),
                                          offset.size(), entry->shape.size(), to_string(entry->shape)));
    }
    offsets[name] = std::move(offset);
  }
  return offsets;
}

}  // namespace

std::map<std::string, Shape> saved_offsets(const SafetensorsReader& file) {
  const auto found = file.metadata().find(kShardingInfo);
  if (found == file.metadata().end()) return {};
  try {
    return parse(file, found->second);
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(fmt::format("'{}': {}: {}", file.path().string(), kShardingInfo, e.what()));
  }
}

}  // namespace sherd
