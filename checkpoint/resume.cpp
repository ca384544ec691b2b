#include <sherd/checkpoint/resume.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include <sherd/base/printable.h>
#include <sherd/checkpoint/detail/compare_copies.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

constexpr const char* kManifestName = "manifest.binpb";
constexpr const char* kItself = ".";

// The folder that a path means: without a slash at the end, or the manifest's name.
std::filesystem::path bare(const std::filesystem::path& given) {
  const auto path = given.has_filename() || !given.has_parent_path() ? given : given.parent_path();
  return path.filename() == kManifestName ? path.parent_path() : path;
}

// Names below bare(given) of folders to try, newest first. Of a path that names a checkpoint: ".".
std::vector<std::string> candidates(const std::filesystem::path& given, FileSystem& files,
                                    std::vector<std::string>& skipped) {
  const auto refuse = [&](const char* why) {
    throw IoError(fmt::format(
        "cannot resume from '{}': {}; name a checkpoint (step_XXXXXXXX) or the folder they were saved in",
        printable(given.string(), std::string::npos), why));
  };
  const auto path = bare(given);
  const FileSystem::Kind kind = files.kind(path);
  if (kind == FileSystem::Kind::none) refuse("it is missing");
  if (kind != FileSystem::Kind::folder) refuse("it is not a folder");
  if (is_checkpoint_name(path.filename().string()) ||
      files.kind(path / kManifestName) != FileSystem::Kind::none)
    return {kItself};
  std::vector<std::string> found;
  std::vector<UnusableCheckpoint> unusable;
  for (const CommittedCheckpoint& c : list_checkpoints(path, files, &unusable)) found.push_back(c.name);
  for (const UnusableCheckpoint& u : unusable) skipped.push_back(u.text());
  if (found.empty() && skipped.empty()) refuse("it holds no checkpoint");
  return found;
}

std::filesystem::path folder_of(const std::filesystem::path& given, const std::string& name) {
  return name == kItself ? bare(given) : bare(given) / name;
}

// Rank 0's list, which all follow: each rank reads its own copy of these folders.
struct Choice {
  std::vector<std::string> names;    // newest first
  std::vector<std::string> skipped;  // why others are not among them
  FileCopy own;                      // which checkpoint this rank would take first
  bool from_save_folder() const { return names.empty() || names.front() != kItself; }
};

// Rank 0's first one, unless this rank lacks it or has a newer one. The listing of a network file system may lag behind,
// so it is looked up by its name; a newer one is not asked for where rank 0 passes over damaged ones.
std::string own_first(const Choice& choice, const std::vector<std::string>& own,
                      const std::filesystem::path& path, FileSystem& files) {
  if (choice.names.empty()) return "";
  const std::string& name = choice.names.front();
  const bool is_there = files.kind(folder_of(path, name)) == FileSystem::Kind::folder;
  const bool has_newer = choice.skipped.empty() && !own.empty() && own.front() != name &&
                         std::find(own.begin(), own.end(), name) != own.end();
  return is_there && !has_newer ? name : own.empty() ? "" : own.front();
}

Choice choose(Agreement& ranks, const std::filesystem::path& path, bool compare, FileSystem& files) {
  std::vector<std::string> own, reasons;
  ranks.run_collectively(
      [&] {
        if (compare || ranks.rank() == 0) own = candidates(path, files, reasons);
      },
      compare ? Agreement::Names::failing_rank : Agreement::Names::nothing);
  Choice choice{ranks.broadcast(own), ranks.broadcast(reasons), {}};
  ranks.run_collectively([&] {
    const std::string first = compare ? own_first(choice, own, path, files) : "";
    choice.own = {"the checkpoint to resume from", folder_of(path, first).string(), hash64(0, first)};
  });
  return choice;
}

}  // namespace

FileCopy checkpoint_copy(Communicator& ranks, const std::filesystem::path& path, FileSystem& files) {
  Agreement agreement(ranks, "checkpoint_copy");
  FileCopy copy = choose(agreement, path, true, files).own;
  try {
    copy.digest = weights_copies(copy.path, files).front().digest;
  } catch (const Error& e) {
    copy.error = e.what();
  }
  return copy;
}

Resumed resume(const std::filesystem::path& path, ModuleBase& root, Optimizer* optimizer,
               const LoadOptions& options, const std::function<std::string(const TrainingState&)>& check,
               FileSystem& files) {
  return resume(path, root, optimizer == nullptr ? std::vector<Optimizer*>{} : std::vector{optimizer},
                options, check, files);
}

Resumed resume(const std::filesystem::path& path, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
               const LoadOptions& options, const std::function<std::string(const TrainingState&)>& check,
               FileSystem& files) {
  Agreement ranks(*runtime_of(root).mesh().world(), "resume");
  Resumed resumed;
  const Choice choice = choose(ranks, path, options.compare_copies, files);
  resumed.skipped = choice.skipped;
  if (options.compare_copies) compare_copies(ranks, {choice.own});
  for (const std::string& name : choice.names) {
    const std::filesystem::path folder = folder_of(path, name);
    try {
      CheckpointReader reader =
          open_alike(ranks, options.compare_copies, [&] { return CheckpointReader::open(folder, files); });
      ranks.run_collectively([&] {
        if (ranks.rank() != 0) return;
        reader.check_files();
        if (const int64_t wild = model_not_finite(reader.manifest()); wild > 0 && choice.from_save_folder())
          throw CorruptCheckpoint(fmt::format(
              "'{}': {} values of its model are not finite; name it itself to load it all the same",
              folder.string(), wild));
      });
      resumed.path = folder;
      LoadOptions load = options;
      load.compare_copies = false;
      ranks.run_collectively([&] {
        if (check) load.cause = check(reader.manifest().training);
      });
      resumed.report = load_checkpoint(reader, root, optimizers, load);
      return resumed;
    } catch (const IoError& e) {
      // A bad sector, or pruned meanwhile by the run that saves there.
      if (choice.names.size() == 1 && resumed.skipped.empty()) throw;
      resumed.skipped.push_back(e.what());
    } catch (const CorruptCheckpoint& e) {
      if (choice.names.size() == 1 && resumed.skipped.empty())
        throw CorruptCheckpoint(fmt::format(
            "cannot resume: {}; `sherd ckpt verify` lists all damage; resume from another checkpoint",
            e.what()));
      resumed.skipped.push_back(e.what());
    }
  }
  throw CorruptCheckpoint(fmt::format("cannot resume: no checkpoint in '{}' can be used: {}",
                                      printable(path.string(), std::string::npos),
                                      fmt::join(resumed.skipped, "; ")));
}

}  // namespace sherd
