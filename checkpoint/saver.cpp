#include <sherd/checkpoint/saver.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/copy_out.h>
#include <sherd/checkpoint/detail/lasting_thread.h>
#include <sherd/checkpoint/detail/shard_writer.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// "model", "optim": those that have files.
std::set<std::string> folders_of(const Manifest& manifest) {
  std::set<std::string> folders;
  for (const CheckpointFile& file : manifest.files) folders.insert(file.path.substr(0, file.path.find('/')));
  return folders;
}

// Returns the first few non-finite tensors of the model, and the number of the others.
std::string not_finite_in_words(const Manifest& manifest) {
  constexpr size_t kMost = 3;
  std::vector<std::string> named;
  size_t tensors = 0;
  for (const CheckpointTensor& t : manifest.tensors) {
    const NotFinite n = t.section == Section::model ? not_finite_of(t) : NotFinite{};
    if (n.count == 0) continue;
    if (++tensors <= kMost)
      named.push_back(fmt::format("{} ({} value{}, the first at element {})", t.name, n.count,
                                  n.count == 1 ? "" : "s", n.first));
  }
  return fmt::format("{}{}", fmt::join(named, ", "),
                     tensors > kMost ? fmt::format(" and {} more tensors", tensors - kMost) : "");
}

// Returns a digest of names, sections, dtypes and shapes.
uint64_t fingerprint_of(const Manifest& part) {
  std::string all;
  for (const CheckpointTensor& t : part.tensors)
    all += fmt::format("{} {} {} {}\n", t.name, name_of(t.section), name_of(t.dtype), to_string(t.shape));
  return checksum(all.data(), static_cast<int64_t>(all.size()));
}

}  // namespace

struct CheckpointSaver::Impl {
  Impl(Communicator& world, std::vector<LocalTensor> saved, SaverOptions asked);
  ~Impl();

  void open_folder();
  void exchange_plans(Communicator& world);
  std::vector<int64_t> write_files(const std::filesystem::path& folder);
  void set_report(const std::vector<int64_t>& words);
  void commit(const std::filesystem::path& temporary, const TrainingState& state, SaveReport& report);
  bool is_own(const CommittedCheckpoint& c) const {
    return c.sequence <= inherited || c.sequence > found;  // the lock keeps others from saving here
  }
  std::optional<EvaluatedCheckpoint> best() {
    return folder->lowest_loss(options.best_of, [this](const CommittedCheckpoint& c) { return is_own(c); });
  }
  void finish();

  SaverOptions options;
  FileSystem& files;
  Device& device;
  std::vector<LocalTensor> tensors;
  std::vector<PlannedFile> plan;
  Tensor staging;  // async: the data of all planned files, one after the other
  CopyOut copies;  // after what it copies from and to
  int64_t staging_bytes = 0, all_bytes = 0;
  bool reads_in_place = false;
  struct State {
    TrainingState training;
    std::exception_ptr failure;  // of LocalTensor::before_save, on this rank
  };
  State complete(TrainingState training) const;
  void write(const State& state, Clock::time_point start, double blocked);
  struct Snapshot {
    State state;
    Clock::time_point start;
    double blocked;
    Event copied;
  };
  std::optional<Snapshot> snapshot;  // not requested to be written yet
  Event copied;                      // of the snapshot that is being written

  // Rank 0: what all ranks write, and where.
  Manifest whole;
  std::vector<std::vector<CheckpointPiece*>> pieces;  // of `whole`, by file, in the order of the data
  std::optional<CheckpointFolder> folder;
  uint64_t inherited = 0;             // sequence number of the checkpoint that the run resumes
  uint64_t found = 0;                 // the largest sequence number in the folder at the start
  bool replaced = false;              // `overwrite`: what lay there is gone
  std::vector<int64_t> report_words;  // of each rank: block checksums, and two for each piece

  std::optional<Agreement> agreement, writing;  // of the rank's thread, of the one that writes
  bool in_flight = false;
  std::atomic<bool> done{false};
  std::exception_ptr failure;
  std::vector<SaveReport> reports;
  int exceptions_before = std::uncaught_exceptions();
  LastingThread background;  // last: it uses all of these
};

