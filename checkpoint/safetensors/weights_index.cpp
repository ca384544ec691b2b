#include <sherd/checkpoint/safetensors/detail/weights_index.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/checkpoint/files/detail/json_text.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/files/detail/plain_path.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

constexpr int64_t kMaxIndexBytes = 100'000'000;

}  // namespace

std::map<std::string, std::string> read_weights_index(const fs::path& path, FileSystem& files) {
  const nlohmann::json index = parse_json(read_whole(files, path, kMaxIndexBytes), "the index");
  const auto weights = index.is_object() ? index.find("weight_map") : index.end();
  if (weights == index.end() || !weights->is_object())
    throw CorruptCheckpoint("its object \"weight_map\" is missing");
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : weights->items()) {
    if (!file.is_string() || !is_plain_path(file.get_ref<const std::string&>()))
      throw CorruptCheckpoint(fmt::format("{} is not in a file of this folder", shown(name)));
    // Weights are stored beside their index. Known writers make no files in subfolders, and a writer of a
    // folder like this one keeps file names alone.
    if (file.get_ref<const std::string&>().find('/') != std::string::npos)
      throw CorruptCheckpoint(fmt::format(
          "{} is said to be in {}, a folder below; move that file beside the index and name it so there",
          shown(name), shown(file.get<std::string>())));
    map[name] = file.get<std::string>();
  }
  return map;
}

std::vector<std::string> weights_files(const fs::path& folder, FileSystem& files) {
  if (files.kind(folder / kWeightsIndex) == Kind::file) {
    std::vector<std::string> names;
    try {
      for (const auto& [tensor, file] : read_weights_index(folder / kWeightsIndex, files))
        names.push_back(file);
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("'{}': {}", (folder / kWeightsIndex).string(), e.what()));
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }
  if (files.kind(folder / kWeightsFile) == Kind::file) return {kWeightsFile};
  std::vector<std::string> names = files.list(folder);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  if (names.empty())
    throw IoError(
        fmt::format("'{}' holds no .safetensors files: name a folder that transformers' "
                    "save_pretrained() wrote",
                    folder.string()));
  return names;
}

fs::path weights_path(const fs::path& path, FileSystem& files) {
  const bool alone = files.kind(path) == Kind::folder && files.kind(path / "manifest.binpb") == Kind::none &&
                     files.kind(path / kWeightsIndex) == Kind::none &&
                     files.kind(path / kWeightsFile) == Kind::file;
  if (alone) require_inside(path, kWeightsFile);
  return alone ? path / kWeightsFile : path;
}

}  // namespace sherd
