// Training text: bytes from disk, each of which is a token.
#pragma once

#include <filesystem>
#include <memory>

#include <sherd/train/data/token_stream.h>
#include <sherd/train/data/token_windows.h>

namespace sherd {

/// All bytes of a file, or of a folder: every regular file below it, sorted by full path as a byte string,
/// concatenated. Links below the folder are not followed. The data is never in memory as a whole: one file is
/// mapped; the files of a folder are opened when windows of them are read.
struct ByteData {
  /// @throws IoError naming the path that is missing or unreadable.
  [[nodiscard]] static std::shared_ptr<const TokenStream> load(const std::filesystem::path& path);
};

/// Windows of text for training programs.

}  // namespace sherd
