// Temporary files of an export, beside its path until it is complete. Private to checkpoint/.
#pragma once

#include <filesystem>
#include <memory>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

/// A file's or folder's temporary name, "<path>.tmp-<process>-<number>", and the lock (flock) on what has it:
/// who can take that lock knows that whoever made it is gone. The lock is null where the file system has
/// none.
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

/// Removes what exports to `path` left that were killed, and nothing that somebody still writes. What cannot
/// be listed, locked or removed stays.
void sweep_beside(FileSystem& files, const std::filesystem::path& path) noexcept;

}  // namespace sherd
