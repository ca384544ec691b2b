#include "run_room.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <sherd/checkpoint/files/checkpoint_folder.h>

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

struct Sizes {
  int64_t all = 0, largest = 0;  // bytes of all files together, and of the largest
};

Sizes sizes_below(const fs::path& folder) {
  Sizes sizes;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (std::error_code unknown; entry->is_regular_file(unknown)) {
      const auto bytes = static_cast<int64_t>(entry->file_size(unknown));
      sizes.all += bytes;
      sizes.largest = std::max(sizes.largest, bytes);
    }
  return sizes;
}

// An error number. Free blocks first; then a file without a name is asked for the bytes, which counts quotas, where the file
// system has such files. Where one file cannot have all of them, for those of the largest.
int refusal(const fs::path& folder, const Sizes& sizes) {
  struct statvfs status;
  if (::statvfs(folder.c_str(), &status) == -1) return errno;
  if (static_cast<uint64_t>(status.f_bavail) * status.f_frsize < static_cast<uint64_t>(sizes.all))
    return ENOSPC;
  const int file = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  int error = file == -1 ? errno : 0;
  if (file != -1) {
    if (::fallocate(file, 0, 0, sizes.all) == -1) error = errno;
    if (error == EFBIG && ::fallocate(file, 0, 0, sizes.largest) == 0) error = 0;
    ::close(file);
  }
  return error == EOPNOTSUPP || error == EISDIR || error == ENOSYS ? 0 : error;
}

}  // namespace

std::string no_room(const fs::path& folder, int64_t step) {
  constexpr int64_t kLeast = int64_t{64} << 10;
  std::error_code missing;
  if (folder.empty() || !fs::is_directory(folder, missing)) return "";
  Sizes sizes = step < 0 ? Sizes{} : sizes_below(folder / checkpoint_name(step));
  if (sizes.all < kLeast) sizes = {kLeast, kLeast};
  const int error = refusal(folder, sizes);
  if (error == 0) return "";
  return fmt::format("--save '{}': {}{}: a checkpoint of {:.1f} MiB cannot be written there", folder.string(),
                     std::system_category().message(error),
                     error == EFBIG ? " for the limit on file sizes (ulimit -f)" : "",
                     static_cast<double>(sizes.all) / (1 << 20));
}

}  // namespace sherd::tools
