// `sherd ckpt reshard` and `sherd ckpt import`: a new checkpoint from an existing one, or from files of
// another program.
#pragma once

#include <filesystem>

#include "console.h"

namespace sherd::tools {

struct ReshardOptions {
  std::filesystem::path source;
  /// Created when missing; its parent exists.
  std::filesystem::path save_folder;
  int64_t world = 1;
};
/// Writes a checkpoint as `world` ranks would: of every tensor each rank a nearly even range of rows.
/// Training state is kept. Holds a few MiB of data.
/// @throws InvalidArgument for a source without a manifest, and where the save folder has a checkpoint of
/// that step; CorruptCheckpoint, IoError: then nothing is committed.
void reshard(const ReshardOptions& options, const Console& console);

struct ImportOptions {
  std::filesystem::path source;
  std::filesystem::path save_folder;
  int64_t step = 0;
};
/// Writes the weights of other programs' files as a checkpoint of one rank without optimizer state.
/// @throws InvalidArgument for a source that is a checkpoint; otherwise as reshard().
void import_weights(const ImportOptions& options, const Console& console);

}  // namespace sherd::tools
