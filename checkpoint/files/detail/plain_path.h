// Relative paths of files, as other files give them.
#pragma once

#include <string_view>

namespace sherd {

/// At most 255 bytes, relative, and without empty, "." or ".." components: it cannot lead out of the folder
/// it is relative to.
bool is_plain_path(std::string_view path);

}  // namespace sherd
