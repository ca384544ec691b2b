// Folder of weights of another program, kept as a template for an export.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

namespace sherd {

/// The headers of its weights, and its small files. Everything is read at once but the weights, whose files
/// stay open: what becomes of the folder afterwards does not matter. Immutable; safe from several threads at
/// once.
class StoredFolder {
 public:
  /// Links are followed inside the folder, and to the blobs/ of a cache of Hugging Face's hub that the folder is a
  /// snapshot of; what an index names is in the folder itself.
  /// @throws IoError when it is not a folder, when weights are a link that leads elsewhere, or a file of it cannot be read,
  /// CorruptCheckpoint for damaged weights.
  static std::shared_ptr<const StoredFolder> open(const std::filesystem::path& path,
                                                  FileSystem& files = FileSystem::posix());

  const std::filesystem::path& path() const { return path_; }
  /// The weights: the files of the index, or model.safetensors, or every safetensors file; by name.
  const std::vector<SafetensorsReader>& weights() const { return weights_; }
  /// Contents of the other files of the folder by name: configuration, tokenizer, index, licence and so on.
  /// Not hidden ones, none of more than 64 MiB, no folders, no links_outside(), and no weights in other formats nor
  /// their indices, which would be those from before the training.
  const std::map<std::string, std::string>& others() const { return others_; }

  /// others() without the index of its weights, of a folder whose weights are not wanted and need not be
  /// there: what goes with new weights of the same model (ExportOptions::files). @throws IoError.
  static std::map<std::string, std::string> files_beside_weights(const std::filesystem::path& path,
                                                                 FileSystem& files = FileSystem::posix());

  /// Names of links in the folder that lead elsewhere, which others() leaves out: their targets are outside of what the
  /// author published, and may be private. @throws IoError.
  static std::vector<std::string> links_outside(const std::filesystem::path& path,
                                                FileSystem& files = FileSystem::posix());

 private:
  StoredFolder() = default;

  std::filesystem::path path_;
  std::vector<SafetensorsReader> weights_;
  std::map<std::string, std::string> others_;
};

}  // namespace sherd
