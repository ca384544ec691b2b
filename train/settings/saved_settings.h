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

/// What the manifest of a checkpoint says of its run.
struct SavedTraining {
  std::filesystem::path checkpoint;
  TrainingState training;
};

/// Of the checkpoint that resume() would take from `path`, as far as manifests show: a checkpoint itself, or
/// the newest of a save folder whose manifest is sound and whose model is finite. Blocks of data are not
/// read, so a newest checkpoint that turns out to be damaged is passed over by resume() alone. Writes
/// nothing; of one process.
/// @throws IoError without such a checkpoint, CorruptCheckpoint when the one that `path` names is damaged.
SavedTraining saved_training(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// Sets the fields with these names to what the saving run's config_text(), its info "config", says of them.
/// Fields that it does not know keep their values, as do all when nothing is known. A value that the field
/// cannot take is a line in `problems`, and the field keeps its value.
/// @returns the names that were set, in the order of the table; they are the table's.
std::vector<std::string_view> take_saved_settings(const SavedTraining& saved,
                                                  std::span<const FieldGroup> groups,
                                                  std::span<const std::string_view> names,
                                                  std::vector<std::string>& problems);

}  // namespace sherd
