// Paths given by users.
#pragma once

#include <filesystem>

namespace sherd::detail {

/// "DIR" of "DIR/"; "/" stays.
inline std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

}  // namespace sherd::detail
