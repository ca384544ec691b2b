#include <sherd/checkpoint/stored_folder.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

constexpr int64_t kMaxOtherBytes = int64_t{64} << 20;

// Weights of this format and others, and what lists their files.
constexpr std::string_view kWeightsEndings[] = {".safetensors", ".bin", ".pt",   ".pth",  ".ckpt",      ".h5",
                                                ".msgpack",     ".ot",  ".onnx", ".gguf", ".index.json"};

bool is_other(const std::string& name) {
  return !name.starts_with('.') &&
         (name == kWeightsIndex || std::none_of(std::begin(kWeightsEndings), std::end(kWeightsEndings),
                                                [&](std::string_view end) { return name.ends_with(end); }));
}

std::map<std::string, std::string> read_others(const fs::path& path, FileSystem& files) {
  std::map<std::string, std::string> others;
  for (const std::string& name : files.list(path)) {
    if (!is_other(name) || files.kind(path / name) == Kind::folder || !is_inside(path, name)) continue;
    const auto file = files.open(path / name);
    const int64_t size = file->size();
    if (size > kMaxOtherBytes) continue;
    std::string contents(static_cast<size_t>(size), '\0');
    file->read_at(0, contents.data(), size);
    others.emplace(name, std::move(contents));
  }
  return others;
}

void require_folder(const fs::path& path, FileSystem& files) {
  if (files.kind(path) != Kind::folder)
    throw IoError(fmt::format("cannot read '{}': it is not a folder", path.string()));
}

}  // namespace

std::shared_ptr<const StoredFolder> StoredFolder::open(const fs::path& path, FileSystem& files) {
  require_folder(path, files);
  std::shared_ptr<StoredFolder> folder(new StoredFolder);
  folder->path_ = path;
  const std::vector<std::string> names = weights_files(path, files);
  std::map<std::string, std::string> holders;
  for (const std::string& name : names) {
    require_inside(path, name);
    const SafetensorsReader& file = folder->weights_.emplace_back(path / name, files);
    for (const SafetensorsEntry& e : file.entries())
      if (const auto [other, is_new] = holders.emplace(e.name, name); !is_new)
        throw CorruptCheckpoint(
            fmt::format("'{}': another file of its folder, '{}', has '{}', too, and a folder with both "
                        "cannot be followed; remove one",
                        printable(file.path().string()), printable(other->second), printable(e.name)));
  }
  folder->others_ = read_others(path, files);
  if (names == std::vector<std::string>{kWeightsFile})
    folder->others_.erase(kWeightsIndex);  // of other files
  return folder;
}

std::map<std::string, std::string> StoredFolder::files_beside_weights(const fs::path& path,
                                                                      FileSystem& files) {
  require_folder(path, files);
  std::map<std::string, std::string> others = read_others(path, files);
  others.erase(kWeightsIndex);
  return others;
}

std::vector<std::string> StoredFolder::links_outside(const fs::path& path, FileSystem& files) {
  require_folder(path, files);
  std::vector<std::string> names = files.list(path);
  std::erase_if(names, [&](const std::string& name) { return !is_other(name) || is_inside(path, name); });
  return names;
}

}  // namespace sherd
