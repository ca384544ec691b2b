#include <sherd/train/settings/saved_settings.h>

#include <system_error>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/train/detail/paths.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "manifest.binpb";

}  // namespace

bool has_checkpoints(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (is_checkpoint_name(entry->path().filename().string())) return true;
  return false;
}

SavedTraining saved_training(const fs::path& given, FileSystem& files) {
  fs::path path = detail::without_slash(given);
  if (path.filename() == kManifestName) path = path.parent_path();
  if (is_checkpoint_name(path.filename().string()) ||
      files.kind(path / kManifestName) != FileSystem::Kind::none)
    return {path, CheckpointReader::open(path, files).manifest().training};
  if (files.kind(path) != FileSystem::Kind::folder)
    throw IoError(fmt::format("'{}' is neither a checkpoint nor a folder of checkpoints",
                              printable(given.string(), std::string::npos)));
  for (const CommittedCheckpoint& c : list_checkpoints(path, files)) {
    try {
      const CheckpointReader reader = CheckpointReader::open(path / c.name, files);
      if (model_not_finite(reader.manifest()) == 0) return {path / c.name, reader.manifest().training};
    } catch (const IoError&) {
      // Pruned meanwhile by a run that saves there, say: an older one will do, as it does for resume().
    } catch (const CorruptCheckpoint&) {
    }
  }
  throw IoError(
      fmt::format("'{}' holds no checkpoint that can be read", printable(given.string(), std::string::npos)));
}

}  // namespace sherd
