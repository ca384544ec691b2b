#include "outputs.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/weights.h>

#include "misfit.h"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;
using Kind = sherd::FileSystem::Kind;

Kind kind_of(const fs::path& path) { return sherd::FileSystem::posix().kind(path); }

fs::path without_slash(const fs::path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

fs::path folder_of(const fs::path& path) {
  const fs::path bare = without_slash(path);
  return bare.has_parent_path() ? bare.parent_path() : ".";
}

void require_folder(const fs::path& folder) {
  if (kind_of(folder) != Kind::folder || ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw sherd::IoError(fmt::format("{} is not a folder that can be written to", folder.string()));
}

// `special`: devices and pipes will do, too.
void require_file(const fs::path& path, bool special) {
  const Kind kind = kind_of(path);
  if (kind == Kind::none) return require_folder(folder_of(path));
  if (kind == Kind::folder || (kind == Kind::other && !special))
    throw sherd::IoError("it exists and is not a regular file");
  if (::access(path.c_str(), W_OK) != 0) throw sherd::IoError("it exists and must not be written to");
}

// Missing folders are created, below the last one that is there.
void require_save_folder(const fs::path& path) {
  fs::path there = without_slash(path);
  while (kind_of(there) == Kind::none && folder_of(there) != there) there = folder_of(there);
  if (kind_of(there) != Kind::folder)
    throw sherd::IoError(fmt::format("{} is there and no folder", there.string()));
  require_folder(there);
}

void require_export(const fs::path& path) {
  require_folder(folder_of(path));
  sherd::check_export_path(path);
}

// Name, step, and what it was saved with; only the name and why when it is damaged.
std::string newest_in_words(const fs::path& folder, const std::string& newest, const TrainConfig& config) {
  try {
    const sherd::TrainingState saved = sherd::CheckpointReader::open(folder / newest).manifest().training;
    const std::string differences = run_differences(saved, config);
    return fmt::format("{} after {} steps, from which this run does not go on{}{}", newest, saved.step,
                       differences.empty() ? "" : "; it was saved with ", differences);
  } catch (const sherd::Error& e) {
    return fmt::format("{}, from which this run does not go on, and which cannot be read ({})", newest,
                       e.what());
  }
}

}  // namespace

bool goes_on_in_save_folder(const TrainConfig& config) {
  if (config.resume.empty() || config.resume_parts == "model") return false;
  std::error_code missing;
  fs::path from = fs::weakly_canonical(without_slash(config.resume), missing);
  if (from.filename() == "manifest.binpb") from = from.parent_path();
  if (sherd::is_checkpoint_name(from.filename().string())) from = from.parent_path();
  return fs::equivalent(from, config.save, missing);
}

bool rank_0_is_here(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  if (config.comm != "nccl" || config.bootstrap == "none" || !sherd::job_in_environment(get).present)
    return true;
  // Where the job's store is does not matter here, and MPI needs none.
  const sherd::EnvironmentLookup with_store = [&get](const char* name) -> const char* {
    const char* const value = get ? get(name) : std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
    const std::string_view missing = name;
    return missing == "MASTER_ADDR" ? "localhost" : missing == "MASTER_PORT" ? "1" : value;
  };
  try {
    return sherd::from_environment(with_store).rank == 0;
  } catch (const sherd::InvalidArgument&) {
    return true;  // joining the job says what is wrong
  }
}

void check_outputs(const TrainConfig& config, const sherd::EnvironmentLookup& get) {
  std::vector<std::string> problems;
  const auto check = [&](const char* flag, const std::string& path, auto require) {
    if (path.empty()) return;
    try {
      require(path);
    } catch (const sherd::IoError& e) {
      problems.push_back(fmt::format("cannot write {} {}: {}", flag, path, e.what()));
    }
  };
  const auto file = [](const std::string& path) { require_file(path, false); };
  check("--save", config.save, require_save_folder);
  if (rank_0_is_here(config, get)) {
    check("--metrics", config.metrics, [](const std::string& path) { require_file(path, true); });
    check("--loss-svg", config.loss_svg, file);
    check("--trace", config.trace, file);
    check("--timeline", config.timeline, file);
    check("--export-weights", config.export_weights, require_export);
  }
  if (!problems.empty()) throw sherd::IoError(fmt::format("{}", fmt::join(problems, "; ")));
}

void check_save_folder(const TrainConfig& config) {
  if (config.save.empty() || config.overwrite || kind_of(config.save) != Kind::folder) return;
  const auto there = sherd::list_checkpoints(config.save, sherd::FileSystem::posix());
  if (there.empty() || goes_on_in_save_folder(config)) return;
  const bool weights_alone = !config.resume.empty() && config.resume_parts == "model";
  const std::string go_on =
      weights_alone ? "--resume-parts model takes weights alone and begins a new run: leave it out "
                      "to go on from a checkpoint, give "
                    : fmt::format("give --resume {} to go on from it, ", config.save);
  throw sherd::IoError(fmt::format(
      "--save {} holds another run: {} checkpoint{}, the newest of them {}; {}--overwrite to replace it (its "
      "checkpoints are removed once the first of this run is complete), or save in another folder",
      config.save, there.size(), there.size() == 1 ? "" : "s",
      newest_in_words(config.save, there.front().name, config), go_on));
}

}  // namespace train_gpt
