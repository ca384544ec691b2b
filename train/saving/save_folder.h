// The folder that a run saves in, and what it may hold already.
#pragma once

#include <functional>
#include <string>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Parts of a checkpoint that a resumed run takes. `model`: a new run from its weights.
enum class ResumeParts { all, model, optimizer };

/// Messages name the flags --save, --resume, --resume-parts and --overwrite.
struct SaveFolder {
  /// Where checkpoints are saved; empty: nowhere.
  std::string save = {};
  /// The checkpoint, or the folder of some, that the run resumes; empty: a new run.
  std::string resume = {};
  ResumeParts parts = ResumeParts::all;
  /// The folder may hold another run's checkpoints: they are removed once the first of this run is complete.
  bool overwrite = false;
  /// In words, for the message that refuses the folder: in what the run that saved differs from this one;
  /// empty text: in nothing. Null: not known.
  std::function<std::string(const TrainingState& saved)> differences = {};
};

/// Whether the run resumes a checkpoint in the folder that it saves in.
bool goes_on_in_save_folder(const SaveFolder& folder);

/// @throws IoError when the folder holds another run's checkpoints, ones that this run does not resume,
/// unless `overwrite` is set. Lists the differences, as far as the newest of them can be read. Writes
/// nothing.
void check_save_folder(const SaveFolder& folder);

}  // namespace sherd