CheckpointSaver::Impl::Impl(Communicator& world, std::vector<LocalTensor> saved, SaverOptions asked)
    : options(std::move(asked)),
      files(options.files ? *options.files : FileSystem::posix()),
      device(world.device()),
      tensors(std::move(saved)),
      copies(device, tensors) {
  agreement.emplace(world, "CheckpointSaver");
  agreement->run_collectively([&] {
    if (world.rank() == 0) open_folder();
    plan = plan_files(world.rank(), tensors);
    if (!options.async) return;
    staging_bytes = copied_bytes(plan, tensors);
    staging = Tensor::host(device, {staging_bytes}, DType::u8, MemoryClass::scratch, "checkpoint copy");
  });
  exchange_plans(world);
  const int64_t own = report_words[static_cast<size_t>(world.rank())];
  writing.emplace(world, "CheckpointSaver", world.rank() == 0 ? sum(report_words) : own);
}

CheckpointSaver::Impl::~Impl() {
  if (std::uncaught_exceptions() > exceptions_before && agreement)
    agreement->abort("a rank failed while a checkpoint was written");
}

void CheckpointSaver::Impl::open_folder() {
  folder.emplace(options.folder, files);
  if (options.admit) options.admit();
  found = folder->next_sequence() - 1;
  std::error_code missing;
  const std::filesystem::path& from = options.continues;
  const auto bare = from.has_filename() ? from : from.parent_path();
  if (bare.empty() || !std::filesystem::equivalent(bare / "..", options.folder, missing)) return;
  for (const CommittedCheckpoint& c : list_checkpoints(options.folder, files))
    if (c.name == bare.filename()) inherited = c.sequence;
}

