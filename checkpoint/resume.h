// Resume from a checkpoint, or from the newest valid one of a save folder.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sherd/checkpoint/file_copies.h>
#include <sherd/checkpoint/model_state.h>

namespace sherd {

struct Resumed {
  /// The checkpoint that was loaded.
  std::filesystem::path path;
  LoadReport report;
  /// Newer checkpoints that could not be used, with the reason.
  std::vector<std::string> skipped;
};

/// Calls load_checkpoint() for `path`: a checkpoint's folder, or a save folder (DIR of FORMAT.md). Of a save
/// folder it takes the newest checkpoint that is complete, whose model is finite (as far as its manifest
/// records) and whose every block read verifies; others are skipped. A checkpoint named directly may hold a
/// non-finite model. A checkpoint that cannot be read (EIO) is skipped, too, and stays: a later save of the run has
/// a larger sequence number, and pruning leaves it alone. Never writes. Collective over the root's mesh; same result or error on every rank. Rank
/// 0 chooses; each rank reads the folder of that name below its own `path`.
/// @throws NewerFormat (NotSupported) when a checkpoint of the folder has a newer format, also where older ones are sound;
/// CorruptCheckpoint when the one checkpoint, or every one in the folder, is damaged; IoError when a
/// rank has no checkpoint, naming the rank; InvalidArgument as load_checkpoint() (a checkpoint that does not
/// fit is not skipped); RanksDiffer where the ranks have different newest checkpoints, or different contents
/// of one (LoadOptions::compare_copies).
/// @param check receives each checkpoint's training state before it is loaded. It may throw InvalidArgument,
/// and returns LoadOptions::cause.
Resumed resume(const std::filesystem::path& path, ModuleBase& root, Optimizer* optimizer,
               const LoadOptions& options = {},
               const std::function<std::string(const TrainingState&)>& check = {},
               FileSystem& files = FileSystem::posix());
/// Resumes all optimizers of a root that has several.
Resumed resume(const std::filesystem::path& path, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
               const LoadOptions& options = {},
               const std::function<std::string(const TrainingState&)>& check = {},
               FileSystem& files = FileSystem::posix());

/// Returns this rank's copy of the checkpoint that resume() tries first, for require_same_copies(): a program
/// compares it with its other files before it builds a model. Collective. @throws IoError on every rank as
/// resume().
[[nodiscard]] FileCopy checkpoint_copy(Communicator& ranks, const std::filesystem::path& path,
                                       FileSystem& files = FileSystem::posix());

}  // namespace sherd
