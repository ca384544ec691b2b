#include <sherd/checkpoint/files/checkpoint_folder.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/random_token.h>
#include <sherd/checkpoint/format/detail/at_path.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

constexpr std::string_view kStep = "step_";
constexpr std::string_view kTemporary = ".tmp-";
constexpr const char* kManifestFile = "manifest.binpb";
constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";
constexpr const char* kLock = "lock";
constexpr size_t kTokenDigits = 16;
// More saves than were made after the newest readable checkpoint and before an unreadable one.
constexpr uint64_t kUnknownSaves = 1'000'000;

bool is_missing(const fs::path& path, FileSystem& files) {
  try {
    return files.kind(path) == Kind::none;
  } catch (const IoError&) {
    return false;
  }
}

bool all_in(std::string_view text, std::string_view letters) {
  return text.find_first_not_of(letters) == text.npos;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

/// @throws CorruptCheckpoint, IoError.
uint64_t sequence_of(const fs::path& manifest, FileSystem& files) {
  const std::unique_ptr<ReadableFile> file = files.open(manifest);
  const int64_t size = file->size();
  std::string prefix(static_cast<size_t>(std::min(size, kManifestPrefix)), '\0');  // a short one is torn
  file->read_at(0, prefix.data(), static_cast<int64_t>(prefix.size()));
  const uint64_t sequence = at_path(manifest, [&] { return decode_sequence(prefix); });
  uint64_t length = 0;
  std::memcpy(&length, prefix.data() + 24, sizeof length);
  const auto there = static_cast<uint64_t>(size - kManifestPrefix);
  if (length != there) {
    throw CorruptCheckpoint(fmt::format("'{}' is torn: its message has {} bytes, {} are there",
                                        manifest.string(), length, there));
  }
  return sequence;
}

void write_durably(FileSystem& files, const fs::path& path, std::string_view bytes) {
  const std::unique_ptr<WritableFile> file = files.create_new(path);
  if (!file) throw IoError(fmt::format("cannot create '{}': the name is taken", path.string()));
  file->write(bytes.data(), static_cast<int64_t>(bytes.size()));
  file->sync();
  file->close();
}

void create_with_parents(const fs::path& path, FileSystem& files) {
  const Kind kind = files.kind(path);
  if (kind == Kind::folder) return;
  if (kind != Kind::none)
    throw IoError(fmt::format(
        "cannot save checkpoints in '{}': it exists and is not a folder; choose another", path.string()));
  const fs::path bare = path.has_filename() ? path : path.parent_path();  // without a slash at the end
  if (folder_of(bare) != bare) create_with_parents(folder_of(bare), files);
  files.create_folder(bare);
  files.sync_folder(folder_of(bare));
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

int64_t step_of_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kStep)) return -1;
  const std::string_view digits = name.substr(kStep.size());
  if (digits.size() < 8 || !all_in(digits, "0123456789")) return -1;
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return error == std::errc() ? step : -1;  // of more digits than a step has
}

bool is_checkpoint_name(std::string_view name) { return step_of_checkpoint_name(name) >= 0; }

bool is_temporary_name(std::string_view name) {
  const size_t mark = name.find(kTemporary);
  if (mark == name.npos) return false;
  const std::string_view base = name.substr(0, mark);
  if (base != kLatest && base != kBest && base != kLock && !is_checkpoint_name(base)) return false;
  const std::string_view rest = name.substr(mark + kTemporary.size());
  return rest.size() > kTokenDigits + 1 && all_in(rest.substr(0, kTokenDigits), "0123456789abcdef") &&
         rest[kTokenDigits] == '-' && all_in(rest.substr(kTokenDigits + 1), "0123456789");
}

void create_temporary(FileSystem& files, const fs::path& path) {
  if (!files.create_folder(path))
    throw IoError(
        fmt::format("cannot create the folder '{}': the name is taken; remove it, or save in another folder",
                    path.string()));
}

std::vector<CommittedCheckpoint> list_checkpoints(const fs::path& folder, FileSystem& files,
                                                  std::vector<UnusableCheckpoint>* unusable) {
  std::vector<CommittedCheckpoint> found;
  for (const std::string& name : files.list(folder)) {
    if (!is_checkpoint_name(name)) continue;
    UnusableCheckpoint wrong{.name = name, .reason = {}};
    try {
      found.push_back({name, sequence_of(folder / name / kManifestFile, files)});
      continue;
    } catch (const CorruptCheckpoint& e) {
      wrong.reason = e.what();
    } catch (const IoError& e) {
      if (is_missing(folder / name, files)) continue;  // pruned meanwhile
      wrong.reason = e.what();
      wrong.unreadable = !is_missing(folder / name / kManifestFile, files);
    }
    if (unusable != nullptr) unusable->push_back(std::move(wrong));
  }
  std::sort(found.begin(), found.end(), [](const CommittedCheckpoint& a, const CommittedCheckpoint& b) {
    return std::tie(a.sequence, a.name) > std::tie(b.sequence, b.name);
  });
  return found;
}

