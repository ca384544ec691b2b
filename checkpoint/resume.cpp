#include <sherd/checkpoint/resume.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include <sherd/checkpoint/agreement.h>
#include <sherd/checkpoint/checkpoint_folder.h>

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

// Folders to try, newest first. A path that names a checkpoint is the only one.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& path, FileSystem& files,
                                              std::vector<std::string>& skipped) {
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (is_checkpoint_name(name) || files.kind(path / kManifestName) != FileSystem::Kind::none) return {path};
  std::vector<std::filesystem::path> found;
  for (const CommittedCheckpoint& c : list_checkpoints(path, files, &skipped)) found.push_back(path / c.name);
  if (found.empty() && skipped.empty())
    throw IoError(
        fmt::format("cannot resume: '{}' holds no checkpoint (no folder step_XXXXXXXX); name a "
                    "checkpoint or the folder they were saved in",
                    path.string()));
  return found;
}

}  // namespace

Resumed resume(const std::filesystem::path& path, Module& root, Optimizer* optimizer,
               const LoadOptions& options, FileSystem& files) {
  Agreement ranks(*runtime_of(root).mesh().world());
  Resumed resumed;
  std::string list, unusable;
  ranks.together([&] {
    if (ranks.rank() != 0) return;
    std::vector<std::string> reasons;
    for (auto& candidate : candidates(path, files, reasons)) list += candidate.string() + "\n";
    for (auto& reason : reasons) unusable += reason + "\n";
  });
  const std::vector<std::string> folders = lines_of(ranks.broadcast(list));
  resumed.skipped = lines_of(ranks.broadcast(unusable));
  for (const std::string& folder : folders) {
    try {
      std::optional<CheckpointReader> reader;
      ranks.together([&] {
        reader.emplace(CheckpointReader::open(folder, files));
        if (ranks.rank() == 0) reader->check_files();
      });
      resumed.path = folder;
      resumed.report = load_checkpoint(*reader, root, optimizer, options);
      return resumed;
    } catch (const CorruptCheckpoint& e) {
      if (folders.size() == 1 && resumed.skipped.empty()) throw;
      resumed.skipped.push_back(e.what());
    }
  }
  throw CorruptCheckpoint(fmt::format("cannot resume: every checkpoint in '{}' is damaged: {}", path.string(),
                                      fmt::join(resumed.skipped, "; ")));
}

}  // namespace sherd
