// Writer of exported weights: one safetensors file, or a folder that Hugging Face tools read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/checkpoint/weights.h>

namespace sherd {

/// Returns whether weights written to this path are one file. They are a folder if the path ends in a slash
/// or names an existing folder.
bool is_weights_file(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// A file of weights to be written.
struct WeightsFile {
  /// Below the folder, whose own folders are made.
  std::string name = {};
  /// Tensors of its data, in this order.
  std::vector<SafetensorsSpec> tensors = {};
  std::map<std::string, std::string> metadata = {};
  int64_t bytes = 0;
  /// If not empty, it is written instead of a header made from `tensors` and `metadata`, which are then
  /// unused.
  std::string header = {};
};

/// Files of a folder to be written.
struct WeightsPlan {
  std::vector<WeightsFile> weights = {};  // at least one
  /// Contents of its other files by name, the index among them.
  std::map<std::string, std::string> others = {};
};

/// Tensors in their order in files named as Hugging Face's; the next one begins where a tensor would pass
/// `max_shard_bytes` (as huggingface_hub splits). Without an index.
WeightsPlan split_weights(const std::vector<SafetensorsSpec>& tensors,
                          const std::map<std::string, std::string>& metadata, int64_t max_shard_bytes);

/// Adds the index where there are several files. With the number of the model's parameters: as transformers writes it
/// since version 5, in order of names.
void add_index(WeightsPlan& plan, std::optional<int64_t> parameters = std::nullopt);

/// Same as SafetensorsWriter, for a file or a folder of files: front to back, no tensor data held, all or
/// nothing. Not usable after finish() or an exception.
class WeightsWriter {
 public:
  /// A folder's files are filled in the order of `tensors`, split and indexed as above; a file takes all of them.
  /// @throws as check_export_path() and SafetensorsWriter.
  WeightsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                std::map<std::string, std::string> metadata, int64_t max_shard_bytes,
                FileSystem& files = FileSystem::posix(), Existing existing = Existing::refuse);
  /// A folder, whether there is a slash at the path's end or not.
  WeightsWriter(const std::filesystem::path& path, WeightsPlan plan, FileSystem& files = FileSystem::posix(),
                Existing existing = Existing::refuse);
  ~WeightsWriter();
  WeightsWriter(const WeightsWriter&) = delete;
  WeightsWriter& operator=(const WeightsWriter&) = delete;

  /// The next bytes of the data, of any number.
  void append(const void* data, int64_t bytes);
  /// Puts the complete file or folder in its place, on the medium. @returns false when the folder that is there holds
  /// the same already (Existing::accept_equal). @throws IoError when it holds anything else.
  bool finish();

 private:
  bool is_folder() const { return !temporary_.empty(); }
  std::filesystem::path path_of(const WeightsFile& file) const;
  /// The folders below the temporary one that hold weights, outermost first.
  std::set<std::filesystem::path> inner_folders() const;
  void begin_folder();
  void open_file();
  void finish_file();
  void write_others();
  void require_equal() const;

  std::filesystem::path path_;
  FileSystem& files_;
  WeightsPlan plan_;
  Existing existing_;
  std::filesystem::path temporary_;
  std::unique_ptr<FileLock> lock_;  // on it
  size_t next_ = 0;                 // file to be opened next
  std::optional<SafetensorsWriter> open_;
  int64_t room_ = 0;  // bytes that the open file still lacks
};

}  // namespace sherd
