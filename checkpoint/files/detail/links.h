// Symbolic links in folders of other programs, and the targets they may have. Private to checkpoint/ and the
// programs.
#pragma once

#include <filesystem>
#include <string>

namespace sherd {

/// Returns whether `folder`/`name`, with all links followed, is in `folder`, or among the blobs/ of the cache
/// of Hugging Face's hub whose snapshots/ the folder is in. True also for a missing file.
bool is_inside(const std::filesystem::path& folder, const std::string& name);

/// @throws IoError naming link and target when the file is outside.
void require_inside(const std::filesystem::path& folder, const std::string& name);

}  // namespace sherd
