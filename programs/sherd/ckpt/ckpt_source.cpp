#include "ckpt_source.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

#include "text.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using FileKind = FileSystem::Kind;

// The last component of what a path names, also for "." and "DIR/".
std::string own_name(const fs::path& path) {
  std::error_code ignored;
  fs::path whole = fs::absolute(path, ignored).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.filename().string();
}

[[noreturn]] void refuse(const fs::path& path, const std::string& hint) {
  throw IoError(
      fmt::format("{} is nothing that can be read: looked for manifest.binpb (a checkpoint), folders named "
                  "step_NNNNNNNN (a save folder) and *.safetensors files (weights of another program){}",
                  path.string(), hint));
}

Place folder_at(const fs::path& path, FileSystem& files) {
  Place place{Place::Kind::checkpoint, path, {}, {}};
  const std::string name = own_name(path);
  if (is_temporary_name(name))
    throw IoError(fmt::format(
        "{} is what an unfinished save left, not a checkpoint; name a folder step_NNNNNNNN beside it",
        path.string()));
  if (is_checkpoint_name(name) || files.kind(path / "manifest.binpb") == FileKind::file) return place;

  const std::vector<std::string> names = files.list(path);
  const auto has = [&](const char* wanted) { return std::binary_search(names.begin(), names.end(), wanted); };
  const bool tensors = std::any_of(names.begin(), names.end(),
                                   [](auto& n) { return fs::path(n).extension() == ".safetensors"; });
  const bool checkpoints = std::any_of(names.begin(), names.end(), is_checkpoint_name);
  if (checkpoints || (!tensors && has("lock"))) {
    place.kind = Place::Kind::save_folder;
    place.committed = list_checkpoints(path, files, &place.unusable);
    std::erase_if(place.unusable, [&](auto& u) { return files.kind(path / u.name) == FileKind::file; });
    return place;
  }
  if (tensors) {
    place.kind = Place::Kind::plain_folder;
    return place;
  }
  refuse(path, !has("model") ? "; name one of those"
                             : fmt::format("; a checkpoint that lost its manifest? {} can be read by itself",
                                           (path / "model").string()));
}

}  // namespace

std::string Place::complaint() const {
  if (unusable.empty()) return "";
  std::vector<std::string> reasons;
  for (const UnusableCheckpoint& u : unusable) reasons.push_back(u.text());
  return fmt::format("{} of {} in {} cannot be used: {}", unusable.size(),
                     count_text(static_cast<int64_t>(unusable.size() + committed.size()), "checkpoint"),
                     path.string(), fmt::join(reasons, "; "));
}

Place find_place(const fs::path& path, FileSystem& files) {
  switch (files.kind(path)) {
    case FileKind::none:
      throw IoError(fmt::format("{} does not exist; is the path right?", path.string()));
    case FileKind::folder:
      return folder_at(path, files);
    case FileKind::file:
      if (path.filename() == "manifest.binpb")
        return folder_at(path.has_parent_path() ? path.parent_path() : ".", files);
      return {Place::Kind::file, path, {}, {}};
    case FileKind::other:
      break;
  }
  refuse(path, "; this is neither a file nor a folder");
}

fs::path source_of(const Place& place) {
  if (place.kind != Place::Kind::save_folder) return place.path;
  if (!place.unusable.empty()) {
    const std::string name =
        (place.committed.empty() ? place.unusable.front().name : place.committed.front().name);
    throw CorruptCheckpoint(fmt::format(
        "{}; the newest checkpoint is unknown: name the one that is meant, such as {}, or run `sherd "
        "ckpt verify {}`",
        place.complaint(), (place.path / name).string(), place.path.string()));
  }
  if (!place.committed.empty()) return place.path / place.committed.front().name;
  throw IoError(fmt::format("{} is a save folder without a checkpoint; nothing was saved there yet",
                            place.path.string()));
}

Source open_source(const fs::path& path, std::ostream& err) {
  const Place place = find_place(path);
  const fs::path source = source_of(place);
  std::string title = printable(source.string());
  if (place.kind == Place::Kind::save_folder)
    title += place.committed.size() == 1 ? fmt::format(" (the only one)")
                                         : fmt::format(" (the newest of {})", place.committed.size());
  CheckpointReader reader = CheckpointReader::open(source);
  for (const std::string& note : reader.manifest().notes)
    err << "sherd ckpt: " << printable_lines(note) << '\n';
  return {std::move(reader), std::move(title), place.committed.size()};
}

Section section_of(const Manifest& manifest, const CheckpointTensor& tensor) {
  const bool by_name = !manifest.checksums && tensor.name.starts_with("optim.state.");
  return by_name ? Section::optim : tensor.section;
}

}  // namespace sherd::tools
