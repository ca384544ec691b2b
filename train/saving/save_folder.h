// The folder that a run saves in, and what it may hold already.
#pragma once

#include <functional>
#include <string>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// What a run that goes on from a checkpoint takes of it. With `model` it is a new run from those weights.
enum class ResumeParts { all, model, optimizer };

/// Messages name the flags --save, --resume, --resume-parts and --overwrite.
struct SaveFolder {
  /// Where checkpoints are saved; empty: nowhere.
  std::string save = {};
  /// The checkpoint, or the folder of some, that the run goes on from; empty: it begins.
  std::string resume = {};
  ResumeParts parts = ResumeParts::all;
  /// The folder may hold another run's checkpoints: they are removed once the first of this run is complete.
  bool overwrite = false;
  /// In words, for the message that refuses the folder: in what the run that saved differs from this one;
  /// empty text: in nothing. Null: not known.
  std::function<std::string(const TrainingState& saved)> differences = {};
};

/// Whether the run goes on from a checkpoint in the folder that it saves in.
bool goes_on_in_save_folder(const SaveFolder& folder);

/// @throws IoError when the folder holds another run's checkpoints: any that this run does not go on from,
/// unless `overwrite` is set. Says what differs, as far as the newest of them can be read. Writes nothing.
void check_save_folder(const SaveFolder& folder);

}  // namespace sherd
