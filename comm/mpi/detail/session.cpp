#include <sherd/comm/mpi/detail/session.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <sherd/base/program.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::mpi {
namespace {

using std::chrono::milliseconds;

// Added to the timeout of calls: a call that times out first reports what it waits for.
constexpr std::chrono::seconds kLongerThanCalls{10};

// Minimum time that a completed process waits for the others. MPI's launcher takes an end without
// MPI_Finalize for a failure and kills the rest of the job. After a failure the wait is short: a failed
// process sends no shutdown.
constexpr std::chrono::seconds kShortestShutdown{10}, kShutdownAfterFailure{2};

}  // namespace

Session::Session(std::span<const int> process_of,
                 std::vector<std::shared_ptr<comm::FlightRecorder>> recorders, std::shared_ptr<Store> store,
                 const MpiOptions& options)
    : options_(options),
      process_of_(process_of.begin(), process_of.end()),
      store_(std::move(store)),
      watch_(std::move(recorders)),
      queued_(domain(), [this](int rank) { announce_departure(rank); }),
      shutdown_point_(domain().make_wait_point(options.poll)) {
  engine_ = std::make_unique<Engine>(
      options_, Engine::Handlers{.message = [this](const std::string& bytes) { read(bytes); },
                                 .failed = [this](const std::string& cause) { domain().abort(-1, cause); },
                                 .joining =
                                     [this] {
                                       if (const auto notice = announced(*store_, comm::kStoreAnswers))
                                         throw comm::PeerFailure(notice->cause, notice->rank);
                                     }});
  // After the engine, whose constructor returns only when every process has come.
  heartbeat_ = std::make_unique<comm::Heartbeat>(store_, options_.name + "/alive", engine_->process(),
                                                 engine_->processes(), options_.timeout + kLongerThanCalls);
  watchdog_ =
      std::make_unique<comm::Watchdog>(domain(), store_, rank_in(engine_->process()), options_.poll,
                                       comm::Watchdog::Duties{.check = [this] { check_successor(); }});
}

Session::~Session() {
  shut_down();
  watchdog_.reset();
}

int Session::rank_in(int process) const {
  const auto rank = std::ranges::find(process_of_, process);
  return rank == process_of_.end() ? -1 : static_cast<int>(rank - process_of_.begin());
}

// Announces this process's shutdown, waits for those of the others, then closes the engine. Never throws for
// missing processes: the destructor calls it.
void Session::shut_down() {
  // Data of aborted calls would stay unreceived, and its senders' MPI requests open.
  if (domain().aborted()) engine_->drain();
  write_to_all({.kind = ControlMessage::Kind::shutdown, .from = engine_->process()});
  using Clock = std::chrono::steady_clock;
  // Ranks may end at different times: one may write files for as long as a call's timeout.
  auto until = Clock::now() + std::max<milliseconds>(options_.timeout, kShortestShutdown);
  bool failed = false;
  const Engine::Attention attention(*engine_);
  bool together = false;
  {
    std::unique_lock lock(shutdown_point_->mutex);
    const auto all = [&] { return shutdowns_.size() == static_cast<size_t>(engine_->processes()); };
    for (;;) {
      if (!failed && domain().aborted()) {
        failed = true;
        until = std::min(until, Clock::now() + kShutdownAfterFailure);
      }
      if (failed) engine_->drain();
      // In steps of a poll: the domain's failure is checked in between.
      shutdown_point_->changed.wait_until(lock, std::min(until, Clock::now() + options_.poll), all);
      together = all();
      if (together || Clock::now() >= until) break;
    }
  }
  const bool ended =
      engine_->close(together, together ? milliseconds(kShutdownAfterFailure) : milliseconds(0));
  // MPI_Finalize waits for all processes: without them the job would hang at its end.
  if (!together || !ended) mpi_ends_without_finalize();
  if (!together && !failed) report_missing_shutdowns();
}

