// Room for one more checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace sherd::tools {

/// Why a checkpoint as large as that of `step` cannot be written into `folder` now ("--save 'out/run': No space left on
/// device: ..."); -1: a small one. Empty: it can, as far as the system tells. Leaves nothing in the folder.
std::string no_room(const std::filesystem::path& folder, int64_t step);

}  // namespace sherd::tools
