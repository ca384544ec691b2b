#include <sherd/checkpoint/files/save_lock.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <sherd/checkpoint/files/detail/random_token.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = 4096;
constexpr size_t kMaxCommand = 400;

// Printable, in one line, and not endless.
std::string in_one_line(std::string text) {
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (text.size() > kMaxCommand) text = text.substr(0, kMaxCommand) + "...";
  return text;
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  return in_one_line({std::istreambuf_iterator<char>(file), {}});
}

std::string own_host() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

template <class Number>
void read_number(std::string_view text, Number& value) {
  Number parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error == std::errc() && end == text.data() + text.size()) value = parsed;
}

std::string in_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : in_one_line(value);
}

/// Variables by which a batch system names a job and counts its starts.
struct JobMark {
  const char* prefix;
  const char* cluster;  // null: names are unique
  const char* id;
  const char* start;
  uint64_t first;  // added to `start`; unless 0, the first start of a job may lack that variable
};
constexpr JobMark kJobs[] = {{"", nullptr, "SHERD_JOB", "SHERD_JOB_START", 0},
                             {"slurm:", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", 1}};

void read_job(LockHolder& self) {
  for (const JobMark& mark : kJobs) {
    const std::string id = in_environment(mark.id);
    if (id.empty()) continue;
    const std::string cluster = mark.cluster == nullptr ? "" : in_environment(mark.cluster);
    const std::string index = in_environment("JOB_COMPLETION_INDEX");
    self.job = fmt::format("{}{}{}{}{}{}", mark.prefix, cluster, cluster.empty() ? "" : ":", id,
                           index.empty() ? "" : "/", index);
    read_number(in_environment(mark.start), self.job_start);
    self.job_start += mark.first;
    return;
  }
}

}  // namespace

bool LockHolder::is_earlier_than(const LockHolder& other) const {
  return (!run.empty() && run == other.run && start < other.start) ||
         (!job.empty() && job == other.job && job_start < other.job_start);
}

bool LockHolder::is_like(const LockHolder& other) const {
  return (!run.empty() && run == other.run && start == 0 && other.start == 0) ||
         (!job.empty() && job == other.job && job_start == 0 && other.job_start == 0);
}

std::string LockHolder::describe() const {
  if (token.empty()) return "an unknown process";
  return fmt::format("attempt {} (process {} on {}, since {}, '{}')", attempt, process,
                     host.empty() ? "an unknown host" : host, since, command);
}

LockHolder LockHolder::of_this_process() {
  LockHolder self;
  self.host = own_host();
  self.process = ::getpid();
  self.command = own_command();
  self.run = in_environment("SHERD_RUN");
  read_number(in_environment("SHERD_RUN_START"), self.start);
  read_job(self);
  return self;
}

std::string encode_lock(const LockHolder& h) {
  std::string text = fmt::format("attempt {}\ntoken {}\nhost {}\nprocess {}\nsince {}\ncommand {}\n",
                                 h.attempt, h.token, h.host, h.process, h.since, h.command);
  if (!h.run.empty()) text += fmt::format("run {}\nstart {}\n", h.run, h.start);
  if (!h.job.empty()) text += fmt::format("job {}\njob_start {}\n", h.job, h.job_start);
  if (h.released) text += "released yes\n";
  return text;
}

LockHolder decode_lock(std::string_view text) {
  LockHolder h;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t space = line.find(' ');
    if (space == line.npos) continue;
    const std::string_view key = line.substr(0, space), value = line.substr(space + 1);
    if (key == "attempt") read_number(value, h.attempt);
    if (key == "token") h.token = value;
    if (key == "host") h.host = value;
    if (key == "process") read_number(value, h.process);
    if (key == "since") h.since = value;
    if (key == "command") h.command = value;
    if (key == "run") h.run = value;
    if (key == "start") read_number(value, h.start);
    if (key == "job") h.job = value;
    if (key == "job_start") read_number(value, h.job_start);
    if (key == "released") h.released = value == "yes";
  }
  return h;
}

