#include "ckpt_verify.h"

#include <algorithm>

#include <fmt/format.h>

#include "ckpt_source.h"
#include "text.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

std::string damage_text(const Damage& d) {
  std::string text = "  " + printable(d.file);
  if (d.end > d.begin) text += fmt::format(", bytes {} to {}", d.begin, d.end);
  if (!d.tensor.empty()) text += ", tensor " + printable(d.tensor);
  return text + ": " + printable(d.what) + "\n";
}

std::string size_text(const Manifest& m) {
  int64_t bytes = 0;
  for (const CheckpointFile& f : m.files) bytes += f.bytes;
  return fmt::format("{} in {}, {}", count_text(static_cast<int64_t>(m.tensors.size()), "tensor"),
                     count_text(static_cast<int64_t>(m.files.size()), "file"), bytes_text(bytes));
}

// Whether it is sound.
bool verify_one(const fs::path& path, const Console& console) {
  std::vector<Damage> damage;
  {
    Progress progress(console.err, console.progress, "verify " + printable(path.filename().string()), 0);
    damage = verify_checkpoint(path, [&](int64_t done, int64_t total) {
      progress.set_total(total);
      progress.at(done);
    });
  }
  const std::string name = printable(path.string());
  if (damage.empty()) {
    const CheckpointReader reader = CheckpointReader::open(path);
    console.out << fmt::format("{}: sound (step {}; {}; every byte verified)\n", name,
                               reader.manifest().training.step, size_text(reader.manifest()));
    return true;
  }
  console.out << name << ": damaged\n";
  for (const Damage& d : damage) console.out << damage_text(d);
  return false;
}

// The newest one, or all, and always those whose age cannot be told.
std::vector<fs::path> chosen(const Place& place, bool all) {
  std::vector<fs::path> paths;
  for (const CommittedCheckpoint& c : place.committed)
    if (all || paths.empty()) paths.push_back(place.path / c.name);
  for (const std::string& name : place.unusable) paths.push_back(place.path / name);
  return paths;
}

}  // namespace

void verify(const VerifyOptions& options, const Console& console) {
  const Place place = find_place(options.path);
  if (options.all && place.kind != Place::Kind::save_folder)
    throw InvalidArgument(fmt::format("--all needs a save folder (one that holds step_NNNNNNNN), {} is none",
                                      options.path.string()));
  if (place.kind == Place::Kind::plain_folder || place.kind == Place::Kind::file) {
    CheckpointReader reader = CheckpointReader::open(place.path);
    reader.check_files();
    console.out << fmt::format(
        "{}: structure sound ({}); there are no checksums, the data was not verified\n",
        printable(place.path.string()), size_text(reader.manifest()));
    console.finish();
    return;
  }
  std::vector<fs::path> paths{place.path};
  if (place.kind == Place::Kind::save_folder) paths = chosen(place, options.all);
  if (paths.empty()) source_of(place);  // says why
  int64_t damaged = 0;
  for (const fs::path& path : paths) damaged += !verify_one(path, console);
  console.finish();
  if (damaged > 0)
    throw CorruptCheckpoint(fmt::format(
        "{} of {} damaged; restore the files named above from a copy, or resume from another checkpoint",
        damaged, count_text(static_cast<int64_t>(paths.size()), "checkpoint")));
}

}  // namespace sherd::tools
