#include "run_progress.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

#include <sherd/checkpoint/files/checkpoint_folder.h>

namespace sherd::tools {

namespace fs = std::filesystem;

namespace {

uintmax_t bytes_of(const fs::path& file) {
  std::error_code missing;
  const uintmax_t bytes = file.empty() ? 0 : fs::file_size(file, missing);
  return missing ? 0 : bytes;
}

}  // namespace

RunProgress::RunProgress(const RunTarget& target)
    : target_(target),
      before_(target.newest()),
      begun_(fs::file_time_type::clock::now()),
      metrics_bytes_(bytes_of(target.metrics())) {}

bool RunProgress::made() const {
  if (target_.newest().sequence > before_.sequence) return true;
  // After the earlier content; a program that restarts at step 0 has replaced the file. The first lines are
  // enough.
  constexpr size_t kEnough = 1 << 16;
  const uintmax_t bytes = bytes_of(target_.metrics());
  if (bytes == metrics_bytes_) return false;
  std::ifstream file(target_.metrics(), std::ios::binary);
  if (bytes > metrics_bytes_) file.seekg(static_cast<std::streamoff>(metrics_bytes_));
  std::string text(kEnough, '\0');
  file.read(text.data(), static_cast<std::streamsize>(kEnough));
  return text.find("\"step\":") != text.npos;
}

double RunProgress::seconds_since_checkpoint() const {
  const RunTarget::Newest newest = target_.newest();
  fs::file_time_type since = begun_;
  std::error_code missing;
  if (newest.sequence > before_.sequence) {
    const auto saved =
        fs::last_write_time(target_.save() / checkpoint_name(newest.step) / "manifest.binpb", missing);
    if (!missing) since = std::max(since, saved);
  }
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - since).count();
}

}  // namespace sherd::tools
