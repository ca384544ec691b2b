#include "support/fault_file_system.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view what, const fs::path& path, std::string_view why) {
  throw sherd::IoError(fmt::format("cannot {} '{}': {}", what, path.string(), why));
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return path == folder || path.string().starts_with(folder.string() + "/");
}

/// The path after what is at `from` has moved to `to`.
fs::path moved(const fs::path& path, const fs::path& from, const fs::path& to) {
  return is_below(path, from) ? fs::path(to.string() + path.string().substr(from.string().size())) : path;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

}  // namespace

const char* name_of(FileCall call) {
  constexpr const char* kNames[] = {"create_new", "write",    "sync",        "close",      "create_folder",
                                    "rename",     "exchange", "sync_folder", "remove_all", "lock"};
  return kNames[static_cast<size_t>(call)];
}

std::string SeenCall::to_string() const {
  return fmt::format("{} '{}'{}", name_of(call), path.string(),
                     other.empty() ? "" : fmt::format(" '{}'", other.string()));
}

template <class Whole, class Part>
auto FaultFileSystem::change(FileCall call, const fs::path& path, const fs::path& other, Whole whole,
                             Part part) {
  const std::lock_guard lock(mutex_);
  check_alive(name_of(call), path);
  calls_.push_back({call, path, other});
  const auto names = [&](const fs::path& p) { return p.string().find(fault_->path) != std::string::npos; };
  const bool matches =
      fault_ && (!fault_->only || *fault_->only == call) && (names(path) || (!other.empty() && names(other)));
  const size_t number = matches ? matching_++ : 0;
  if (!matches || number < fault_->at || (number > fault_->at && !fault_->again)) return whole();

  struck_ = true;
  crashed_ = fault_->effect == FileFault::Effect::crash;
  if (fault_->effect != FileFault::Effect::error) part();
  fail(name_of(call), path,
       crashed_ ? "the machine has crashed" : std::system_category().message(fault_->error));
}

void FaultFileSystem::check_alive(std::string_view what, const fs::path& path) const {
  if (crashed_) fail(what, path, "the machine has crashed");
}

class FaultFileSystem::Readable : public sherd::ReadableFile {
 public:
  Readable(FaultFileSystem& owner, std::unique_ptr<sherd::ReadableFile> file)
      : owner_(owner), file_(std::move(file)) {}

  const fs::path& path() const override { return file_->path(); }
  int64_t size() const override { return file_->size(); }

  void read_at(int64_t offset, void* to, int64_t bytes) const override {
    file_->read_at(offset, to, bytes);
    const std::lock_guard lock(owner_.mutex_);
    owner_.check_alive("read", path());
    for (const ReadFault& fault : owner_.read_faults_) {
      if (path().string().find(fault.path) == std::string::npos) continue;
      if (fault.error != 0) fail("read", path(), std::system_category().message(fault.error));
      if (fault.offset < offset || fault.offset >= offset + bytes) continue;
      static_cast<unsigned char*>(to)[fault.offset - offset] ^= static_cast<unsigned char>(1u << fault.bit);
    }
  }

 private:
  FaultFileSystem& owner_;
  std::unique_ptr<sherd::ReadableFile> file_;
};

class FaultFileSystem::Writable : public sherd::WritableFile {
 public:
  Writable(FaultFileSystem& owner, std::unique_ptr<sherd::WritableFile> file,
           std::shared_ptr<FileState> state)
      : owner_(owner), file_(std::move(file)), state_(std::move(state)) {}

  const fs::path& path() const override { return file_->path(); }

  void write(const void* from, int64_t bytes) override {
    const auto put = [&](int64_t count) {
      file_->write(from, count);
      state_->written += count;
    };
    owner_.change(
        FileCall::write, path(), {}, [&] { put(bytes); }, [&] { put(bytes / 2); });
  }

  void sync() override {
    // The system's own sync would cost time and change nothing here.
    owner_.change(
        FileCall::sync, path(), {}, [&] { state_->synced = state_->written; }, [] {});
  }

