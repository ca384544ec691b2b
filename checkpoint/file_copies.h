// Digests of one rank's copies of weights and checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

/// What this rank has of a file that every rank reads.
struct FileCopy {
  /// The same on every rank, wherever its copy is: relative to the given folder, say.
  std::string name;
  /// Where this rank's copy is, for messages.
  std::string path;
  /// Of the contents (XXH3-64, all or sampled); equal for equal files.
  uint64_t digest = 0;
  /// Why it cannot be read, in words; empty: it can.
  std::string error = {};
};

/// The weights that CheckpointReader::open(path) finds. Of a committed checkpoint the checksum of its manifest, which
/// covers every block; otherwise one entry for each safetensors file: its header and samples of every tensor
/// (sample_blocks()). `read` is given the number of bytes read, if not null. Equal weights that are split into files in
/// another way differ. @throws IoError, CorruptCheckpoint.
std::vector<FileCopy> weights_copies(const std::filesystem::path& path,
                                     FileSystem& files = FileSystem::posix(), int64_t* read = nullptr);

/// The same of what import_weights() with StoredForms reads: of a folder without index model.safetensors alone.
std::vector<FileCopy> stored_weights_copies(const std::filesystem::path& path,
                                            FileSystem& files = FileSystem::posix());

}  // namespace sherd
