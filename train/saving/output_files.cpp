#include <sherd/train/saving/output_files.h>

#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/train/detail/paths.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

Kind kind_of(const fs::path& path) { return FileSystem::posix().kind(path); }

fs::path folder_of(const fs::path& path) {
  const fs::path bare = detail::without_slash(path);
  return bare.has_parent_path() ? bare.parent_path() : ".";
}

void require_folder(const fs::path& folder) {
  if (kind_of(folder) != Kind::folder || ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw IoError(fmt::format("{} is not a folder that can be written to", folder.string()));
}

// Missing folders are created, below the last one that is there.
void require_folders(const fs::path& path) {
  fs::path there = detail::without_slash(path);
  while (kind_of(there) == Kind::none && folder_of(there) != there) there = folder_of(there);
  if (kind_of(there) != Kind::folder)
    throw IoError(fmt::format("{} exists and is not a folder", there.string()));
  require_folder(there);
}

// `special`: devices and pipes will do, too.
void require_file(const fs::path& path, bool special) {
  const Kind kind = kind_of(path);
  if (kind == Kind::none) return require_folders(folder_of(path));
  if (kind == Kind::folder || (kind == Kind::other && !special))
    throw IoError("it exists and is not a regular file");
  if (::access(path.c_str(), W_OK) != 0) throw IoError("it exists and must not be written to");
}

void require_export(const fs::path& path, Existing existing) {
  require_folders(folder_of(path));
  check_export_path(path, FileSystem::posix(), existing);
}

void require(const OutputPath& output) {
  switch (output.kind) {
    case OutputPath::Kind::file:
      return require_file(output.path, false);
    case OutputPath::Kind::stream:
      return require_file(output.path, true);
    case OutputPath::Kind::weights:
      return require_export(output.path, output.existing);
    case OutputPath::Kind::weights_folder:
      if (const Kind kind = kind_of(detail::without_slash(output.path));
          kind == Kind::file || kind == Kind::other)
        throw IoError("it exists and is not a folder; name a new one");
      return require_export(output.path / "", output.existing);
    case OutputPath::Kind::folder:
      return require_folders(output.path);
  }
}

}  // namespace

void check_outputs(std::span<const OutputPath> outputs) {
  std::vector<std::string> problems;
  for (const OutputPath& output : outputs) {
    if (output.path.empty()) continue;
    try {
      require(output);
    } catch (const IoError& e) {
      problems.push_back(fmt::format("cannot write {} {}: {}", output.flag, output.path.string(), e.what()));
    }
  }
  if (!problems.empty()) throw IoError(fmt::format("{}", fmt::join(problems, "; ")));
  for (const OutputPath& output : outputs) {
    if (output.path.empty() || output.kind == OutputPath::Kind::folder) continue;
    std::error_code error;
    fs::create_directories(folder_of(output.path), error);
    if (error)
      throw IoError(fmt::format("cannot create the folder of {} {}: {}", output.flag, output.path.string(),
                                error.message()));
  }
}

bool rank_0_is_here(const EnvironmentLookup& get) {
  if (!job_in_environment(get).present) return true;
  // The place of the job's store does not matter here, and MPI needs none.
  const EnvironmentLookup with_store = [&get](const char* name) -> const char* {
    const char* const value = get ? get(name) : std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
    const std::string_view missing = name;
    return missing == "MASTER_ADDR" ? "localhost" : missing == "MASTER_PORT" ? "1" : value;
  };
  try {
    return from_environment(with_store).rank == 0;
  } catch (const InvalidArgument&) {
    return true;  // joining the job says what is wrong
  }
}

}  // namespace sherd
