// `sherd ckpt prune`: removal of old checkpoints.
#pragma once

#include <filesystem>

#include <sherd/checkpoint/files/file_system.h>

#include "console.h"

namespace sherd::tools {

struct PruneOptions {
  std::filesystem::path save_folder;
  int64_t keep = 1;
};
/// Keeps the newest, prints the removed ones. @throws InvalidArgument for another kind of folder, IoError
/// when a run saves there.
void prune(const PruneOptions& options, const Console& console, FileSystem& files = FileSystem::posix());

}  // namespace sherd::tools