  void close() override {
    owner_.change(
        FileCall::close, path(), {}, [&] { file_->close(); }, [] {});
  }

 private:
  FaultFileSystem& owner_;
  std::unique_ptr<sherd::WritableFile> file_;
  std::shared_ptr<FileState> state_;
};

void FaultFileSystem::reset() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
  fault_.reset();
  matching_ = 0;
  struck_ = false;
  read_faults_.clear();
}

void FaultFileSystem::arm(FileFault fault) {
  reset();
  const std::lock_guard lock(mutex_);
  fault_ = std::move(fault);
}

bool FaultFileSystem::struck() const {
  const std::lock_guard lock(mutex_);
  return struck_;
}

std::vector<SeenCall> FaultFileSystem::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FaultFileSystem::flip_bit(std::string path, int64_t offset, int bit) {
  const std::lock_guard lock(mutex_);
  read_faults_.push_back({std::move(path), 0, offset, bit});
}

void FaultFileSystem::fail_reads(std::string path, int error) {
  const std::lock_guard lock(mutex_);
  read_faults_.push_back({std::move(path), error});
}

std::unique_ptr<sherd::ReadableFile> FaultFileSystem::open(const fs::path& path) {
  {
    const std::lock_guard lock(mutex_);
    check_alive("open", path);
  }
  return std::make_unique<Readable>(*this, base_.open(path));
}

std::vector<std::string> FaultFileSystem::list(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  check_alive("list", path);
  return base_.list(path);
}

sherd::FileSystem::Kind FaultFileSystem::kind(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  check_alive("examine", path);
  return base_.kind(path);
}

std::unique_ptr<sherd::WritableFile> FaultFileSystem::create_new(const fs::path& path) {
  std::unique_ptr<sherd::WritableFile> made;
  change(
      FileCall::create_new, path, {},
      [&] {
        std::unique_ptr<sherd::WritableFile> file = base_.create_new(path);
        if (!file) return;
        written_.push_back(std::make_shared<FileState>(FileState{path}));
        changes_.push_back({FileCall::create_new, path, {}});
        made = std::make_unique<Writable>(*this, std::move(file), written_.back());
      },
      [] {});
  return made;
}

bool FaultFileSystem::create_folder(const fs::path& path) {
  bool is_new = false;
  change(
      FileCall::create_folder, path, {},
      [&] {
        is_new = base_.create_folder(path);
        if (is_new) changes_.push_back({FileCall::create_new, path, {}});
      },
      [] {});
  return is_new;
}

std::unique_ptr<sherd::FileLock> FaultFileSystem::lock(const fs::path& path) {
  std::unique_ptr<sherd::FileLock> held;
  change(
      FileCall::lock, path, {},
      [&] {
        const bool is_new = base_.kind(path) == Kind::none;
        held = base_.lock(path);
        if (is_new) changes_.push_back({FileCall::create_new, path, {}});
      },
      [] {});
  return held;
}

void FaultFileSystem::rename(const fs::path& from, const fs::path& to) {
  change(
      FileCall::rename, from, to,
      [&] {
        Change done{FileCall::rename, from, to};
        if (base_.kind(to) == Kind::file) done.replaced = sherd::read_whole(base_, to, INT64_MAX);
        base_.rename(from, to);
        if (done.replaced) {
          forget_below(to);
          // Earlier renames to this name count as durable now.
          std::erase_if(changes_, [&](const Change& c) { return c.other == to; });
        }
        follow_rename(changes_.size(), from, to);
        changes_.push_back(std::move(done));
      },
      [] {});
}

void FaultFileSystem::exchange(const fs::path& a, const fs::path& b) {
  change(
      FileCall::exchange, a, b,
      [&] {
        base_.exchange(a, b);
        follow_exchange(changes_.size(), a, b);
        changes_.push_back({FileCall::exchange, a, b});
      },
      [] {});
}

