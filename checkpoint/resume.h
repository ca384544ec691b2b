// Resume from a checkpoint, or from the newest valid one of a save folder.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/file_copies.h>

namespace sherd {

struct Resumed {
  /// The checkpoint that was loaded.
  std::filesystem::path path;
  LoadReport report;
  /// Newer checkpoints that could not be used, with the reason.
  std::vector<std::string> skipped;
};

/// load_checkpoint() from `path`: a checkpoint's folder, or a save folder (DIR of FORMAT.md), of which the
/// newest checkpoint is taken that is there as a whole, whose model is finite (as far as its manifest says)
/// and whose every block read verifies; others are passed over. A checkpoint that is named itself may hold a
/// model that is not finite. Never writes. Collective over the root's mesh; the same result or error on every
/// rank. Rank 0 chooses; each rank reads the folder of that name below its own `path`.
/// @throws CorruptCheckpoint when the one checkpoint, or every one in the folder, is damaged; IoError when
/// a rank has no checkpoint, naming the rank; InvalidArgument as load_checkpoint() (a checkpoint that does not fit is
/// not passed over); RanksDiffer where the ranks have different newest checkpoints, or other contents of one
/// (LoadOptions::compare_copies).
/// @param check is given each checkpoint's training state before it is loaded: it may throw InvalidArgument,
/// and what it returns is LoadOptions::cause.
Resumed resume(const std::filesystem::path& path, ModuleBase& root, Optimizer* optimizer,
               const LoadOptions& options = {},
               const std::function<std::string(const TrainingState&)>& check = {},
               FileSystem& files = FileSystem::posix());
/// The same for all optimizers of a root that has several.
Resumed resume(const std::filesystem::path& path, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
               const LoadOptions& options = {},
               const std::function<std::string(const TrainingState&)>& check = {},
               FileSystem& files = FileSystem::posix());

/// This rank's copy of the checkpoint that resume() takes first, for require_same_copies(): a program compares it with
/// its other files before it builds a model. Collective. @throws IoError on every rank as resume().
FileCopy checkpoint_copy(Communicator& ranks, const std::filesystem::path& path,
                         FileSystem& files = FileSystem::posix());

}  // namespace sherd
