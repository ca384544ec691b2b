// `sherd ckpt verify`: is every byte of a checkpoint as it was written?
#pragma once

#include <filesystem>

#include "console.h"

namespace sherd::tools {

struct VerifyOptions {
  std::filesystem::path path;
  /// Of a save folder: every checkpoint, not only the newest.
  bool all = false;
};

/// Prints what is damaged, or that nothing is. A save folder's checkpoints whose manifest cannot be read may
/// be newer than the newest sound one, so that they are always reported.
/// Values that are not finite are named, too: with some among the weights a checkpoint is sound as a file,
/// and useless.
/// @throws CorruptCheckpoint, after the report, when something is damaged or weights are not finite; IoError
/// for nothing to verify.
void verify(const VerifyOptions& options, const Console& console);

}  // namespace sherd::tools
