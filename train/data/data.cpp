#include <sherd/train/data/data.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/detail/foreign_content.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/files/file_system.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Adds the regular files below `folder`; links are not followed. A recursive iterator would not say which of
/// the folders could not be read.
void add_files_below(const fs::path& folder, std::vector<std::string>& paths) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::file_type type = entry->symlink_status(error).type();
    if (error)
      throw IoError(
          fmt::format("cannot read the data: '{}': {}", printable(entry->path().string()), error.message()));
    if (type == fs::file_type::regular) paths.push_back(entry->path().string());
    if (type == fs::file_type::directory) add_files_below(entry->path(), paths);
  }
  if (error)
    throw IoError(fmt::format("cannot read the data: cannot list the folder '{}': {}", folder.string(),
                              error.message()));
}

/// Sorted by path byte by byte: "a-b" before "a.b" before "a/b".
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> paths;
  add_files_below(folder, paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Other content than text may be trained on. Pointers have some 130 bytes, so that other files need not be read here.
void refuse_pointer(const FileBytes& file) {
  constexpr int64_t kFewest = 100, kMost = 300;
  if (file.size() < kFewest || file.size() > kMost) return;
  std::string begin(kLfsPointer.size(), '\0');
  file.read(0, begin.data(), std::ssize(begin));
  if (begin == kLfsPointer)
    throw IoError(fmt::format("the data '{}' {}", printable(file.path().string()), foreign_content(begin)));
}

TokenFile text(std::shared_ptr<const FileBytes> bytes) {
  refuse_pointer(*bytes);
  const int64_t size = bytes->size();
  return {std::move(bytes), 0, size, TokenType::u8};
}

}  // namespace

std::shared_ptr<const TokenStream> ByteData::load(const fs::path& path) {
  std::vector<TokenFile> files;
  if (FileSystem::posix().kind(path) == FileSystem::Kind::folder) {
    for (const std::string& file : files_below(path)) files.push_back(text(FileBytes::open_on_use(file)));
  } else {
    files.push_back(text(FileBytes::map(path)));
  }
  return std::make_shared<const TokenStream>(path.string(), std::move(files));
}

}  // namespace sherd
