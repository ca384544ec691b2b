#include "ckpt_prune.h"

#include <fmt/format.h>

#include "ckpt_source.h"
#include "text.h"

namespace sherd::tools {

void prune(const PruneOptions& options, const Console& console, FileSystem& files) {
  const Place place = find_place(options.save_folder, files);
  if (place.kind != Place::Kind::save_folder)
    throw InvalidArgument(
        fmt::format("{} is not a save folder (one that holds step_NNNNNNNN)", options.save_folder.string()));
  CheckpointFolder folder(options.save_folder, files);
  // Only what is sound counts as kept, or a damaged one might be all that is left.
  const auto sound = [&](const CommittedCheckpoint& c) {
    const std::filesystem::path path = options.save_folder / c.name;
    if (verify_checkpoint(path, {}, files).empty()) return true;
    console.err << fmt::format("sherd ckpt: {} is damaged: it does not count, and stays\n",
                               printable(path.string()));
    return false;
  };
  const std::vector<std::string> removed = folder.prune(options.keep, {.counts = sound});
  for (const std::string& name : removed)
    console.out << "removed " << printable((options.save_folder / name).string()) << '\n';
  // As they are now: a file that could not be read before may be readable, or the reverse.
  const Place left = find_place(options.save_folder, files);
  if (!left.unusable.empty()) console.err << "sherd ckpt: " << printable(left.complaint()) << "; they stay\n";
  console.out << fmt::format("{} removed, {} kept\n", removed.size(),
                             count_text(static_cast<int64_t>(left.committed.size()), "checkpoint"));
  console.finish();
}

}  // namespace sherd::tools
