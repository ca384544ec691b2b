// The training text: bytes from disk, each of them a token.
#pragma once

#include <filesystem>
#include <memory>

#include <sherd/train/data/token_stream.h>
#include <sherd/train/data/token_windows.h>

namespace sherd {

/// All bytes of a file, or of a folder: every regular file below it, sorted by full path as a byte string, one behind
/// the other. Links below the folder are not followed. Nothing is held as a whole: one file is mapped, those of a
/// folder are opened when windows of them are wanted.
struct ByteData {
  /// @throws IoError naming the path that is missing or unreadable.
  static std::shared_ptr<const TokenStream> load(const std::filesystem::path& path);
};

/// What training programs read windows of text through.
using ByteWindows = TokenWindows;

}  // namespace sherd
