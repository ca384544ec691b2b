// The safetensors file format: named tensors in one file that PyTorch and Hugging Face tools open.
//
// Bytes: the header's length N (8 bytes, little-endian), N bytes of JSON padded with spaces so that the data
// starts at a multiple of 8, then the data of the tensors one after the other, little-endian and row-major.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/shape.h>

namespace sherd {

/// One tensor of an opened file.
struct SafetensorsEntry {
  std::string name;
  /// As written in the file: "F32", "BF16", ...
  std::string dtype_name;
  /// Empty for the format's types that sherd has no tensors of (BOOL, I8, I16, ...): they are listed, not
  /// read.
  std::optional<DType> dtype;
  Shape shape;
  /// Of the whole tensor that this is a piece of, where the file says so.
  std::optional<Shape> global_shape;
  /// Byte range [begin, end) in the file's data, which starts after the header.
  int64_t begin = 0;
  int64_t end = 0;
};

/// An opened and fully checked safetensors file. All methods are const and safe from several threads at once.
class SafetensorsReader {
 public:
  /// Reads and checks the header; holds the file open, and no tensor data.
  /// @throws IoError when the file is missing or unreadable, CorruptCheckpoint naming the file and the
  /// offending entry when anything in it is not as the format demands: every byte is accounted for.
  explicit SafetensorsReader(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

  const std::filesystem::path& path() const { return file_->path(); }
  /// Bytes of the file before its data.
  int64_t header_bytes() const { return data_start_; }
  /// In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// The file's "__metadata__"; empty when there is none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The entry of that name, owned by this reader, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;

  /// Copies elements [first, first + count) of an entry of this file, in row-major order, to host memory
  /// `to`.
  /// @throws InvalidArgument outside the tensor, NotSupported for a type without a DType, IoError.
  void read(const SafetensorsEntry& entry, int64_t first, int64_t count, void* to) const;
  /// Copies `bytes` bytes from byte `first` of an entry of this file on, whatever its type.
  /// @throws InvalidArgument outside the tensor, IoError.
  void read_bytes(const SafetensorsEntry& entry, int64_t first, int64_t bytes, void* to) const;
  /// Copies bytes [begin, begin + bytes) of the file's data, across entries. @throws IoError.
  void read_data(int64_t begin, int64_t bytes, void* to) const;
  /// Announces read_data() of them, as ReadableFile::will_read().
  void will_read(int64_t begin, int64_t bytes) const;
  /// The file's bytes before its data, as they are. @throws IoError.
  std::string header() const;

 private:
  void parse(std::string_view header, int64_t data_bytes);

  std::unique_ptr<ReadableFile> file_;
  int64_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  /// Of the whole tensor when this is a piece of it: one more key of the entry, which readers that do not
  /// know it ignore.
  std::optional<Shape> global_shape = std::nullopt;
};

/// Writes one file from front to back, holding no tensor data. The file appears under its name, complete, in
/// finish(), or not at all: until then the bytes lie beside it under `<path>.tmp-<process>-<number>`, and a
/// writer that is destroyed before finish() removes them. What a writer of the same path left that was killed
/// is removed by the next one. An existing file is replaced, and so is a link.
class SafetensorsWriter {
 public:
  /// Writes the header. Data offsets follow the order of `tensors`.
  /// @throws InvalidArgument naming all unusable tensors (twice the same name, negative sizes, ...),
  /// IoError when the file cannot be created or `path` is there and not a regular file.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {},
                    FileSystem& files = FileSystem::posix());
  /// The same with a header that is there already, such as another file's, before `data_bytes` of data.
  SafetensorsWriter(const std::filesystem::path& path, const std::string& header, int64_t data_bytes,
                    FileSystem& files = FileSystem::posix());
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next bytes of the data, from host memory: pieces may be of any size and cross tensors.
  /// @throws InvalidArgument past the last tensor's end; IoError, after which the file is given up.
  void append(const void* data, int64_t bytes);
  /// Puts the complete file in its place, on the medium.
  /// @throws InvalidArgument when bytes are missing (names the first incomplete tensor where it is known),
  /// IoError.
  void finish();

 private:
  void open(const std::string& header);
  void discard() noexcept;

  std::filesystem::path path_;
  std::vector<SafetensorsSpec> tensors_;
  FileSystem& files_;
  std::unique_ptr<WritableFile> file_;
  std::unique_ptr<FileLock> lock_;  // on it: no other writer takes it for left
  int64_t data_bytes_ = 0;
  int64_t written_ = 0;
};

}  // namespace sherd
