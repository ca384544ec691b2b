// `sherd ckpt verify`: check of every byte of a checkpoint.
#pragma once

#include <filesystem>

#include "console.h"

namespace sherd::tools {

struct VerifyOptions {
  std::filesystem::path path;
  /// Checks every checkpoint of a save folder, not only the newest.
  bool all = false;
};

/// Prints all damage, or that the checkpoint is intact. Checkpoints of a save folder whose manifest cannot be read
/// may be newer than the newest sound one, so they are always reported. Non-finite values are named, too: a
/// checkpoint with non-finite weights is sound as a file, and unusable.
/// @throws CorruptCheckpoint, after the report, when something is damaged or weights are not finite; IoError
/// for nothing to verify.
void verify(const VerifyOptions& options, const Console& console);

}  // namespace sherd::tools
