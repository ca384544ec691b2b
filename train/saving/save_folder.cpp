#include <sherd/train/saving/save_folder.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/train/detail/paths.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

// Name, step, and what it was saved with; only the name and why when it is damaged.
std::string newest_in_words(const SaveFolder& folder, const std::string& newest) {
  try {
    const TrainingState saved = CheckpointReader::open(fs::path(folder.save) / newest).manifest().training;
    const std::string differences = folder.differences ? folder.differences(saved) : "";
    return fmt::format("{} after {} steps, which this run does not resume{}{}", newest, saved.step,
                       differences.empty() ? "" : "; it was saved with ", differences);
  } catch (const Error& e) {
    return fmt::format("{}, which this run does not resume and which cannot be read ({})", newest, e.what());
  }
}

}  // namespace

bool goes_on_in_save_folder(const SaveFolder& folder) {
  if (folder.resume.empty() || folder.parts == ResumeParts::model) return false;
  std::error_code missing;
  fs::path from = fs::weakly_canonical(detail::without_slash(folder.resume), missing);
  if (from.filename() == "manifest.binpb") from = from.parent_path();
  if (is_checkpoint_name(from.filename().string())) from = from.parent_path();
  return fs::equivalent(from, folder.save, missing);
}

void check_save_folder(const SaveFolder& folder) {
  if (folder.save.empty() || FileSystem::posix().kind(folder.save) != FileSystem::Kind::folder) return;
  std::vector<UnusableCheckpoint> unusable;
  auto there = list_checkpoints(folder.save, FileSystem::posix(), &unusable);
  for (UnusableCheckpoint& u : unusable)
    if (u.unreadable) there.push_back({.name = std::move(u.name)});
  if (there.empty() || folder.overwrite || goes_on_in_save_folder(folder)) return;
  const bool weights_alone = !folder.resume.empty() && folder.parts == ResumeParts::model;
  const std::string go_on =
      weights_alone ? "--resume-parts model takes weights alone and begins a new run: leave it out "
                      "to resume a checkpoint, give "
                    : fmt::format("give --resume {} to resume it, ", folder.save);
  throw IoError(fmt::format(
      "--save {} holds another run: {} checkpoint{}, the newest of them {}; {}--overwrite to replace it (its "
      "checkpoints are removed once the first of this run is complete), or save in another folder",
      folder.save, there.size(), there.size() == 1 ? "" : "s", newest_in_words(folder, there.front().name),
      go_on));
}

}  // namespace sherd
