#include <sherd/comm/nccl/detail/nccl_communicator.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include <sherd/comm/backend/checked_communicator.h>
#include <sherd/comm/core/detail/timeouts.h>
#include <sherd/comm/nccl/detail/call_check.h>
#include <sherd/comm/nccl/detail/collectives.h>
#include <sherd/comm/nccl/detail/handle.h>
#include <sherd/comm/nccl/detail/session.h>
#include <sherd/comm/nccl/detail/side_channel.h>
#include <sherd/comm/nccl/detail/window_buffers.h>

namespace sherd::nccl {
namespace {

using comm::Call;
using comm::Verb;
using std::chrono::milliseconds;

/// Runs work where the device is current, and waits for it.
template <class F>
void on_device(Device& device, F work) {
  const auto stream = device.make_stream("nccl setup", StreamPriority::high);
  std::exception_ptr failure;  // the device's own way to tell may lose to Device::fail
  stream->submit("nccl setup", [&](ExecutionContext& context) {
    try {
      work(context);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    // The caller's references in `work` stay valid: this blocks until it has run or was dropped.
    stream->synchronize();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
  if (failure) std::rethrow_exception(failure);
}

/// State of a communicator's queued operations, which may outlive it.
struct Group {
  std::shared_ptr<Session> session;
  Handle& handle;
  std::string name;  // of its keys in the store, the same on all its ranks
  std::vector<int> world_ranks;
  int rank;
  milliseconds timeout;
  std::shared_ptr<SideChannel> side = {};  // that its calls go through, instead of NCCL

  int size() const { return static_cast<int>(world_ranks.size()); }
};

// Runs one call on the stream's thread: checks the launch and the peers' calls, issues NCCL's operation, and
// hands it to the watchdog, which aborts it at the deadline.
void run(const Group& group, Verb verb, const Call& call, int peer, const IssueOrder::Turn* turn,
         ExecutionContext& context) {
  std::string where = fmt::format("{} on rank {}", describe(call), group.session->world_rank());
  const bool message = verb == Verb::send || verb == Verb::recv;
  if (message)
    where += fmt::format(" {} rank {}", verb == Verb::send ? "to" : "from",
                         group.world_ranks[static_cast<size_t>(peer)]);
  Session& session = *group.session;
  // Throws the first failure of the launch, before anything is issued.
  session.check(where);
  const bool counted = call.sequence > 0;  // else it only connects ranks
  if (!counted)
    group.handle.begin_uncounted();
  else if (message)
    group.handle.begin_message(group.world_ranks[static_cast<size_t>(peer)], verb == Verb::send);
  else
    group.handle.begin(where);
  Deadline deadline(group.timeout);
  // The check exchanges the call through the store and waits for the peers. NCCL itself cannot detect
  // different calls: it would hang, or move wrong data.
  if (counted && session.options().check_calls) {
    if (message)
      check_message(session, group.name, group.world_ranks, group.rank, peer, verb == Verb::send, call, where,
                    deadline);
    else
      check_collective(session, group.name, group.world_ranks, group.rank, call, where, deadline);
  }
  if (group.side) return group.side->run(context, verb, call, where, deadline);
  // Without a native queue the operation ends within its turn, and would wait for a peer that has another order.
  if (context.queue) turn->await([&] { session.check(where); });
  deadline = Deadline(group.timeout);
  Session::Issuing issuing;
  if (context.queue) issuing = counted ? session.issue_alone() : session.issue_in_quiet();
  issue({session, group.handle, context, group.rank, group.size(), where, deadline}, verb, call, peer);
  // Without a native queue (tests) the operation is done when issue() returns.
  if (context.queue) {
    // The call owns the tensors: they stay allocated until the queue has run the operation.
    context.keep(std::make_shared<Call>(call));
    group.handle.under_way(where, deadline, context.queue->record());
  }
}

/// One queued call, as submitted to a stream.
struct Queued {
  std::shared_ptr<const Group> group;
  std::shared_ptr<const IssueOrder::Turn> turn;  // null on a side channel
  std::shared_ptr<void> token;                   // goes before the group does
  std::shared_ptr<comm::FlightRecorder> recorder;
  Verb verb;
  Call call;
  int peer;

  void operator()(ExecutionContext& context) const {
    recorder->run(
        call.flight, [&] { run(*group, verb, call, peer, turn.get(), context); },
        comm::FlightRecord::State::handed);
  }
};

class NcclCommunicator final : public comm::CheckedCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<const Group> group, std::shared_ptr<Device> device,
                   std::shared_ptr<comm::CommCounters> counters, std::string label)
      : comm::CheckedCommunicator(std::make_shared<comm::GroupLabel>(std::move(label), group->world_ranks),
                                  group->rank, std::move(device), std::move(counters)),
        group_(std::move(group)) {}

  void leave() noexcept override { group_->session->leave(); }

  /// NCCL connects a communicator's ranks at its first operation, with memory for it; this is the first.
  void warm_up() {
    if (connects_none()) return;
    const Tensor word = Tensor::empty(device(), {1}, DType::i32, MemoryClass::message, "nccl connections");
    set_up(Verb::all_reduce, {.op = "connect",
                              .dtype = DType::i32,
                              .elements = 1,
                              .reduce = ReduceOp::max,
                              .send = word,
                              .recv = word});
    if (group_->session->options().exact_order) connect_pairs();  // sums are exchanges
  }

  void connect_pairs() override {
    if (connects_none() || std::exchange(pairs_connected_, true)) return;
    const std::vector<int64_t> each(static_cast<size_t>(size()), 1);
    const auto bytes = [&] {
      return Tensor::empty(device(), {size()}, DType::u8, MemoryClass::message, "nccl connections");
    };
    set_up(Verb::all_to_all_v, {.op = "connect_pairs",
                                .sequence = -1,
                                .elements = size(),
                                .send_counts = each,
                                .recv_counts = each,
                                .send = bytes(),
                                .recv = bytes()});
  }

  std::vector<std::string> recover(milliseconds) override {
    throw NotSupported(fmt::format(
        "recover() on rank {}: NCCL's communicators are gone once a launch has failed, and so is what was "
        "under "
        "way on the GPU; end the job and resume from the last checkpoint (backend = local can recover)",
        world_rank()));
  }

  std::unique_ptr<BufferSet> make_buffers(std::span<const BufferSpec> specs) override {
    if (!group_->session->options().windows || group_->side)
      return comm::CheckedCommunicator::make_buffers(specs);
    // The function lets the buffers find the group of any communicator of the same session, to open windows
    // on it too.
    return make_window_buffers(
        group_->session->api(), device(), specs, *window_group(),
        [session = group_->session](Communicator& comm) {
          const auto* own = dynamic_cast<const NcclCommunicator*>(&comm);
          return own && own->group_->session == session && !own->group_->side ? own->window_group() : nullptr;
        });
  }

 private:
  std::shared_ptr<const WindowGroup> window_group() const {
    return std::make_shared<const WindowGroup>(WindowGroup{
        group_->session, group_->handle, group_->name, group_->world_ranks, group_->rank, group_->timeout,
        [device = &device()](const auto& work) { on_device(*device, [&](ExecutionContext&) { work(); }); }});
  }

  bool connects_none() const { return size() == 1 || group_->side != nullptr; }
  /// A call of the rank's thread, which waits for it. It is none of those that counts() has.
  void set_up(Verb verb, const Call& call) {
    on_device(device(), [&](ExecutionContext& context) {
      run(*group_, verb, call, -1, group_->session->order().take().get(), context);
      if (context.queue) context.queue->record()->synchronize();
    });
  }

  comm::AbortDomain& domain() override { return group_->session->domain(); }

  void queue(Stream& stream, Verb verb, Call call, int peer) override {
    if (group_->side && !SideChannel::has(verb, call))
      throw NotSupported(fmt::format(
          "{} of {} on rank {} beside training: NCCL's side channel has barriers, broadcasts, gathers and "
          "reductions of i64; use clone()",
          call.op, name_of(call.dtype), world_rank()));
    // Queued before it is submitted: announce_departure() never misses it.
    const auto queueing = group_->side ? std::unique_lock<std::mutex>() : group_->session->order().queueing();
    stream.submit({call.op, comm::work_kind_of(verb)},
                  Queued{group_, group_->side ? nullptr : group_->session->order().take(),
                         group_->handle.queued(), recorder(), verb, call, peer});
  }

  std::shared_ptr<Communicator> divide(int color, int key, milliseconds timeout,
                                       std::shared_ptr<comm::CommCounters> counters,
                                       std::string label) override {
    Session& session = *group_->session;
    // Wishes are exchanged through the store, not by NCCL: a rank that is missing is then named within the
    // timeout.
    const std::string where = fmt::format("split(color {}, key {}) on rank {}", color, key, world_rank());
    const Deadline deadline(group_->timeout);
    // All ranks split in the same order, so the count names the same split on each.
    const std::string prefix = fmt::format("{}/split/{}", group_->name, ++splits_);
    const auto wishes = session.collect(prefix, static_cast<size_t>(rank()), fmt::format("{} {}", color, key),
                                        group_->world_ranks, where, deadline);
    // All ranks have put this split's wishes, so all have read those of the split before.
    session.store().erase(fmt::format("{}/split/{}/{}", group_->name, splits_ - 1, rank()));

    std::vector<comm::SplitWish> parsed(wishes.size());
    for (size_t r = 0; r < wishes.size(); ++r)
      std::sscanf(wishes[r].c_str(), "%d %d", &parsed[r].color, &parsed[r].key);
    const std::vector<int> ranks = comm::split_group(parsed, color);
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(group_->world_ranks[static_cast<size_t>(r)]);
    const int new_rank = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());

    std::string name = fmt::format("{}.{}", prefix, color);
    Handle& handle = add_handle(session, name, world_ranks);
    Group group{group_->session, handle,   name,
                world_ranks,     new_rank, timeout.count() > 0 ? timeout : group_->timeout};
    if (timeout.count() > 0 || group_->side) {
      group.side = std::make_shared<SideChannel>(session, std::move(name), std::move(world_ranks), new_rank);
    } else {
      // All members have called split() by now, so their earlier operations complete.
      wait_until_idle(where, deadline);
      on_device(device(),
                [&](ExecutionContext&) { handle.init_split(group_->handle, color, key, where, deadline); });
    }
    const auto made =
        std::make_shared<NcclCommunicator>(std::make_shared<const Group>(std::move(group)), shared_device(),
                                           std::move(counters), std::move(label));
    made->warm_up();
    return made;
  }

  /// Waits until nothing is under way on the communicator, as ncclCommSplit() requires. The wait ends by a
  /// failure of the launch or at the deadline.
  void wait_until_idle(const std::string& where, const Deadline& deadline) {
    for (Backoff backoff; !group_->handle.idle(); backoff.sleep()) {
      group_->session->check(where);
      if (deadline.passed())
        group_->session->fail(
            where, fmt::format("{}: what was queued on the communicator before is not done after {} ms",
                               where, deadline.timeout.count()));
    }
  }

  const std::shared_ptr<const Group> group_;
  int splits_ = 0;
  bool pairs_connected_ = false;
};

// Rank 0 makes NCCL's id and publishes it in the store; the other ranks poll for it.
ncclUniqueId exchange_id(Session& session, int rank, const std::string& where, const Deadline& deadline) {
  const std::string key = session.options().name + "/id";
  ncclUniqueId id{};
  if (rank == 0) {
    const ncclResult_t result = session.api().get_unique_id(&id);
    if (result != ncclSuccess)
      session.fail(where,
                   fmt::format("{}: NCCL: {} ({})", where, session.api().get_error_string(result),
                               session.api().get_last_error(nullptr)),
                   0);
    // Raw bytes: the store's values need not be text.
    session.store().set(key, std::string(id.internal, sizeof id.internal));
    return id;
  }
  for (Backoff backoff;; backoff.sleep()) {
    // A failure of the launch ends the wait at once.
    session.check(where);
    if (const auto bytes = session.store().get(key); bytes && bytes->size() == sizeof id.internal) {
      std::memcpy(id.internal, bytes->data(), sizeof id.internal);
      return id;
    }
    if (deadline.passed())
      session.fail(where, fmt::format("{}: rank 0 made no id within {} ms", where, deadline.timeout.count()),
                   0);
  }
}

}  // namespace

// NCCL reads it after all ranks have met.
void set_environment(const NcclOptions& options) {
  constexpr const char* kName = "NCCL_NVLS_ENABLE";
  if (!options.nvls && std::getenv(kName) == nullptr) ::setenv(kName, "0", 0);
}

std::shared_ptr<Communicator> make_world(const NcclApi& api, std::shared_ptr<Device> device,
                                         std::shared_ptr<Store> store, int rank, int size,
                                         const NcclOptions& given) {
  NcclOptions options = given;
  options.timeout = comm::bounded(options.timeout);
  if (size < 1 || rank < 0 || rank >= size || options.timeout.count() <= 0 || options.poll.count() <= 0)
    throw InvalidArgument(fmt::format(
        "NCCL world: rank {} of {}, a timeout of {} ms, a poll of {} ms; use a rank below the size "
        "and at least 1 ms",
        rank, size, options.timeout.count(), options.poll.count()));
  const std::string where = fmt::format("making the world on rank {} of {}", rank, size);
  set_environment(options);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto recorder = std::make_shared<comm::FlightRecorder>(options.flight_recorder, rank, size);
  const auto session = std::make_shared<Session>(api, *device, std::move(store), recorder, options);
  const Deadline deadline(options.timeout);
  // All ranks are there before NCCL begins: ncclCommInit blocks without naming a missing rank.
  session->collect(options.name + "/here", static_cast<size_t>(rank), "", ranks, where, deadline);
  Handle& handle = add_handle(*session, options.name, ranks);
  on_device(*device, [&](ExecutionContext&) {
    handle.init(rank, size, exchange_id(*session, rank, where, deadline), where, deadline);
  });
  const auto group = std::make_shared<const Group>(
      Group{session, handle, options.name, std::move(ranks), rank, options.timeout});
  const auto world = std::make_shared<NcclCommunicator>(group, std::move(device),
                                                        std::make_shared<comm::CommCounters>(recorder),
                                                        comm::CheckedCommunicator::kWorld);
  world->warm_up();
  return world;
}

std::vector<std::shared_ptr<Communicator>> make_world(const NcclApi& api,
                                                      std::span<const std::shared_ptr<Device>> devices,
                                                      const NcclOptions& options) {
  if (devices.empty()) throw InvalidArgument("a world of no devices; use at least 1");
  set_environment(options);  // before there are threads that read it
  // Threads of one process share a store in memory; each thread makes one rank, since NCCL's initialisation
  // is collective.
  const std::shared_ptr<Store> store = make_memory_store();
  const int size = static_cast<int>(devices.size());
  std::vector<std::shared_ptr<Communicator>> world(devices.size());
  std::vector<std::exception_ptr> failures(devices.size());
  {
    // Joined at the end of the block, before failures are read.
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < devices.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          world[r] = make_world(api, devices[r], store, static_cast<int>(r), size, options);
        } catch (...) {
          failures[r] = std::current_exception();
        }
      });
  }
  // A failure of a rank itself says more than those that follow from another's.
  std::exception_ptr reported;
  for (const auto& failure : failures) {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const comm::PeerFailure&) {
      reported = failure;
    }
  }
  if (reported) std::rethrow_exception(reported);
  return world;
}

}  // namespace sherd::nccl