// All calls were done, so no call throws any more; still, a suspended or unreachable process has not
// completed.
void Session::report_missing_shutdowns() {
  std::vector<int> missing;
  {
    std::lock_guard lock(shutdown_point_->mutex);
    for (int p = 0; p < engine_->processes(); ++p)
      if (!shutdowns_.contains(p)) missing.push_back(p);
  }
  if (missing.empty()) return;  // it came in the last moment
  const std::string text = fmt::format(
      "process{} {} did not end within {} ms of process {}: stopped, cut off, or at work for longer (raise "
      "the timeout)",
      missing.size() > 1 ? "es" : "", fmt::join(missing, ", "),
      std::max<milliseconds>(options_.timeout, kShortestShutdown).count(), engine_->process());
  print_error("sherd", text);
  mpi_ends_badly();
  try {
    announce(*store_, {-1, text});
  } catch (const std::exception&) {  // the store is gone with its process
  }
}

int Session::take_tags(int count) {
  std::lock_guard lock(tags_mutex_);
  // MPI guarantees 32767 tags only, so they are reused.
  if (next_tag_ > engine_->tag_limit() - count) next_tag_ = Engine::kFirstTag;
  const int first = next_tag_;
  next_tag_ += count;
  return first;
}

void Session::enter(uint64_t group, int rank, Recipient& recipient) {
  std::lock_guard lock(recipients_mutex_);
  recipients_[{group, rank}] = &recipient;
  const auto early = early_.find({group, rank});
  if (early == early_.end()) return;
  // In order of arrival, and before any later message: read() waits for recipients_mutex_.
  for (ControlMessage& message : early->second) recipient.deliver(std::move(message));
  early_.erase(early);
}

void Session::forget(uint64_t group, int rank) {
  std::lock_guard lock(recipients_mutex_);
  recipients_.erase({group, rank});
}

// Handles one control message, on the engine's thread. Throws CommError for another version's, which fails
// the launch.
void Session::read(const std::string& bytes) {
  ControlMessage message = decode(bytes);
  switch (message.kind) {
    case ControlMessage::Kind::left:
      // Control messages of one process come in order: what is not here by now will not come.
      return watch_.left(message.from, std::move(message.last));
    case ControlMessage::Kind::shutdown: {
      std::lock_guard lock(shutdown_point_->mutex);
      shutdowns_.insert(message.from);
      shutdown_point_->changed.notify_all();
      return;
    }
    case ControlMessage::Kind::call:
    case ControlMessage::Kind::withdraw:
      break;
  }
  std::lock_guard lock(recipients_mutex_);
  const std::pair to{message.group, message.to};
  if (const auto found = recipients_.find(to); found != recipients_.end())
    found->second->deliver(std::move(message));
  else if (!domain().aborted())
    early_[to].push_back(std::move(message));  // of a group that is not divided yet here
}

void Session::write_to_all(const ControlMessage& message) {
  const std::string bytes = encode(message);
  // This process included: its own ranks receive departures and shutdowns the same way.
  for (int p = 0; p < engine_->processes(); ++p) engine_->write(p, bytes);
}

void Session::leave(int world_rank) {
  {
    std::lock_guard lock(leaving_mutex_);
    leaving_.insert(world_rank);
  }
  announce_departure(world_rank);
}

void Session::announce_departure(int world_rank) {
  {
    std::lock_guard lock(leaving_mutex_);
    // After a failure the others wait for its cause; the end of this rank as well adds nothing.
    if (!leaving_.contains(world_rank) || !queued_.none(world_rank) || domain().aborted()) return;
    // Once per rank: leave() and the end of the last queued call may both reach this point, on two threads.
    leaving_.erase(world_rank);
  }
  write_to_all({.kind = ControlMessage::Kind::left,
                .from = world_rank,
                .last = watch_.last_call(world_rank, "before it left")});
}

void Session::check_successor() {
  const auto silence = heartbeat_->check(std::chrono::steady_clock::now());
  if (!silence) return;
  const int process = heartbeat_->successor();
  {
    const std::lock_guard lock(shutdown_point_->mutex);
    // A process that has shut down sends no heartbeats, without being a failure.
    if (shutdowns_.contains(process)) return;
  }
  const int rank = rank_in(process);
  const std::string last = watch_.last_call(rank);
  domain().abort(
      rank, fmt::format("no heartbeat from rank {} (process {}) for {} ms: the process or its host is "
                        "suspended, or the network is cut; raise the timeout if such pauses are normal{}{}",
                        rank, process, silence->count(), last.empty() ? "" : "; it called last: ", last));
}

}  // namespace sherd::mpi
