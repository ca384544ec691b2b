#include "ckpt_verify.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ckpt_source.h"
#include "elements.h"
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

enum class Verdict { sound, not_finite, damaged };

// Returns the text about non-finite values, tensor by tensor.
std::string not_finite_text(const std::vector<TensorNotFinite>& tensors) {
  std::string text;
  for (const TensorNotFinite& t : tensors)
    text += fmt::format("  {} {}: {} of {}, the first at {}\n", printable(t.name), to_string(t.shape),
                        t.values.count, count_text(numel_of(t.shape), "value"),
                        to_string(index_of(t.shape, t.values.first)));
  return text;
}

Verdict verify_one(const fs::path& path, const Console& console) {
  Verification found;
  {
    Progress progress(console.err, console.progress, "verify " + printable(path.filename().string()), 0);
    found = verify_contents(path, [&](int64_t done, int64_t total) {
      progress.set_total(total);
      progress.at(done);
    });
  }
  const std::string name = printable(path.string());
  const auto& [damage, not_finite] = found;
  if (!damage.empty()) {
    console.out << name << ": damaged\n";
    for (const Damage& d : damage) console.out << damage_text(d);
  } else {
    const Manifest m = CheckpointReader::open(path).manifest();
    const std::string what = fmt::format("(step {}; {}; every byte verified)", m.training.step, size_text(m));
    if (not_finite.empty()) {
      console.out << fmt::format("{}: sound {}\n", name, what);
    } else {
      int64_t values = 0;
      for (const TensorNotFinite& t : not_finite) values += t.values.count;
      console.out << fmt::format("{}: sound as a file {}, but {} of {} are not finite:\n", name, what,
                                 count_text(values, "value"),
                                 count_text(static_cast<int64_t>(not_finite.size()), "tensor"));
    }
  }
  console.out << not_finite_text(not_finite);
  if (!damage.empty()) return Verdict::damaged;
  const bool model = std::any_of(not_finite.begin(), not_finite.end(),
                                 [](const TensorNotFinite& t) { return t.section == Section::model; });
  return model ? Verdict::not_finite : Verdict::sound;
}

// The newest one, or all, and always those of unknown age.
std::vector<fs::path> chosen(const Place& place, bool all) {
  std::vector<fs::path> paths;
  for (const CommittedCheckpoint& c : place.committed)
    if (all || paths.empty()) paths.push_back(place.path / c.name);
  for (const UnusableCheckpoint& u : place.unusable) paths.push_back(place.path / u.name);
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
    console.out << fmt::format("{}: structure sound ({}); checksums are missing, the data was not verified\n",
                               printable(place.path.string()), size_text(reader.manifest()));
    console.finish();
    return;
  }
  std::vector<fs::path> paths{place.path};
  if (place.kind == Place::Kind::save_folder) paths = chosen(place, options.all);
  if (paths.empty()) source_of(place);  // says why
  int64_t damaged = 0, not_finite = 0;
  for (const fs::path& path : paths) {
    const Verdict verdict = verify_one(path, console);
    damaged += verdict == Verdict::damaged;
    not_finite += verdict == Verdict::not_finite;
  }
  console.finish();
  const std::string all = count_text(static_cast<int64_t>(paths.size()), "checkpoint");
  std::vector<std::string> wrong;
  if (damaged > 0)
    wrong.push_back(fmt::format(
        "{} of {} damaged; restore the files named above from a copy, or resume from another checkpoint",
        damaged, all));
  if (not_finite > 0)
    wrong.push_back(
        fmt::format("{} of {}: weights are not finite, training had diverged; resume from an earlier one",
                    not_finite, all));
  if (!wrong.empty()) throw CorruptCheckpoint(fmt::format("{}", fmt::join(wrong, "; ")));
}

}  // namespace sherd::tools
