#include <sherd/comm/local/detail/local_communicator.h>

#include <fmt/format.h>

#include <numeric>

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/core/detail/timeouts.h>
#include <sherd/comm/local/detail/local_group.h>

namespace sherd {
namespace {

using comm::Call;
using comm::Verb;
using local::LocalGroup;
using std::chrono::milliseconds;

/// Returns how a verb moves its data. gather_v is an all_gather_v in which only the root has a recv.
const local::CollectiveAlgorithm& move_of(Verb verb) {
  switch (verb) {
    case Verb::all_gather:
    case Verb::all_gather_v:
    case Verb::gather_v:
      return local::move_all_gather_v;
    case Verb::reduce_scatter:
      return local::move_reduce_scatter;
    case Verb::all_reduce:
      return local::move_all_reduce;
    case Verb::broadcast:
      return local::move_broadcast;
    case Verb::all_to_all_v:
      return local::move_all_to_all_v;
    case Verb::scatter_v:
      return local::move_scatter_v;
    case Verb::send:
    case Verb::recv:
    case Verb::barrier:
      break;
  }
  return local::move_nothing;
}

class LocalCommunicator final : public comm::CheckedCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, std::shared_ptr<Device> device,
                    std::shared_ptr<comm::CommCounters> counters, std::string name)
      : comm::CheckedCommunicator(std::make_shared<comm::GroupLabel>(std::move(name), group->world_ranks()),
                                  rank, std::move(device), std::move(counters)),
        group_(std::move(group)) {}

  void leave() noexcept override { domain().leave(world_rank()); }

  std::vector<std::string> recover(milliseconds timeout) override {
    // The abort makes every pending wait of all ranks return. If a failure was declared before, it stays the
    // first.
    domain().abort(world_rank(),
                   fmt::format("rank {} called recover() after an error of its own", world_rank()));
    // Every wait for a peer ends now, so the streams complete or drop what is queued.
    StreamFailures failures = device().streams().reset();
    // Failures of destroyed streams are rethrown one at a time.
    for (bool more = true; more;) {  // of streams that have gone
      try {
        device().rethrow_unheard();
        more = false;
      } catch (const std::exception& e) {
        failures.texts.push_back(e.what());
      }
    }
    // A device that cannot work again ends the recovery of all ranks, with this text.
    const std::string& broken = failures.beyond_repair;
    group_->world().recovery.meet(world_rank(),
                                  broken.empty() ? "" : fmt::format("rank {}, {}", world_rank(), broken),
                                  timeout.count() > 0 ? comm::bounded(timeout) : group_->timeout());
    // Ranks had issued different numbers of calls when they failed; their digests start equal again.
    reset_digest();
    return failures.texts;
  }

  ArrivalTotals arrivals() const override { return group_->world().arrivals.totals(); }

 private:
  void queue(Stream& stream, Verb verb, Call call, int peer) override {
    const Operation op{call.op, comm::work_kind_of(verb)};
    // The operation owns the group: the communicator may be destroyed while calls are queued. The call's text
    // and tensors move along.
    comm::QueuedCalls::submit(LocalGroup::queued(group_), world_rank(), stream, op,
                              [group = group_, flights = recorder(), rank = rank(), verb,
                               call = std::move(call), peer, &device = device()](ExecutionContext& c) {
                                flights->run(call.flight, [&] {
                                  if (verb == Verb::send)
                                    group->send(rank, peer, call, c);
                                  else if (verb == Verb::recv)
                                    group->recv(rank, peer, call, c, device);
                                  else
                                    group->collective(rank, call, move_of(verb), c, device);
                                });
                              });
  }

  comm::AbortDomain& domain() override { return group_->world().watch.domain(); }

  std::shared_ptr<Communicator> divide(int color, int key, std::chrono::milliseconds timeout,
                                       std::shared_ptr<comm::CommCounters> counters,
                                       std::string name) override {
    auto [group, rank] = group_->split(this->rank(), {color, key, timeout, serves()});
    return std::make_shared<LocalCommunicator>(std::move(group), rank, shared_device(), std::move(counters),
                                               std::move(name));
  }

  const std::shared_ptr<LocalGroup> group_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_local_world(std::span<const std::shared_ptr<Device>> devices,
                                                            std::chrono::milliseconds timeout,
                                                            const FlightRecorderOptions& flights) {
  if (devices.empty()) throw InvalidArgument("a world of no devices; use at least 1");
  if (timeout.count() <= 0)
    throw InvalidArgument(fmt::format("a collective timeout of {} ms; use at least 1", timeout.count()));
  // Ranks read each other's memory directly: every pair of devices must allow it.
  for (const auto& a : devices)
    for (const auto& b : devices)
      if (!a->reaches(*b))
        throw NotSupported(
            fmt::format("{} cannot read the memory of {}, as the local backend needs; use NCCL for "
                        "GPUs without peer access, and one kind of device",
                        a->label(), b->label()));
  std::vector<int> ranks(devices.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<comm::FlightRecorder>> recorders;
  for (const int r : ranks)
    recorders.push_back(std::make_shared<comm::FlightRecorder>(flights, r, static_cast<int>(ranks.size())));
  const auto group = std::make_shared<LocalGroup>(std::make_shared<local::LocalWorld>(recorders), ranks,
                                                  comm::bounded(timeout));
  std::vector<std::shared_ptr<Communicator>> world;
  for (const int r : ranks)
    world.push_back(std::make_shared<LocalCommunicator>(
        group, r, devices[static_cast<size_t>(r)],
        std::make_shared<comm::CommCounters>(recorders[static_cast<size_t>(r)]),
        comm::CheckedCommunicator::kWorld));
  return world;
}

}  // namespace sherd