void FaultFileSystem::sync_folder(const fs::path& path) {
  change(
      FileCall::sync_folder, path, {},
      [&] {
        if (base_.kind(path) != Kind::folder) return base_.sync_folder(path);  // fails
        std::erase_if(changes_,
                      [&](const Change& c) { return parent_of(c.other.empty() ? c.path : c.other) == path; });
      },
      [] {});
}

void FaultFileSystem::remove_all(const fs::path& path) {
  change(
      FileCall::remove_all, path, {},
      [&] {
        base_.remove_all(path);
        forget_below(path);
      },
      [&] {
        std::vector<fs::path> below;
        if (fs::is_directory(path)) {
          for (const auto& entry : fs::recursive_directory_iterator(path)) {
            if (entry.is_regular_file()) below.push_back(entry.path());
          }
        }
        // From the end: a manifest without its files would do more harm than the other way round.
        std::sort(below.begin(), below.end(), std::greater<>());
        below.resize((below.size() + 1) / 2);
        for (const fs::path& file : below) {
          base_.remove_all(file);
          forget_below(file);
        }
      });
}

void FaultFileSystem::follow_rename(size_t changes, const fs::path& from, const fs::path& to) {
  for (const auto& file : written_) file->path = moved(file->path, from, to);
  for (size_t i = 0; i < changes; ++i) {
    changes_[i].path = moved(changes_[i].path, from, to);
    changes_[i].other = moved(changes_[i].other, from, to);
  }
}

void FaultFileSystem::follow_exchange(size_t changes, const fs::path& a, const fs::path& b) {
  const fs::path aside = a.string() + ".exchanged";
  follow_rename(changes, a, aside);
  follow_rename(changes, b, a);
  follow_rename(changes, aside, b);
}

void FaultFileSystem::forget_below(const fs::path& path) {
  std::erase_if(written_, [&](const auto& file) { return is_below(file->path, path); });
  std::erase_if(changes_,
                [&](const Change& c) { return c.call == FileCall::create_new && is_below(c.path, path); });
}

void FaultFileSystem::undo(const Change& change) {
  if (change.call == FileCall::create_new) return base_.remove_all(change.path);
  const bool exchanged = change.call == FileCall::exchange;
  const bool here = base_.kind(change.path) != Kind::none, there = base_.kind(change.other) != Kind::none;
  // A file that was removed since stays removed.
  if (exchanged && here && there) base_.exchange(change.path, change.other);
  if (exchanged && here && !there) base_.rename(change.path, change.other);
  if (!here && there) base_.rename(change.other, change.path);
  if (change.replaced) std::ofstream(change.other, std::ios::binary) << *change.replaced;
}

void FaultFileSystem::lose_unsynced(Loss loss, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  crashed_ = false;
  fault_.reset();
  if (loss == Loss::nothing) return;

  std::mt19937_64 random(seed);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (const auto& file : written_) {
    const int64_t at_risk = file->written - file->synced;
    if (at_risk == 0) continue;
    const int64_t kept = file->synced + (loss == Loss::all ? 0 : up_to(at_risk));
    fs::resize_file(file->path, static_cast<uintmax_t>(kept));
    if (loss == Loss::zeros) fs::resize_file(file->path, static_cast<uintmax_t>(file->written));
  }
  // Journals keep the order of changes, so what is lost is the last of them.
  const auto pending = static_cast<int64_t>(changes_.size());
  const int64_t kept = loss == Loss::all ? 0 : up_to(pending);
  while (static_cast<int64_t>(changes_.size()) > kept) {
    const Change last = std::move(changes_.back());
    changes_.pop_back();
    undo(last);
    if (last.call == FileCall::rename) follow_rename(changes_.size(), last.other, last.path);
    if (last.call == FileCall::exchange) follow_exchange(changes_.size(), last.path, last.other);
  }
  written_.clear();
  changes_.clear();
}
