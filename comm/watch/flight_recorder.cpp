#include <sherd/comm/watch/flight_recorder.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <sherd/kernels/random/random.h>

namespace sherd::comm {
namespace {

namespace fs = std::filesystem;
using State = FlightRecord::State;

// Returns a hash of the ranks' counts; 0 for equal counts, which the elements describe.
uint64_t hash_of(const std::vector<int64_t>& counts) {
  if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) return 0;
  uint64_t hash = 0;
  for (const int64_t c : counts) hash = hash64(hash ^ static_cast<uint64_t>(c), {});
  return hash;
}

FlightRecorderOptions checked(FlightRecorderOptions options) {
  if (options.operations < 0 || options.operations > FlightRecorderOptions::kMostOperations)
    throw InvalidArgument(fmt::format("flight_recorder.operations = {}: use 0 to {}", options.operations,
                                      FlightRecorderOptions::kMostOperations));
  if (options.folder.empty()) return options;
  if (options.operations == 0)
    throw InvalidArgument(fmt::format(
        "flight_recorder.folder = {} with flight_recorder.operations = 0: there would be nothing to "
        "write; keep at least 1 operation, or give no folder",
        options.folder));
  std::error_code error;
  fs::create_directories(options.folder, error);
  // An existing path that is not a folder gives no error from create_directories() on some libraries.
  if (!error && !fs::is_directory(options.folder, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    throw IoError(
        fmt::format("flight_recorder.folder = {}: cannot be made: {}; give a folder that every rank can "
                    "write to",
                    options.folder, error.message()));
  return options;
}

}  // namespace

FlightRecorder::FlightRecorder(FlightRecorderOptions options, int world_rank, int world_size)
    : options_(checked(std::move(options))),
      world_rank_(world_rank),
      world_size_(world_size),
      ring_(static_cast<size_t>(options_.operations)) {
  // The ring is allocated once; recording an operation never allocates.
  static_assert(sizeof(FlightRecord) <= 256, "FlightRecorderOptions says how much a record takes");
}

std::string FlightRecorder::file_name(int world_rank) {
  return fmt::format("flight_rank_{:05}.json", world_rank);
}

void FlightRecorder::add(const std::shared_ptr<const GroupLabel>& group) {
  std::lock_guard lock(mutex_);
  // Groups that have been destroyed are dropped here, since a program may split again and again.
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
}

int64_t FlightRecorder::issue(const std::shared_ptr<const GroupLabel>& group, const Call& call,
                              uint64_t epoch, int peer) {
  if (ring_.empty()) return 0;
  const int64_t now = now_ns<std::chrono::steady_clock>();
  // Hashed outside of the lock: counts have an entry for each rank.
  const uint64_t counts = hash_of(call.counts);
  std::lock_guard lock(mutex_);
  // Several threads may issue around a recovery: the highest epoch counts.
  epoch_ = std::max(epoch_, epoch);
  // The oldest record is overwritten. Its operation may still run: find() then returns null for it.
  FlightRecord& r = ring_[static_cast<size_t>(recorded_) % ring_.size()];
  r = {.number = ++recorded_,
       .group = group,
       .op = call.op,
       .sequence = call.sequence,
       .epoch = epoch,
       .purpose = call.purpose,
       .dtype = call.dtype,
       .reduce = call.reduce,
       .root = call.root,
       .peer = peer,
       .elements = call.elements,
       .counts = counts,
       .issued_ns = now};
  return r.number;
}

// Under mutex_.
FlightRecord* FlightRecorder::find(int64_t number) {
  if (number < 1 || ring_.empty()) return nullptr;
  // Numbers start at 1, so record n is at (n - 1) mod the ring's size.
  FlightRecord& r = ring_[static_cast<size_t>(number - 1) % ring_.size()];
  return r.number == number ? &r : nullptr;  // else it has made room for a later one
}

void FlightRecorder::start(int64_t number) {
  // Two clocks: steady for durations on this rank, system to compare ranks in `sherd trace`.
  const int64_t now = now_ns<std::chrono::steady_clock>(), wall = now_ns<std::chrono::system_clock>();
  std::lock_guard lock(mutex_);
  FlightRecord* const r = find(number);
  if (!r) return;
  r->state = State::running;
  r->started_ns = now;
  r->started_wall_ns = wall;
}

void FlightRecorder::end(int64_t number, State state) {
  // Read before the lock, so that waiting for it does not count as time of the operation.
  const int64_t now = now_ns<std::chrono::steady_clock>();
  std::lock_guard lock(mutex_);
  FlightRecord* const r = find(number);
  if (!r) return;
  r->state = state;
  r->finished_ns = now;
}

// Called while a failure is reported, on any thread; describes the operation that started last and counts
// the queued calls of this epoch.
std::string FlightRecorder::last(const char* before) const {
  std::unique_lock lock(mutex_);
  const FlightRecord* latest = nullptr;
  int64_t queued = 0;
  for (const FlightRecord& r : ring_) {
    // Calls that a failed stream dropped stay queued; those of earlier epochs are not counted.
    if (r.number > 0 && r.epoch == epoch_ && r.state == State::queued) ++queued;
    if (r.started_ns > 0 && (!latest || r.started_ns > latest->started_ns)) latest = &r;
  }
  if (recorded_ == 0) return "";
  const std::string behind = queued > 0 ? fmt::format(", with {} call{} of its queued behind other work",
                                                      queued, queued > 1 ? "s" : "")
                                        : "";
  if (!latest) return "none yet" + behind;
  const FlightRecord r = *latest;
  // The record is copied: formatting below runs without the lock, so that operations are not delayed.
  lock.unlock();
  const int64_t now = now_ns<std::chrono::steady_clock>();
  const std::string what = r.sequence > 0 && std::string_view(r.op) != "split"
                               ? describe(Call{.op = r.op,
                                               .sequence = r.sequence,
                                               .dtype = r.dtype,
                                               .elements = r.elements,
                                               .root = r.root,
                                               .purpose = r.purpose,
                                               .reduce = r.reduce})
                               : fmt::format("{} #{}", r.op, r.sequence);
  const auto ago = [&](int64_t then) { return std::max<int64_t>(0, now - then) / 1'000'000; };
  const std::string when = r.state == State::running
                               ? fmt::format("under way for {} ms", ago(r.started_ns))
                               : fmt::format("{} {} ms {}", name_of(r.state), ago(r.finished_ns), before);
  return fmt::format("{} of '{}', {}{}", what, r.group->name, when, behind);
}

void FlightRecorder::write(const std::string& cause) noexcept {
  if (options_.folder.empty()) return;
  try {
    std::lock_guard files(file_mutex_);
    uint64_t epoch;
    {
      std::lock_guard lock(mutex_);
      epoch = epoch_;
    }
    // One attempt for each epoch: the first failure writes the file, and failures that follow from it keep
    // it.
    if (attempted_ && attempted_epoch_ == epoch) return;
    attempted_ = true;
    attempted_epoch_ = epoch;
    try {
      write_file(content(cause));
      problem_.clear();
    } catch (const std::exception& e) {
      problem_ = e.what();
    }
  } catch (const std::exception&) {  // no memory for the reason, either
  }
}

// Written beside the file and renamed, so that a reader never sees half of it. The process id keeps several
// processes on one folder apart.
void FlightRecorder::write_file(const std::string& text) const {
  const fs::path path = fs::path(options_.folder) / file_name(world_rank_);
  const fs::path part = fs::path(options_.folder) / fmt::format(".{}.{}", file_name(world_rank_), ::getpid());
  std::error_code error;
  // iostreams report failures without a reason; errno holds the one of the last system call.
  errno = 0;
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    const int reason = errno;
    fs::remove(part, error);
    throw IoError(std::strerror(reason));
  }
  fs::rename(part, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(part, ignored);
  throw IoError(error.message());
}

// Writes the file unless a listener of the domain has done so, and returns the clause for the error's text.
// The error itself must reach the caller, so failures here become text.
std::string FlightRecorder::written(const std::string& cause) noexcept {
  if (options_.folder.empty()) return "";
  write(cause);
  try {
    std::lock_guard files(file_mutex_);
    const std::string path = (fs::path(options_.folder) / file_name(world_rank_)).string();
    if (!problem_.empty())
      return fmt::format("; what rank {} did last could not be written to {}: {}", world_rank_, path,
                         problem_);
    return fmt::format("; what rank {} did last is in {} (`sherd trace {}` compares the ranks)", world_rank_,
                       path, (fs::path(options_.folder) / "flight_rank_*.json").string());
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace sherd::comm
