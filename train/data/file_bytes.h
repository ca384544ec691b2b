// Bytes of a data file, read on demand and never in memory as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

namespace sherd {

/// A file that does not change while it is used. Immutable, so ranks share one.
class FileBytes {
 public:
  /// Maps the file until this is destroyed; no descriptor stays open. Each read() detects a file that has
  /// become shorter before it touches the mapping, and throws IoError. (A file that shrinks within a read, or
  /// a medium that fails under the mapping, ends the process by SIGBUS.)
  /// @throws IoError naming the path that is missing, unreadable or not a regular file, or that could not be
  /// mapped.
  [[nodiscard]] static std::shared_ptr<const FileBytes> map(const std::filesystem::path& path);
  /// Reopens the file at each read(): for folders of more files than a process may map or hold open.
  /// @throws IoError as map() does.
  [[nodiscard]] static std::shared_ptr<const FileBytes> open_on_use(const std::filesystem::path& path);

  virtual ~FileBytes() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Size when it was opened first.
  virtual int64_t size() const = 0;
  /// Copies `bytes` bytes from `offset` on; the range is inside size().
  /// @throws IoError when the file has become shorter, or cannot be read any more.
  virtual void read(int64_t offset, void* to, int64_t bytes) const = 0;
};

}  // namespace sherd
