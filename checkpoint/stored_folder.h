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

/// Headers of the weights, and the small files. Everything except the weights is read at once; the files of
/// the weights stay open. Later changes of the folder have no effect. Immutable; safe for concurrent use by
/// several threads.
class StoredFolder {
 public:
  /// Opens a folder. Links are followed inside the folder, and to the blobs/ of a Hugging Face hub cache of
  /// which the folder is a snapshot. Files named by an index may be in folders below.
  /// @throws IoError when it is not a folder, when weights are a link that leads elsewhere, or a file of it
  /// cannot be read; CorruptCheckpoint for damaged weights, and for a tensor that several files have.
  [[nodiscard]] static std::shared_ptr<const StoredFolder> open(const std::filesystem::path& path,
                                                                FileSystem& files = FileSystem::posix());

  const std::filesystem::path& path() const { return path_; }
  /// Returns the weights: model.safetensors, or the files of the index, or every safetensors file; by name.
  const std::vector<SafetensorsReader>& weights() const { return weights_; }
  /// Returns the contents of the folder's other files by name: configuration, tokenizer, index, licence and
  /// so on. Excluded are hidden files, files over 64 MiB, folders, links_outside(), and weights in other
  /// formats with their indices, which would be those from before training.
  const std::map<std::string, std::string>& others() const { return others_; }

  /// Returns others() without the index of the weights, for a folder whose weights are unused and may be
  /// absent: files to accompany new weights of the same model (ExportOptions::files). @throws IoError.
  [[nodiscard]] static std::map<std::string, std::string> files_beside_weights(
      const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

  /// Returns the names of links in the folder that lead elsewhere, which others() excludes: their targets are
  /// outside the published folder and may be private. @throws IoError.
  [[nodiscard]] static std::vector<std::string> links_outside(const std::filesystem::path& path,
                                                              FileSystem& files = FileSystem::posix());

 private:
  StoredFolder() = default;

  std::filesystem::path path_;
  std::vector<SafetensorsReader> weights_;
  std::map<std::string, std::string> others_;
};

}  // namespace sherd
