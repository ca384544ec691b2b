#include <sherd/checkpoint/files/file_system.h>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {

bool FileSystem::sees_all_locks(const std::filesystem::path&) { return true; }

void rename_durably(FileSystem& files, const std::filesystem::path& from, const std::filesystem::path& to) {
  files.rename(from, to);
  files.sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

std::string read_whole(FileSystem& files, const std::filesystem::path& path, int64_t limit) {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  const int64_t size = file->size();
  if (size > limit) {
    throw IoError(fmt::format("cannot read '{}': it has {} bytes, and no sound one has more than {}",
                              path.string(), size, limit));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file->read_at(0, bytes.data(), size);
  return bytes;
}

}  // namespace sherd
