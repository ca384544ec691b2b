#include <sherd/checkpoint/safetensors/detail/weights_index.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/files/detail/plain_path.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

constexpr int64_t kMaxIndexBytes = 100'000'000;

/// "./a/./b" as "a/b".
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0, end; begin <= path.size(); begin = end + 1) {
    end = std::min(path.find('/', begin), path.size());
    if (const std::string_view part = path.substr(begin, end - begin); part != ".") parts.push_back(part);
  }
  return fmt::format("{}", fmt::join(parts, "/"));
}

}  // namespace

std::map<std::string, std::string> read_weights_index(const fs::path& path, FileSystem& files) {
  const nlohmann::json index = parse_json(read_whole(files, path, kMaxIndexBytes), "the index");
  const auto weights = index.is_object() ? index.find("weight_map") : index.end();
  if (weights == index.end() || !weights->is_object())
    throw CorruptCheckpoint("its object \"weight_map\" is missing");
  std::map<std::string, std::string> map;
  for (const auto& [name, file] : weights->items()) {
    const std::string plain = file.is_string() ? without_dots(file.get_ref<const std::string&>()) : "";
    if (!is_plain_path(plain))
      throw CorruptCheckpoint(fmt::format("{} is not in a file of this folder", shown(name)));
    map[name] = plain;
  }
  return map;
}

std::vector<std::string> weights_files(const fs::path& folder, FileSystem& files) {
  if (files.kind(folder / kWeightsFile) == Kind::file) return {kWeightsFile};
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
  std::vector<std::string> names = files.list(folder);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  if (names.empty())
    refuse_without_safetensors(
        folder, files,
        "holds no .safetensors files; name a folder that transformers' save_pretrained() wrote");
  return names;
}

void refuse_without_safetensors(const fs::path& folder, FileSystem& files, std::string_view otherwise) {
  std::string why(otherwise);
  const std::vector<std::string> names = files.list(folder);
  const auto greatest = [&](auto is) {
    std::string found;
    for (const std::string& name : names)
      if (is(std::string_view(name))) found = std::max(found, name);
    return found;
  };
  const std::string checkpoint = greatest([&](std::string_view name) {
    return name.starts_with("step_") && files.kind(folder / name / "manifest.binpb") == Kind::file;
  });
  const std::string pytorch = greatest([](std::string_view name) {
    return (name.starts_with("pytorch_model") && name.ends_with(".bin")) || name.ends_with(".pt") ||
           name.ends_with(".pth");
  });
  if (!checkpoint.empty())
    why = fmt::format("is a folder of checkpoints; name one of them, such as '{}'",
                      (folder / checkpoint).string());
  else if (!pytorch.empty())
    why = fmt::format(
        "holds PyTorch's {}, and .safetensors files alone are read; convert it in Python: "
        "transformers.AutoModelForCausalLM.from_pretrained('{}').save_pretrained('NEW_FOLDER')",
        shown(pytorch), folder.string());
  throw IoError(fmt::format("cannot read '{}': it {}", folder.string(), why));
}

fs::path weights_path(const fs::path& path, FileSystem& files) {
  const bool alone = files.kind(path) == Kind::folder && files.kind(path / "manifest.binpb") == Kind::none &&
                     files.kind(path / kWeightsIndex) == Kind::none &&
                     files.kind(path / kWeightsFile) == Kind::file;
  if (alone) require_inside(path, kWeightsFile);
  return alone ? path / kWeightsFile : path;
}

}  // namespace sherd
