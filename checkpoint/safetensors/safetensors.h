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
  /// dtype as in the file: "F32", "BF16", ...
  std::string dtype_name;
  /// Empty for types of the format that sherd lacks (BOOL, I16, F8_E5M2, F4, ...): they are listed, not read.
  std::optional<DType> dtype;
  Shape shape;
  /// Shape of the unsharded tensor if this is a piece and the file records it.
  std::optional<Shape> global_shape;
  /// Byte range [begin, end) in the file's data, which starts after the header.
  int64_t begin = 0;
  int64_t end = 0;
};

/// An opened and fully checked safetensors file. All methods are const and safe for concurrent use by several
/// threads.
class SafetensorsReader {
 public:
  /// Reads and checks the header; keeps the file open, reads no tensor data.
  /// @throws IoError when the file is missing or unreadable, CorruptCheckpoint naming the file and the
  /// invalid entry when it violates the format in any way: every byte is accounted for.
  explicit SafetensorsReader(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

  const std::filesystem::path& path() const { return file_->path(); }
  /// Returns the bytes of the file before its data.
  int64_t header_bytes() const { return data_start_; }
  /// Returns the entries in the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// Returns the file's "__metadata__"; empty when absent.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Returns the entry of that name, owned by this reader, or nullptr.
  const SafetensorsEntry* find(std::string_view name) const;

  /// Copies elements [first, first + count) of an entry of this file, in row-major order, to host memory
  /// `to`.
  /// @throws InvalidArgument outside the tensor, NotSupported for a type without a DType, IoError.
  void read(const SafetensorsEntry& entry, int64_t first, int64_t count, void* to) const;
  /// Copies `bytes` bytes of an entry of this file from byte `first`, whatever its type.
  /// @throws InvalidArgument outside the tensor, IoError.
  void read_bytes(const SafetensorsEntry& entry, int64_t first, int64_t bytes, void* to) const;
  /// Copies bytes [begin, begin + bytes) of the file's data, across entries. @throws IoError.
  void read_data(int64_t begin, int64_t bytes, void* to) const;
  /// Announces a read_data() of this range, as ReadableFile::will_read().
  void will_read(int64_t begin, int64_t bytes) const;
  /// Returns the file's bytes before its data. @throws IoError.
  std::string header() const;

 private:
  void parse(std::string_view header, int64_t data_bytes);

  std::unique_ptr<ReadableFile> file_;
  int64_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Tensor to be written.
struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  /// Shape of the unsharded tensor if this is a piece of it: an additional key of the entry, which readers
  /// without support ignore.
  std::optional<Shape> global_shape = std::nullopt;
};

/// Writer of one file from front to back, without holding tensor data. finish() makes the file appear under
/// its name, complete; before that it does not exist. Until then the bytes are in
/// `<path>.tmp-<process>-<number>`, and the destructor removes them. The next writer of the same path removes
/// the rest of a killed one. An existing file or link is replaced.
class SafetensorsWriter {
 public:
  /// Writes the header. Data offsets follow the order of `tensors`.
  /// @throws InvalidArgument naming all unusable tensors (repeated names, negative sizes, ...), IoError when
  /// the file cannot be created or `path` exists and is not a regular file.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {},
                    FileSystem& files = FileSystem::posix());
  /// Writes a given header, such as another file's, before `data_bytes` of data.
  SafetensorsWriter(const std::filesystem::path& path, const std::string& header, int64_t data_bytes,
                    FileSystem& files = FileSystem::posix());
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends the next bytes of the data, from host memory: pieces may be of any size and cross tensors.
  /// @throws InvalidArgument past the last tensor's end; IoError, after which the file is discarded.
  void append(const void* data, int64_t bytes);
  /// Moves the complete file to its place, on the medium.
  /// @throws InvalidArgument when bytes are missing (names the first incomplete tensor where known), IoError.
  void finish();

 private:
  void open(const std::string& header);
  void discard() noexcept;

  std::filesystem::path path_;
  std::vector<SafetensorsSpec> tensors_;
  FileSystem& files_;
  std::unique_ptr<WritableFile> file_;
  std::unique_ptr<FileLock> lock_;  // on the temporary file: no other writer treats it as left over
  int64_t data_bytes_ = 0;
  int64_t written_ = 0;
};

}  // namespace sherd
