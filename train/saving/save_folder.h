// Save folder of a run, and checks of its previous content.
#pragma once

#include <functional>
#include <string>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Parts of a checkpoint that a resumed run takes. `model`: a new run from its weights.
enum class ResumeParts { all, model, optimizer };

/// Messages name the flags --save, --resume, --resume-parts and --overwrite.
struct SaveFolder {
  /// Folder for checkpoints; empty: checkpoints are not saved.
  std::string save = {};
  /// The checkpoint, or the folder of some, that the run resumes; empty: a new run.
  std::string resume = {};
  ResumeParts parts = ResumeParts::all;
  /// The folder may hold another run's checkpoints: they are removed once the first of this run is complete.
  bool overwrite = false;
  /// Describes the differences between the run that saved and this one, for the message that refuses the
  /// folder; empty text: equal. Null: unknown.
  std::function<std::string(const TrainingState& saved)> differences = {};
};

/// Returns whether the run resumes a checkpoint in the folder that it saves in.
bool goes_on_in_save_folder(const SaveFolder& folder);

/// @throws IoError when the folder holds another run's checkpoints, ones that this run does not resume,
/// unless `overwrite` is set. Lists the differences, as far as the newest of them can be read. One that cannot be read
/// counts as another run's. @throws NewerFormat when the folder holds a checkpoint of a newer format. Writes nothing.
void check_save_folder(const SaveFolder& folder);

}  // namespace sherd
