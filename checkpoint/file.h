// Files by descriptor, with every failure reported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace sherd {

/// An open file that closes itself. Every failure is an IoError naming the operation, the path and the
/// system's reason. Reading is const and safe from several threads at once; writing is not.
class File {
 public:
  /// @throws IoError when missing, unreadable or not a regular file (links are followed).
  static File open_to_read(const std::filesystem::path& path);
  /// Creates a file to write; nullopt when the name is taken. Permissions follow the umask.
  static std::optional<File> create_new(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  /// Closes without reporting; call close() after writing to hear of errors.
  ~File();

  const std::filesystem::path& path() const { return path_; }
  /// Bytes in the file now.
  int64_t size() const;
  /// Reads exactly `bytes` bytes from `offset` on. @throws IoError also when the file ends before.
  void read_at(int64_t offset, void* to, int64_t bytes) const;
  /// Writes all of it at the file's end, however many system calls that takes.
  void write(const void* from, int64_t bytes);
  /// Returns when the contents are on the medium.
  void sync();
  void close();

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Moves `from` over `to` in one step (both in the same folder) and returns when the folder is on the medium.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sherd
