// Files whose content is of another kind than their name says. Private to checkpoint/, train/ and the programs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd {

/// Begin of a file that git-lfs keeps in the place of a large one.
inline constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec";
/// First bytes of a file that foreign_content() needs.
inline constexpr size_t kForeignBytes = 64;

/// Returns the kind of a file that begins like this and the remedy, as the end of a sentence: "is a git-lfs pointer,
/// not the file itself; run `git lfs pull` in its repository". Returns "" for unknown content.
std::string foreign_content(std::string_view begin);

}  // namespace sherd
