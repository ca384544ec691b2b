#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <numeric>
#include <set>

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/core/detail/timeouts.h>
#include <sherd/comm/mpi/detail/collectives.h>
#include <sherd/comm/mpi/detail/mpi_world.h>

namespace sherd {
namespace {

using comm::Call;
using comm::Verb;
using mpi::Member;
using mpi::Session;
using std::chrono::milliseconds;

class MpiCommunicator final : public comm::CheckedCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<Session> session, std::shared_ptr<Member> member,
                  std::shared_ptr<comm::CommCounters> counters, std::string name)
      : comm::CheckedCommunicator(std::make_shared<comm::GroupLabel>(std::move(name), member->world_ranks()),
                                  member->rank(), member->shared_device(), std::move(counters)),
        session_(std::move(session)),
        member_(std::move(member)) {}

  void leave() noexcept override {
    try {
      session_->leave(world_rank());
    } catch (const std::exception&) {  // no memory: the others wait for their timeout
    }
  }

  std::vector<std::string> recover(milliseconds) override {
    throw NotSupported(
        fmt::format("recover() on rank {}: backend = mpi cannot continue after a failure; end the job and "
                    "resume from the last "
                    "checkpoint (backend = local can recover)",
                    world_rank()));
  }

  ArrivalTotals arrivals() const override { return member_->arrivals().totals(); }

 private:
  void queue(Stream& stream, Verb verb, Call call, int peer) override {
    const Operation op{call.op, comm::work_kind_of(verb)};
    comm::QueuedCalls::submit(
        Session::queued(session_), world_rank(), stream, op,
        // The operation owns the member, which may outlive the communicator.
        [member = member_, flights = recorder(), verb, call = std::move(call), peer](ExecutionContext& c) {
          flights->run(call.flight, [&] { mpi::run(*member, verb, call, peer, c); });
        });
  }

  comm::AbortDomain& domain() override { return session_->domain(); }

  std::shared_ptr<Communicator> divide(int color, int key, milliseconds timeout,
                                       std::shared_ptr<comm::CommCounters> counters,
                                       std::string name) override {
    return std::make_shared<MpiCommunicator>(session_, member_->split(color, key, timeout, serves()),
                                             std::move(counters), std::move(name));
  }

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Member> member_;
};

void check(const MpiOptions& o, std::span<const std::shared_ptr<Device>> devices) {
  std::vector<std::string> wrong;
  if (o.timeout.count() <= 0) wrong.push_back(fmt::format("timeout = {} ms: at least 1", o.timeout.count()));
  if (o.poll.count() <= 0) wrong.push_back(fmt::format("mpi.poll = {} ms: at least 1", o.poll.count()));
  if (o.max_message < 1 || o.max_message > std::numeric_limits<int>::max())
    wrong.push_back(
        fmt::format("mpi.max_message = {}: 1 to {} bytes", o.max_message, std::numeric_limits<int>::max()));
  if (o.reduction_piece < 1)
    wrong.push_back(fmt::format("mpi.reduction_piece = {}: at least 1 byte", o.reduction_piece));
  if (!wrong.empty()) throw InvalidArgument(fmt::format("MPI world: {}", fmt::join(wrong, "; ")));
  for (const auto& device : devices)
    if (device->kind() != DeviceKind::cpu)
      throw NotSupported(
          fmt::format("{} is not a CPU: backend = mpi moves the host's memory; use backend = nccl or "
                      "backend = local for GPUs",
                      device->label()));
}

// MPI's own collectives match by process and communicator, so two ranks of one process cannot both take
// part.
void check_library_order(std::span<const int> process_of) {
  const std::set<int> processes(process_of.begin(), process_of.end());
  if (processes.size() < process_of.size())
    throw InvalidArgument(fmt::format(
        "mpi.library_order = true: {} ranks in {} processes; MPI's own collectives need a process for each "
        "rank: start as many, or leave the option",
        process_of.size(), processes.size()));
  if (!mpi_allows_all_threads())
    throw NotSupported(
        "mpi.library_order = true: this MPI lets one thread at a time call it; initialise it with "
        "MPI_THREAD_MULTIPLE, or leave the option");
}

/// Waits for all processes through the store, which alone names missing and failed ones, and compares the options that
/// must be equal before the first message of MPI is sent.
void gather(Store& store, const MpiPlace& place, const MpiOptions& options) {
  const std::string settings =
      fmt::format("{}, {} and {}", options.max_message, options.reduction_piece, options.library_order);
  const auto all = store.collect(
      options.name + "/here", place.rank, settings, place.size, comm::deadline_after(options.timeout),
      [&] {  // a process that failed before it came is named by its own cause, not by the timeout
        if (const auto notice = announced(store)) throw comm::PeerFailure(notice->cause, notice->rank);
      },
      [&](const std::vector<int>& missing) {
        throw CommError(fmt::format("making the world on process {} of {}: waited {} ms for processes {}",
                                    place.rank, place.size, options.timeout.count(),
                                    fmt::join(missing, ", ")));
      });
  for (size_t p = 0; p < all.size(); ++p)
    if (all[p] != settings)
      throw InvalidArgument(fmt::format(
          "mpi.max_message, mpi.reduction_piece and mpi.library_order are {} on process {} but {} on "
          "process {}; give all processes the same",
          settings, place.rank, all[p], p));
}

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_mpi_world(std::span<const std::shared_ptr<Device>> devices,
                                                          std::span<const int> process_of,
                                                          std::shared_ptr<Store> store,
                                                          const MpiOptions& given) {
  MpiOptions options = given;
  options.timeout = comm::bounded(options.timeout);
  check(options, devices);
  const MpiPlace place = mpi_place();
  // The ranks of this process, in ascending order, one for each device.
  std::vector<int> mine;
  for (size_t r = 0; r < process_of.size(); ++r)
    if (process_of[r] == place.rank) mine.push_back(static_cast<int>(r));
  if (mine.size() != devices.size())
    throw InvalidArgument(fmt::format("MPI world: process {} has {} devices for {} ranks; give one each",
                                      place.rank, devices.size(), mine.size()));
  if (options.library_order) check_library_order(process_of);
  // One recorder, member and set of counters for each rank; the session with its MPI thread is shared by all
  // ranks of the process.
  std::vector<std::shared_ptr<comm::FlightRecorder>> recorders;
  for (const int r : mine)
    recorders.push_back(std::make_shared<comm::FlightRecorder>(options.flight_recorder, r,
                                                               static_cast<int>(process_of.size())));
  std::vector<int> world_ranks(process_of.size());
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  std::shared_ptr<Session> session;
  try {
    gather(*store, place, options);
    session = std::make_shared<Session>(process_of, recorders, std::move(store), options);
  } catch (const CommError&) {
    mpi_ends_without_finalize();  // it would wait for those that did not come
    throw;
  }
  std::vector<std::shared_ptr<Communicator>> worlds;
  for (size_t i = 0; i < mine.size(); ++i)
    worlds.push_back(std::make_shared<MpiCommunicator>(
        session,
        std::make_shared<Member>(session, devices[i],
                                 std::make_shared<comm::ArrivalBoard>(static_cast<int>(process_of.size())),
                                 options.name, world_ranks, mine[i], options.timeout),
        std::make_shared<comm::CommCounters>(recorders[i]), comm::CheckedCommunicator::kWorld));
  return worlds;
}

bool has_mpi_backend() { return true; }

}  // namespace sherd
