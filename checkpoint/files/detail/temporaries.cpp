#include <sherd/checkpoint/files/detail/temporaries.h>

#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include <sherd/base/error.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".tmp-";

fs::path name_beside(const fs::path& path, int number) {
  return fmt::format("{}{}{}-{}", path.string(), kMark, ::getpid(), number);
}

// "NAME.tmp-123-0" of NAME.
bool is_left_of(std::string_view name, std::string_view own) {
  if (!name.starts_with(own) || !name.substr(own.size()).starts_with(kMark)) return false;
  const std::string_view rest = name.substr(own.size() + kMark.size());
  const size_t dash = rest.find('-');
  const auto number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  return dash != rest.npos && number(rest.substr(0, dash)) && number(rest.substr(dash + 1));
}

// Returns whether `path` is ours now: before it was locked, a sweep may have treated it as abandoned and
// removed it.
bool locked(FileSystem& files, const fs::path& path, std::unique_ptr<FileLock>& lock) {
  try {
    lock = files.lock_existing(path);
    return lock != nullptr;
  } catch (const IoError&) {
    return true;  // no locks here, so no process can sweep it
  }
}

}  // namespace

TemporaryFile create_file_beside(FileSystem& files, const fs::path& path) {
  TemporaryFile made;
  for (int number = 0;; ++number) {
    const fs::path name = name_beside(path, number);
    made.file = files.create_new(name);
    if (made.file && locked(files, name, made.lock)) return made;
  }
}

TemporaryFolder create_folder_beside(FileSystem& files, const fs::path& path) {
  TemporaryFolder made;
  for (int number = 0;; ++number) {
    made.path = name_beside(path, number);
    if (files.kind(made.path) != FileSystem::Kind::none) continue;
    // Another process may have made it since: its folder is never taken over.
    if (!files.create_folder(made.path)) continue;
    if (locked(files, made.path, made.lock)) return made;
  }
}

void sweep_beside(FileSystem& files, const fs::path& path) noexcept {
  try {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
    const std::string own = path.filename().string();
    for (const std::string& name : files.list(folder)) {
      if (!is_left_of(name, own)) continue;
      try {
        const auto lock = files.lock_existing(folder / name);
        if (lock) files.remove_all(folder / name);
      } catch (const IoError&) {  // another user's, or a file system without locks
      }
    }
  } catch (const std::exception&) {  // the next write to this folder reports the failure
  }
}

}  // namespace sherd
