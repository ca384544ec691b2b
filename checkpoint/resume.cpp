#include <sherd/checkpoint/resume.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

namespace sherd {
namespace {

constexpr const char* kManifestName = "manifest.binpb";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The folder that a path means: without a slash at the end, or the manifest's name.
std::filesystem::path bare(const std::filesystem::path& given) {
  const auto path = given.has_filename() || !given.has_parent_path() ? given : given.parent_path();
  return path.filename() == kManifestName ? path.parent_path() : path;
}

// Folders to try, newest first. A path that names a checkpoint is the only one.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& given, FileSystem& files,
                                              std::vector<std::string>& skipped) {
  const auto refuse = [&](const char* why) {
    throw IoError(fmt::format(
        "cannot resume from '{}': {}; name a checkpoint (step_XXXXXXXX) or the folder they were saved in",
        given.string(), why));
  };
  const auto path = bare(given);
  const FileSystem::Kind kind = files.kind(path);
  if (kind == FileSystem::Kind::none) refuse("there is nothing of that name");
  if (kind != FileSystem::Kind::folder) refuse("it is no folder");
  if (is_checkpoint_name(path.filename().string()) ||
      files.kind(path / kManifestName) != FileSystem::Kind::none)
    return {path};
  std::vector<std::filesystem::path> found;
  for (const CommittedCheckpoint& c : list_checkpoints(path, files, &skipped)) found.push_back(path / c.name);
  if (found.empty() && skipped.empty()) refuse("it holds no checkpoint");
  return found;
}

}  // namespace

Resumed resume(const std::filesystem::path& path, ModuleBase& root, Optimizer* optimizer,
               const LoadOptions& options, const std::function<std::string(const TrainingState&)>& check,
               FileSystem& files) {
  return resume(path, root, optimizer == nullptr ? std::vector<Optimizer*>{} : std::vector{optimizer}, options, check,
                files);
}

Resumed resume(const std::filesystem::path& path, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
               const LoadOptions& options, const std::function<std::string(const TrainingState&)>& check,
               FileSystem& files) {
  Agreement ranks(*runtime_of(root).mesh().world());
  Resumed resumed;
  std::string list, unusable;
  bool chosen = false;  // from a save folder; on rank 0
  ranks.run_collectively([&] {
    if (ranks.rank() != 0) return;
    std::vector<std::string> reasons;
    const auto found = candidates(path, files, reasons);
    chosen = found.empty() || found.front() != bare(path);
    for (auto& candidate : found) list += candidate.string() + "\n";
    for (auto& reason : reasons) unusable += reason + "\n";
  });
  const std::vector<std::string> folders = lines_of(ranks.broadcast(list));
  resumed.skipped = lines_of(ranks.broadcast(unusable));
  for (const std::string& folder : folders) {
    try {
      std::optional<CheckpointReader> reader;
      ranks.run_collectively([&] {
        reader.emplace(CheckpointReader::open(folder, files));
        if (ranks.rank() != 0) return;
        reader->check_files();
        if (const int64_t wild = model_not_finite(reader->manifest()); wild > 0 && chosen)
          throw CorruptCheckpoint(fmt::format(
              "'{}': {} values of its model are not finite; name it itself to load it all the same", folder,
              wild));
      });
      resumed.path = folder;
      LoadOptions load = options;
      ranks.run_collectively([&] {
        if (check) load.cause = check(reader->manifest().training);
      });
      resumed.report = load_checkpoint(*reader, root, optimizers, load);
      return resumed;
    } catch (const IoError& e) {
      // A bad sector, or pruned meanwhile by the run that saves there.
      if (folders.size() == 1 && resumed.skipped.empty()) throw;
      resumed.skipped.push_back(e.what());
    } catch (const CorruptCheckpoint& e) {
      if (folders.size() == 1 && resumed.skipped.empty())
        throw CorruptCheckpoint(fmt::format(
            "cannot resume: {}; `sherd ckpt verify` lists all damage; resume from another checkpoint",
            e.what()));
      resumed.skipped.push_back(e.what());
    }
  }
  throw CorruptCheckpoint(fmt::format("cannot resume: no checkpoint in '{}' can be used: {}", path.string(),
                                      fmt::join(resumed.skipped, "; ")));
}

}  // namespace sherd
