// Where exported weights go: one safetensors file, or a folder as Hugging Face tools read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/checkpoint/safetensors/safetensors.h>

namespace sherd {

/// Whether weights written to this path are one file. They are a folder where the path ends in a slash or
/// names a folder that is there.
bool is_weights_file(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// As SafetensorsWriter, for a file or a folder of files: front to back, no tensor data held, all or nothing.
/// A folder's files are filled in the order of `tensors`; the next one begins where a tensor would pass
/// `max_shard_bytes` (as huggingface_hub splits). Not usable after
/// finish() or an exception.
class WeightsWriter {
 public:
  /// @throws as check_export_path() and SafetensorsWriter.
  WeightsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                std::map<std::string, std::string> metadata, int64_t max_shard_bytes,
                FileSystem& files = FileSystem::posix());
  ~WeightsWriter();
  WeightsWriter(const WeightsWriter&) = delete;
  WeightsWriter& operator=(const WeightsWriter&) = delete;

  /// The next bytes of the data, of any number.
  void append(const void* data, int64_t bytes);
  /// Puts the complete file or folder in its place, on the medium.
  void finish();

 private:
  struct Shard {
    std::string file;
    std::vector<SafetensorsSpec> tensors;
    int64_t bytes = 0;
  };
  bool is_folder() const { return !temporary_.empty(); }
  std::filesystem::path path_of(const Shard& shard) const;
  void name_shards();
  void open_shard();
  void finish_shard();
  void write_index();

  std::filesystem::path path_;
  std::map<std::string, std::string> metadata_;
  FileSystem& files_;
  std::vector<Shard> shards_;  // at least one
  std::filesystem::path temporary_;
  std::unique_ptr<FileLock> lock_;  // on it
  size_t next_ = 0;                 // shard to be opened next
  std::optional<SafetensorsWriter> open_;
  int64_t room_ = 0;  // bytes that the open shard still lacks
};

}  // namespace sherd
