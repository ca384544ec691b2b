// Temporary files of an export, beside its path until it is complete. Private to checkpoint/.
#pragma once

#include <filesystem>
#include <memory>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

/// A file's or folder's temporary name, "<path>.tmp-<process>-<number>", and the lock (flock) on it. A
/// process that gets the lock knows that the process that made it has ended. The lock is null where the file
/// system has no locks.
struct TemporaryFile {
  std::unique_ptr<WritableFile> file;
  std::unique_ptr<FileLock> lock;
};
TemporaryFile create_file_beside(FileSystem& files, const std::filesystem::path& path);

struct TemporaryFolder {
  std::filesystem::path path;
  std::unique_ptr<FileLock> lock;
};
TemporaryFolder create_folder_beside(FileSystem& files, const std::filesystem::path& path);

/// Removes what killed exports to `path` left, but not what a running process still writes. Entries that
/// cannot be listed, locked or removed stay.
void sweep_beside(FileSystem& files, const std::filesystem::path& path) noexcept;

}  // namespace sherd