CheckpointFolder::CheckpointFolder(fs::path path, FileSystem& files, LockHolder self)
    : path_(std::move(path)), files_(files), token_(random_token()) {
  create_with_parents(path_, files_);
  (void)list_checkpoints(path_, files_);  // a newer format is refused before a file of it is touched
  lock_.emplace(path_, files_, std::move(self), [this] { return temporary_name(kLock); });
  // This also takes from a holder that was stopped in the middle of a commit what it was about to rename.
  sweep();
  std::vector<UnusableCheckpoint> unusable;
  const std::vector<CommittedCheckpoint> all = list_checkpoints(path_, files_, &unusable);
  if (!all.empty()) last_sequence_ = all.front().sequence;
  if (std::any_of(unusable.begin(), unusable.end(), [](const auto& u) { return u.unreadable; }))
    last_sequence_ += kUnknownSaves;
}

std::vector<CommittedCheckpoint> CheckpointFolder::listed() {
  std::vector<CommittedCheckpoint> all = list_checkpoints(path_, files_);
  std::set<uint64_t> there;
  for (const CommittedCheckpoint& c : all) there.insert(c.sequence);
  std::erase_if(known_, [&](const auto& known) { return !there.contains(known.first); });
  return all;
}

void CheckpointFolder::sweep() {
  std::vector<std::string> names = files_.list(path_);
  std::erase_if(names, [](const std::string& name) { return !is_temporary_name(name); });
  if (names.empty()) return;
  // Makes the temporary names durable before the contents are removed.
  files_.sync_folder(path_);
  for (const std::string& name : names) {
    // Rename it aside first: a suspended earlier holder of the lock may resume at any moment and commit it by
    // a rename. That rename then fails; it must not commit a half-removed folder.
    const fs::path aside = temporary_name(name.substr(0, name.find(kTemporary)));
    files_.rename(path_ / name, aside);
    files_.remove_all(aside);
  }
}

fs::path CheckpointFolder::temporary_name(const std::string& name) {
  return path_ / fmt::format("{}{}{}-{}", name, kTemporary, token_, count_++);
}

fs::path CheckpointFolder::temporary(int64_t step) {
  const fs::path target = path_ / checkpoint_name(step);
  const Kind kind = files_.kind(target);
  if (kind != Kind::none && files_.kind(target / kManifestFile) == Kind::none)
    throw IoError(
        fmt::format("cannot save '{}': it exists and is not a checkpoint; move it away", target.string()));
  return temporary_name(checkpoint_name(step));
}

fs::path CheckpointFolder::commit(const fs::path& temporary, int64_t step, Manifest& manifest) {
  manifest.sequence = next_sequence();
  for (const Section section : {Section::model, Section::optim}) {
    const fs::path folder = temporary / name_of(section);
    if (files_.kind(folder) != Kind::none) files_.sync_folder(folder);
  }
  write_durably(files_, temporary / kManifestFile, encode_manifest(manifest));
  files_.sync_folder(temporary);

  const std::string name = checkpoint_name(step);
  const fs::path committed = path_ / name;
  const bool taken = files_.kind(committed) != Kind::none;
  const int64_t not_finite = model_not_finite(manifest);
  if (taken && not_finite > 0 && is_finite(name))
    throw IoError(fmt::format(
        "'{}' is left as it is: its model is finite, and {} values of the one that would replace it are not",
        committed.string(), not_finite));
  lock_->require(fmt::format("'{}' is not committed", committed.string()));
  if (taken) {
    files_.exchange(temporary, committed);
  } else {
    files_.rename(temporary, committed);
  }
  last_sequence_ = manifest.sequence;

  const char* what = "may not survive a power failure";
  bool durable = false;
  try {
    files_.sync_folder(path_);
    durable = true;
    what = "'latest' may still name an earlier one";
    write_name(kLatest, name);
    what = "the one that it replaced could not be removed";
    if (taken) files_.remove_all(temporary);
  } catch (const IoError& e) {
    throw LateFailure(fmt::format("checkpoint '{}' is complete and in its place, but {}: {}",
                                  committed.string(), what, e.what()),
                      durable);
  }
  return committed;
}

void CheckpointFolder::write_name(const char* pointer, const std::string& name) {
  const fs::path temporary = temporary_name(pointer);
  try {
    write_durably(files_, temporary, name + "\n");
    lock_->require(fmt::format("'{}' does not name '{}'", (path_ / pointer).string(), name));
    rename_durably(files_, temporary, path_ / pointer);
  } catch (...) {
    discard(temporary);
    throw;
  }
}

void CheckpointFolder::discard(const fs::path& temporary) noexcept {
  try {
    // After a commit that failed late this may be the checkpoint that was replaced: it stays until it is
    // durable that it was.
    files_.sync_folder(path_);
    files_.remove_all(temporary);
  } catch (const std::exception&) {
  }
}

bool CheckpointFolder::is_finite(const std::string& name) {
  try {
    return known({name, sequence_of(path_ / name / kManifestFile, files_)}).finite;
  } catch (const CorruptCheckpoint&) {
    return false;
  }
}