void CheckpointSaver::Impl::exchange_plans(Communicator& world) {
  const bool first = world.rank() == 0;
  std::string bytes;
  agreement->run_collectively([&] {
    Manifest part = part_of(plan, tensors);
    // Rank 0 needs to receive what all ranks hold alike from one rank only.
    if (agreement->all_equal(fingerprint_of(part)) && !first)
      std::erase_if(part.tensors, [](const CheckpointTensor& t) { return t.pieces.empty(); });
    bytes = encode_part(part);
  });
  const std::vector<std::string> parts = gather_bytes(world, bytes);
  // Every rank needs the counts: gather takes the counts of all ranks.
  std::string counts;
  agreement->run_collectively([&] {
    if (!first) return;
    PartMerger merger;
    for (const std::string& encoded : parts) {
      Manifest part = decode_part(encoded);
      int64_t words = 0;
      for (const CheckpointFile& file : part.files) {
        words += file.blocks();
        all_bytes += file.bytes;
      }
      for (const CheckpointTensor& t : part.tensors) words += 2 * static_cast<int64_t>(t.pieces.size());
      counts += fmt::format("{} ", words);
      merger.add(std::move(part));
    }
    whole = merger.take();
    try {
      whole.checksums = false;
      check_manifest(whole);
    } catch (const CorruptCheckpoint& e) {
      throw InvalidArgument(fmt::format("what the ranks save does not fit together: {}", e.what()));
    }
    whole.checksums = true;
    for (CheckpointFile& file : whole.files)
      file.block_checksums.assign(static_cast<size_t>(file.blocks()), 0);
    (void)encode_manifest(whole);  // too large ones are better refused now
    pieces.resize(whole.files.size());
    for (CheckpointTensor& t : whole.tensors)
      for (CheckpointPiece& p : t.pieces) pieces[static_cast<size_t>(p.file)].push_back(&p);
    for (auto& of_file : pieces)
      std::sort(of_file.begin(), of_file.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
  });
  counts = agreement->broadcast(counts);
  all_bytes = agreement->sum(all_bytes);
  reads_in_place = agreement->sum(options.async && staging_bytes < data_bytes(plan) ? 1 : 0) > 0;
  for (size_t at = 0; at < counts.size();) {
    size_t used = 0;
    report_words.push_back(std::stoll(counts.substr(at), &used));
    at += used + 1;
  }
}

// The files of this rank, synced. Returns, file after file, the checksums of its blocks and what is not
// finite in each of its pieces.
std::vector<int64_t> CheckpointSaver::Impl::write_files(const std::filesystem::path& temporary) {
  std::vector<int64_t> report;
  if (options.async) copied.synchronize();
  const auto* from = options.async ? static_cast<const std::byte*>(staging.raw()) : nullptr;
  for (const PlannedFile& file : plan) {
    ShardWriter writer(files, temporary, file);
    const auto take = [&](const void* data, int64_t bytes) { writer.write(data, bytes); };
    if (options.async) {
      copies.snapshot(file, from, take);
    } else {
      copies.blocks(file, take);
    }
    for (const uint64_t c : writer.finish()) report.push_back(static_cast<int64_t>(c));
    for (size_t i = 0; i < file.entries.size(); ++i) {
      const NotFinite& n = writer.not_finite()[i];
      report.insert(report.end(), {n.count, n.first});
    }
  }
  return report;
}

void CheckpointSaver::Impl::set_report(const std::vector<int64_t>& words) {
  auto from = words.begin();
  for (size_t f = 0; f < whole.files.size(); ++f) {
    CheckpointFile& file = whole.files[f];
    file.block_checksums.assign(from, from + file.blocks());
    from += file.blocks();
    for (CheckpointPiece* piece : pieces[f]) {
      piece->not_finite = {from[0], from[1]};
      from += 2;
    }
  }
}

void CheckpointSaver::Impl::commit(const std::filesystem::path& temporary, const TrainingState& state,
                                   SaveReport& report) {
  whole.training = state;
  try {
    folder->commit(temporary, state.step, whole);
  } catch (const LateFailure& e) {
    report.warning = e.what();
    folder->discard(temporary);
    if (!e.durable()) return;
  }
  const auto add_warning = [&](const std::string& what) {
    report.warning += (report.warning.empty() ? "" : "; ") + what;
  };
  try {
    const std::optional<EvaluatedCheckpoint> lowest = options.best_of.empty() ? std::nullopt : best();
    if (lowest && lowest->name != folder->best()) folder->write_best(lowest->name);
  } catch (const IoError& e) {
    add_warning(
        fmt::format("'{}' is saved, but 'best' may name an earlier one, and no checkpoint was removed: {}",
                    report.committed.string(), e.what()));
    return;
  }
  const bool replaces = options.overwrite && !replaced && report.not_finite == 0;
  if (options.keep == 0 && !replaces) return;
  try {
    if (replaces) {
      report.removed = folder->remove([&](const CommittedCheckpoint& c) { return c.sequence <= found; });
      replaced = true;
    }
    if (options.keep == 0) return;
    const auto own = [this](const CommittedCheckpoint& c) { return is_own(c); };
    const std::vector<std::string> pruned = folder->prune(options.keep, {own, own});
    report.removed.insert(report.removed.end(), pruned.begin(), pruned.end());
  } catch (const IoError& e) {
    add_warning(fmt::format("'{}' is saved, but older checkpoints could not be removed: {}",
                            report.committed.string(), e.what()));
  }
}

CheckpointSaver::Impl::State CheckpointSaver::Impl::complete(TrainingState training) const {
  State state{std::move(training), nullptr};
  try {
    for (const LocalTensor& t : tensors)
      if (t.before_save) t.before_save(state.training);
  } catch (...) {
    state.failure = std::current_exception();
  }
  return state;
}

// Everything after the snapshot, on all ranks together.
void CheckpointSaver::Impl::write(const State& complete, Clock::time_point start, double blocked) {
  const TrainingState& state = complete.training;
  const bool first = writing->rank() == 0;
  std::filesystem::path temporary;
  try {
    writing->require_equal(state.step,
                           "CheckpointSaver: ranks save different steps; every rank makes the same calls",
                           "CheckpointSaver::save");
    writing->run_collectively([&] {
      if (complete.failure) std::rethrow_exception(complete.failure);
      if (!first) return;
      temporary = folder->temporary(state.step);
      create_temporary(files, temporary);
      for (const std::string& below : folders_of(whole)) files.create_folder(temporary / below);
    });
    temporary = writing->broadcast(temporary.string());
    std::vector<int64_t> own;
    writing->run_collectively([&] { own = write_files(temporary); });
    const std::vector<int64_t> all = writing->gather(own, report_words);
    SaveReport report;
    report.committed = options.folder / checkpoint_name(state.step);
    writing->run_collectively([&] {
      if (!first) return;
      set_report(all);
      report.not_finite = model_not_finite(whole);
      if (options.refuse_not_finite && report.not_finite > 0)
        throw NotFiniteModel(fmt::format("weights are non-finite: {}; a checkpoint of them would be unusable",
                                         not_finite_in_words(whole)));
      commit(temporary, state, report);
    });
    report.step = state.step;
    report.bytes = all_bytes;
    report.blocked = blocked;
    report.seconds = seconds_since(start);
    reports.push_back(std::move(report));
  } catch (const CommError&) {
    throw;  // ranks may be gone: the next save sweeps
  } catch (...) {
    if (folder && !temporary.empty()) folder->discard(temporary);
    throw;
  }
}

// Waits for the save in flight, on this rank, and throws what it failed with.
void CheckpointSaver::Impl::finish() {
  background.wait();
  in_flight = false;
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

CheckpointSaver::CheckpointSaver(std::shared_ptr<Communicator> world, std::vector<LocalTensor> tensors,
                                 SaverOptions options)
    : impl_(std::make_unique<Impl>(*world, std::move(tensors), std::move(options))) {}

CheckpointSaver::~CheckpointSaver() = default;

void CheckpointSaver::save(const TrainingState& state) {
  Impl& s = *impl_;
  if (s.options.async) {
    s.device.compute().wait(snapshot(state));
    write();
    return;
  }
  const auto start = Clock::now();
  s.device.compute().synchronize();
  s.write(s.complete(state), start, 0);
  s.reports.back().blocked = s.reports.back().seconds;
}

Event CheckpointSaver::snapshot(const TrainingState& state) {
  Impl& s = *impl_;
  if (!s.options.async)
    throw InvalidArgument(
        "CheckpointSaver::snapshot: this saver has no memory for it; set SaverOptions::async");
  const auto start = Clock::now();
  wait();
  const Event copied = s.copies.all(s.plan, s.staging);
  s.snapshot = {s.complete(state), start, seconds_since(start), copied};
  return copied;
}

void CheckpointSaver::write() {
  Impl& s = *impl_;
  if (!s.snapshot)
    throw InvalidArgument("CheckpointSaver::write: the snapshot is missing; call snapshot() before");
  auto taken = std::move(*s.snapshot);
  s.snapshot.reset();
  s.copied = taken.copied;
  s.done = false;
  s.background.start([&s, taken = std::move(taken)] {
    try {
      s.write(taken.state, taken.start, taken.blocked);
    } catch (...) {
      s.failure = std::current_exception();
    }
    s.copies.forget();  // an update may wait for what a failed save has not read
    s.done = true;
  });
  s.in_flight = true;
}

bool CheckpointSaver::is_best(double loss) {
  Impl& s = *impl_;
  bool lowest = false;
  s.agreement->run_collectively([&] {
    if (!s.folder || !std::isfinite(loss)) return;
    const std::optional<EvaluatedCheckpoint> best = s.best();
    lowest = !best || loss < best->loss;
  });
  return s.agreement->sum(lowest ? 1 : 0) > 0;
}

bool CheckpointSaver::idle() {
  Impl& s = *impl_;
  if (!s.in_flight) return true;
  if (s.agreement->min(s.done ? 1 : 0) == 0) return false;
  s.finish();
  return true;
}

void CheckpointSaver::poll() {
  Impl& s = *impl_;
  // Every time, until idle(), wait() or save(), which all ranks call, take note of it: those end the failed
  // save on all ranks at the same call.
  if (s.in_flight && s.done && s.failure) std::rethrow_exception(s.failure);
}

void CheckpointSaver::wait() {
  if (impl_->in_flight) impl_->finish();
}

std::vector<SaveReport> CheckpointSaver::take_reports() {
  Impl& s = *impl_;
  if (s.in_flight && !s.done) return {};
  return std::exchange(s.reports, {});
}

bool CheckpointSaver::reads_in_place() const { return impl_->reads_in_place; }

int64_t CheckpointSaver::staging_bytes() const { return impl_->staging_bytes; }

CommCounts CheckpointSaver::counts() const { return impl_->writing->counts(); }

}  // namespace sherd
