#include <sherd/checkpoint/files/detail/links.h>

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

bool contains(const fs::path& folder, const fs::path& file) {
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first == folder.end();
}

// models--org--name/snapshots/REVISION is a folder of links to models--org--name/blobs/HASH.
fs::path blobs_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path())
    if (at.filename() == "snapshots") return at.parent_path() / "blobs";
  return {};
}

}  // namespace

bool is_inside(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const fs::path target = fs::canonical(folder / name, error);
  const fs::path root = error ? fs::path() : fs::canonical(folder, error);
  if (error || contains(root, target)) return true;
  const fs::path blobs = blobs_of(root);
  return !blobs.empty() && contains(blobs, target);
}

void require_inside(const fs::path& folder, const std::string& name) {
  if (is_inside(folder, name)) return;
  std::error_code ignored;
  throw IoError(
      fmt::format("cannot read '{}': it is a link to '{}', outside of its folder; put a copy of the file "
                  "into the folder, or name "
                  "the folder that holds it",
                  printable((folder / name).string(), 4096),
                  printable(fs::canonical(folder / name, ignored).string(), 4096)));
}

}  // namespace sherd
