// Settings stored in a checkpoint, for a run that resumes it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/train/settings/fields.h>

namespace sherd {

/// Training state in the manifest of a checkpoint.
struct SavedTraining {
  std::filesystem::path checkpoint;
  TrainingState training;
};

/// Reads the state of the checkpoint that resume() would take from `path`, as far as manifests show: a
/// checkpoint itself, or the newest of a save folder with a sound manifest and a finite model. Blocks of data
/// are not read, so resume() may still skip a newest checkpoint that is damaged. Writes nothing; call it on
/// one process.
/// @throws IoError without such a checkpoint, CorruptCheckpoint when the one that `path` names is damaged,
/// NewerFormat when it, or one of the folder, has a newer format.
[[nodiscard]] SavedTraining saved_training(const std::filesystem::path& path,
                                           FileSystem& files = FileSystem::posix());

/// Returns whether the folder has entries named as checkpoints are. Contents are not read; false for what cannot be listed.
bool has_checkpoints(const std::filesystem::path& folder);

/// Sets the fields with these names from the saving run's config_text(), its info "config". Fields that are
/// missing there keep their values, as do all when it is missing or empty. An invalid value is a line in `problems`,
/// and the field keeps its value; so is a text that is not a JSON object.
/// @returns the names that were set, in the order of the table; they are the table's.
std::vector<std::string_view> take_saved_settings(const SavedTraining& saved,
                                                  std::span<const FieldGroup> groups,
                                                  std::span<const std::string_view> names,
                                                  std::vector<std::string>& problems);

}  // namespace sherd