CheckpointFolder::Known CheckpointFolder::known_of(const Manifest& manifest) {
  Known known{.finite = model_not_finite(manifest) == 0};
  const auto& info = manifest.training.info;
  const auto loss = info.find(TrainingState::kEvalLoss), data = info.find(TrainingState::kEvalData);
  if (loss == info.end() || data == info.end()) return known;
  const char* const end = loss->second.data() + loss->second.size();
  double value = 0;
  const auto [at, error] = std::from_chars(loss->second.data(), end, value);
  if (error == std::errc() && at == end && std::isfinite(value)) known.loss = value;
  known.data = data->second;
  return known;
}

// A checkpoint whose manifest cannot be read counts as not finite: it must not be kept instead of another.
const CheckpointFolder::Known& CheckpointFolder::known(const CommittedCheckpoint& c) {
  const auto found = known_.find(c.sequence);
  if (found != known_.end()) return found->second;
  Known known;
  try {
    const auto limit = kManifestPrefix + std::numeric_limits<int>::max();
    known = known_of(decode_manifest(read_whole(files_, path_ / c.name / kManifestFile, limit)));
  } catch (const CorruptCheckpoint&) {
  }
  return known_[c.sequence] = std::move(known);
}

std::optional<EvaluatedCheckpoint> CheckpointFolder::lowest_loss(
    const std::string& data, const std::function<bool(const CommittedCheckpoint&)>& counts) {
  std::optional<EvaluatedCheckpoint> best;
  for (const CommittedCheckpoint& c : listed()) {  // newest first
    if (!counts(c)) continue;
    const Known& k = known(c);
    if (k.finite && k.loss && k.data == data && (!best || *k.loss <= best->loss)) best = {c.name, *k.loss};
  }
  return best;
}

std::vector<std::string> CheckpointFolder::prune(int64_t keep, const PruneRule& rule) {
  if (keep < 1) throw InvalidArgument(fmt::format("checkpoints to keep: {}; must be 1 or more", keep));
  std::vector<CommittedCheckpoint> old;
  std::string newest;
  const std::string best_name = best();
  int64_t left = keep, finite_left = keep;
  for (const CommittedCheckpoint& c : listed()) {
    bool stays = false;
    if (left > 0 || finite_left > 0) {
      if (rule.counts && !rule.counts(c)) continue;
      const bool counts_as_finite = finite_left > 0 && known(c).finite;
      stays = left > 0 || counts_as_finite;
      if (left > 0) --left;
      if (counts_as_finite) --finite_left;
    }
    if (stays && newest.empty()) newest = c.name;
    if (!stays && c.name != best_name && (!rule.removable || rule.removable(c))) old.push_back(c);
  }
  return remove_all(old, newest);
}

std::vector<std::string> CheckpointFolder::remove(
    const std::function<bool(const CommittedCheckpoint&)>& removable) {
  std::vector<CommittedCheckpoint> old;
  std::string newest;
  for (const CommittedCheckpoint& c : listed()) {
    if (removable(c)) {
      old.push_back(c);
    } else if (newest.empty()) {
      newest = c.name;
    }
  }
  if (newest.empty())
    throw InvalidArgument(fmt::format("'{}': no checkpoint would stay; none is removed", path_.string()));
  return remove_all(old, newest);
}

// `newest` is one that stays. Returns the names removed.
std::vector<std::string> CheckpointFolder::remove_all(const std::vector<CommittedCheckpoint>& old,
                                                      const std::string& newest) {
  std::vector<std::string> names;
  for (const CommittedCheckpoint& c : old) names.push_back(c.name);
  if (names.empty()) return names;
  // After a crash `latest` may name one of those that go.
  const auto goes = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string named = named_in(kLatest);
  if (named.empty() || goes(named)) write_name(kLatest, newest);
  if (goes(best())) files_.remove_all(path_ / kBest);

  std::vector<fs::path> removed;
  for (const CommittedCheckpoint& c : old) {
    const fs::path aside = temporary_name(c.name);
    const std::string what = fmt::format("'{}' is not removed", (path_ / c.name).string());
    lock_->require(what);
    files_.rename(path_ / c.name, aside);
    std::string wrong;
    try {
      if (sequence_of(aside / kManifestFile, files_) != c.sequence)
        wrong = "another checkpoint has taken its place";
    } catch (const Error& e) {
      wrong = e.what();
    }
    if (!wrong.empty()) {
      // This process was suspended after require(); the new holder of the folder has a checkpoint of this
      // name. Or it cannot be read, and may be such a one.
      files_.rename(aside, path_ / c.name);
      files_.sync_folder(path_);
      lock_->require(what);
      throw IoError(fmt::format("{}: {}", what, wrong));
    }
    removed.push_back(aside);
  }
  files_.sync_folder(path_);
  for (const fs::path& path : removed) files_.remove_all(path);
  return names;
}

std::string CheckpointFolder::named_in(const char* pointer) {
  constexpr int64_t kMaxBytes = 4096;
  if (files_.kind(path_ / pointer) != Kind::file) return "";
  std::string name = read_whole(files_, path_ / pointer, kMaxBytes);
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

}  // namespace sherd
