// Digests of one rank's copies of weights and checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

/// This rank's copy of a file that every rank reads.
struct FileCopy {
  /// Name, equal on every rank wherever its copy is, for example relative to the given folder.
  std::string name;
  /// Path of this rank's copy, for messages.
  std::string path;
  /// Digest of the contents (XXH3-64, all or sampled); equal for equal files.
  uint64_t digest = 0;
  /// Reason why it cannot be read; empty when readable.
  std::string error = {};
};

/// Returns the copies of the weights that CheckpointReader::open(path) finds. For a committed checkpoint it
/// is the checksum of its manifest, which covers every block. Otherwise it is one entry for each safetensors
/// file: its header and samples of every tensor (sample_blocks()). `read`, if not null, receives the number
/// of bytes read. Equal weights that are split into files in another way differ. @throws IoError,
/// CorruptCheckpoint.
[[nodiscard]] std::vector<FileCopy> weights_copies(const std::filesystem::path& path,
                                                   FileSystem& files = FileSystem::posix(),
                                                   int64_t* read = nullptr);

/// Returns the copies of the files that import_weights() with StoredForms reads. In a folder without an index
/// that is model.safetensors alone.
[[nodiscard]] std::vector<FileCopy> stored_weights_copies(const std::filesystem::path& path,
                                                          FileSystem& files = FileSystem::posix());

}  // namespace sherd