SaveLock::SaveLock(fs::path folder, FileSystem& files, LockHolder self, std::function<fs::path()> temporary,
                   std::string_view name)
    : folder_(std::move(folder)),
      path_(folder_ / name),
      files_(files),
      self_(std::move(self)),
      temporary_(std::move(temporary)) {
  LockHolder before;
  // Null when the lock is taken over: the old file's lock then stays with the old holder and is unused.
  const std::unique_ptr<FileLock> old = acquire(before);
  self_.attempt = before.attempt + 1;
  self_.token = random_token();
  self_.released = false;
  self_.since = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  replace(before.token);
  require("two processes took it at the same moment; start this one again");
}

SaveLock::~SaveLock() {
  try {
    if (files_.sees_all_locks(folder_) || read().token != self_.token) return;
    self_.released = true;
    replace(self_.token);
  } catch (const std::exception&) {
    // The file then says that this process holds it, as after a crash, or another one has it.
  }
}

LockHolder SaveLock::read() const {
  if (files_.kind(path_) != FileSystem::Kind::file) return {};
  return decode_lock(read_whole(files_, path_, kMaxBytes));
}

// The lock on the file that is there; null when the folder may be taken over from its holder.
std::unique_ptr<FileLock> SaveLock::acquire(LockHolder& before) {
  // A new holder writes its name some milliseconds after it takes the lock, and a killed one holds it for
  // some.
  constexpr int kTries = 4;
  constexpr std::chrono::milliseconds kPause{50};
  for (int tried = 1;; ++tried) {
    std::unique_ptr<FileLock> lock = files_.lock(path_);
    before = read();
    if (before.is_earlier_than(self_)) return lock;
    const bool elsewhere =
        !before.released && !before.host.empty() && before.host != self_.host && !before.is_like(self_);
    if (lock && elsewhere && !files_.sees_all_locks(folder_))
      throw IoError(fmt::format(
          "cannot save checkpoints in '{}': '{}' is held by {}, and on this file system locks of "
          "another host may not "
          "be seen: this process cannot tell whether it still runs; when it does not, remove '{}', or save "
          "in another "
          "folder. A job that is requeued takes the folder by itself where its batch system names it "
          "(SLURM_JOB_ID) or SHERD_JOB and SHERD_JOB_START do",
          folder_.string(), path_.string(), before.describe(), path_.string()));
    if (lock) return lock;
    if (tried == kTries) break;
    std::this_thread::sleep_for(kPause);
  }
  throw IoError(fmt::format(
      "cannot save checkpoints in '{}': another run saves there and holds '{}': {}; stop that run, "
      "or save in another folder",
      folder_.string(), path_.string(), before.describe()));
}

// The new file is locked before the rename: other processes never find it under its final name unlocked.
//
// `before` is the token in the file that is to be replaced. It is read again once the new file exists: this
// process may have been suspended before, while a later start took the folder and swept it. A process that
// takes the folder after the new file was made removes that file in its sweep, and the rename then fails.
void SaveLock::replace(const std::string& before) {
  const fs::path made = temporary_();
  const std::string text = encode_lock(self_);
  {
    const std::unique_ptr<WritableFile> file = files_.create_new(made);
    if (!file) throw IoError(fmt::format("cannot create '{}': the name is taken", made.string()));
    file->write(text.data(), static_cast<int64_t>(text.size()));
    file->sync();
    file->close();
  }
  std::unique_ptr<FileLock> lock = files_.lock(made);
  if (!lock) throw IoError(fmt::format("cannot lock '{}': another process holds it", made.string()));
  if (const LockHolder now = read(); now.token != before) {
    files_.remove_all(made);
    throw LostFolder(
        fmt::format("cannot save checkpoints in '{}': while {} took '{}', {} took it over; save in another "
                    "folder, or start this run again once that one has ended",
                    folder_.string(), self_.describe(), path_.string(), now.describe()));
  }
  rename_durably(files_, made, path_);
  lock_ = std::move(lock);
}

void SaveLock::require(const std::string& what) const {
  const LockHolder now = read();
  if (now.token == self_.token) return;
  throw LostFolder(fmt::format(
      "'{}' is no longer this process's, {}: {}; {}", path_.string(), self_.describe(),
      now.token.empty() ? "it was removed or emptied" : now.describe() + " has taken the folder over", what));
}

}  // namespace sherd
