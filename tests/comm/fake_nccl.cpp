#include "comm/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "comm/fake_nccl_world.h"

namespace sherd::test::fake_nccl {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Op>> group;

/// One call on one communicator at a time.
class Inside {
 public:
  explicit Inside(ncclComm_t comm) : comm_(comm), lock_(world().mutex, std::defer_lock) {
    if (!comm_) {
      lock_.lock();
      violation("call on a null communicator");
      return;
    }
    const bool busy = comm_->busy.exchange(true);
    std::this_thread::yield();
    lock_.lock();
    if (busy) violation("two calls at once on one communicator");
    if (comm_->dead) violation("call on a communicator that has ended");
  }
  ~Inside() {
    if (comm_) comm_->busy = false;
  }

 private:
  ncclComm_t comm_;
  std::unique_lock<std::mutex> lock_;
};

/// Fills in the children of splits that are done, from a thread of its own and a little later.
void deliver(ncclComm_t comm) {
  for (const Op& op : comm->pending) {
    if (!op->done || !op->made) continue;
    comm->deliveries.emplace_back([child = op->child, made = op->made] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::atomic_ref(*child).store(made, std::memory_order_release);
    });
  }
}

ncclResult_t look_at(ncclComm_t comm) {
  if (comm->world_rank == world().faults.error_on && comm->operations > world().faults.error_after) {
    ++world().log.errors;
    return world().faults.error;
  }
  if (comm->looks > 0) {
    --comm->looks;
    return ncclInProgress;
  }
  deliver(comm);
  std::erase_if(comm->pending, [](const Op& op) { return op->done; });
  const bool waits = std::any_of(comm->pending.begin(), comm->pending.end(), [](const Op& op) {
    return op->stream == nullptr || !world().faults.at_once;
  });
  return waits ? ncclInProgress : ncclSuccess;
}
ncclResult_t state_of(ncclComm_t comm) {
  const ncclResult_t state = look_at(comm);
  comm->in_progress = state == ncclInProgress;
  return state;
}

/// Before a call that asks for work: NCCL refuses it while the communicator is at another.
bool refuses(ncclComm_t comm) {
  if (!comm || !comm->in_progress) return false;
  violation("a call on a communicator that is in progress");
  return true;
}

/// Posts them together, when their stream reaches it.
ncclResult_t start(ncclComm_t comm, const std::vector<Op>& ops) {
  void* const stream = ops.front()->stream;
  StreamRunner runner = nullptr;
  {
    Inside inside(comm);
    if (refuses(comm)) return ncclInvalidArgument;
    comm->looks = world().faults.looks;
    if (const Kind kind = ops.front()->kind; kind != Kind::split && kind != Kind::window && !comm->used) {
      comm->used = true;
      ++world().log.used;
    }
    if (stream) runner = world().runner;
    if (!runner) {
      for (const Op& op : ops) post(comm, op);
      if (ops.front()->kind != Kind::split) return state_of(comm);
      comm->in_progress = true;
      return ncclSuccess;  // said before the work is done; the communicator's state tells when
    }
  }
  runner(stream, [comm, ops](std::function<void()> done) {
    std::lock_guard lock(world().mutex);
    const auto left = std::make_shared<size_t>(ops.size());
    for (const Op& op : ops)
      op->finished = [left, done] {
        if (--*left == 0) done();
      };
    for (const Op& op : ops) comm->dead ? finish(*op) : post(comm, op);
  });
  Inside inside(comm);
  return state_of(comm);
}

ncclResult_t add(ncclComm_t comm, Operation operation) {
  auto op = std::make_shared<Operation>(std::move(operation));
  if (group_depth == 0) return start(comm, {std::move(op)});
  group.emplace_back(comm, std::move(op));
  return world().faults.looks > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  std::lock_guard lock(world().mutex);
  if (world().faults.id_fails) return ncclSystemError;
  std::snprintf(id->internal, sizeof id->internal, "clique %lld", static_cast<long long>(++world().ids));
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
  std::lock_guard lock(world().mutex);
  if (config->blocking != 0) violation("a blocking communicator");
  Clique*& clique = world().by_id[id.internal];
  if (!clique) {
    clique = &world().cliques.emplace_back();
    clique->members.resize(static_cast<size_t>(size));
  }
  ncclComm_t comm = new_communicator(*clique, rank, rank);
  clique->members[static_cast<size_t>(rank)] = comm;
  *out = comm;
  if (rank == world().faults.init_fails_on) return ncclUnhandledCudaError;
  post(comm, std::make_shared<Operation>(Operation{.kind = Kind::init}));
  comm->operations = -1;
  comm->in_progress = true;
  return ncclInProgress;
}

ncclResult_t comm_split(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (config->blocking != 0) violation("a blocking communicator");
  return add(comm, {.kind = Kind::split, .color = color, .key = key, .child = child});
}

ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* state) {
  Inside inside(comm);
  *state = state_of(comm);
  return ncclSuccess;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  Inside inside(comm);
  ++world().log.aborted;
  if (comm->used) --world().log.used;
  comm->dead = true;
  deliver(comm);  // a split that is over, although no rank has polled
  comm->deliveries.clear();
  for (const Op& op : comm->pending) finish(*op);
  comm->pending.clear();
  drop_windows(comm);
  for (auto& [round, ops] : comm->clique->rounds) ops.erase(comm->rank);
  for (auto& [pair, queues] : comm->clique->mail)
    for (auto* queue : {&queues.first, &queues.second})
      std::erase_if(*queue, [](const Op& op) { return op->done; });
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  std::erase_if(comm->pending, [](const Op& op) { return op->done; });
  if (!comm->pending.empty()) violation("the end of a communicator at work");
  if (!comm->windows.empty()) violation("the end of a communicator with open windows");
  comm->finalized = true;
  comm->looks = world().faults.looks;
  comm->in_progress = true;
  ++world().log.finalized;
  return ncclInProgress;
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  Inside inside(comm);
  if (!comm->finalized) violation("a communicator was destroyed without its end");
  comm->dead = true;
  comm->deliveries.clear();
  ++world().log.destroyed;
  if (comm->used) --world().log.used;
  return ncclSuccess;
}

ncclResult_t all_gather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream) {
  return add(comm, {Kind::all_gather, send, recv, count, type, ncclSum, -1, stream});
}
ncclResult_t reduce_scatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::reduce_scatter, send, recv, count, type, op, -1, stream});
}
ncclResult_t all_reduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::all_reduce, send, recv, count, type, op, -1, stream});
}
ncclResult_t broadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {Kind::broadcast, send, recv, count, type, ncclSum, root, stream});
}
ncclResult_t send(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(comm, {Kind::send, data, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t recv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(comm, {Kind::recv, nullptr, data, count, type, ncclSum, peer, stream});
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (--group_depth > 0 || group.empty()) return ncclSuccess;
  const auto operations = std::exchange(group, {});
  ncclComm_t comm = operations.front().first;
  std::vector<Op> ops;
  {
    Inside inside(comm);
    for (const auto& [c, op] : operations) {
      if (c != comm) violation("a group over two communicators");
      if (op->stream != operations.front().second->stream) violation("a group over two streams");
      if (op->peer == comm->rank && (op->kind == Kind::send || op->kind == Kind::recv))
        violation("a message to itself");
      if (op->count == 0) violation("an empty message");
      ops.push_back(op);
    }
  }
  return start(comm, ops);
}

const char* get_error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "imitated remote error" : "imitated error";
}
const char* get_last_error(ncclComm_t) { return "as the test asked for"; }

ncclResult_t comm_register(ncclComm_t comm, void*, size_t, void** handle) {
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  *handle = comm;
  ++world().log.registered;
  return ncclSuccess;
}
ncclResult_t comm_deregister(ncclComm_t comm, void* handle) {
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  if (handle != comm) violation("a registration of another communicator");
  ++world().log.deregistered;
  return ncclSuccess;
}

ncclResult_t get_version(int* version) {
  std::lock_guard lock(world().mutex);
  *version = world().faults.version;
  return ncclSuccess;
}
ncclResult_t window_register(ncclComm_t comm, void* data, size_t bytes, nccl::Window* window, int flags) {
  if (flags != nccl::kSymmetricWindow) {
    std::lock_guard lock(world().mutex);
    violation("a window that is not symmetric");
  }
  return add(comm, {.kind = Kind::window, .send = data, .count = bytes, .window = window});
}
ncclResult_t window_deregister(ncclComm_t comm, nccl::Window window) {
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  if (std::any_of(comm->pending.begin(), comm->pending.end(), [](const Op& op) { return !op->done; }))
    violation("a window was closed beside work");
  if (comm->windows.erase(reinterpret_cast<const char*>(window)) != 1)
    violation("a window of another communicator");
  ++world().log.windows_closed;
  comm->looks = world().faults.looks;
  comm->in_progress = comm->looks > 0;
  return comm->in_progress ? ncclInProgress : ncclSuccess;
}

}  // namespace

const nccl::NcclApi& api() {
  static const nccl::NcclApi table{get_unique_id,
                                   comm_init_rank_config,
                                   comm_split,
                                   comm_get_async_error,
                                   comm_abort,
                                   comm_finalize,
                                   comm_destroy,
                                   all_gather,
                                   reduce_scatter,
                                   all_reduce,
                                   broadcast,
                                   send,
                                   recv,
                                   group_start,
                                   group_end,
                                   get_error_string,
                                   get_last_error,
                                   comm_register,
                                   comm_deregister,
                                   get_version,
                                   mem_alloc,
                                   mem_free,
                                   window_register,
                                   window_deregister};
  return table;
}

void reset(const Faults& faults) {
  std::lock_guard lock(world().mutex);
  world().faults = faults;
  world().log = {};
  world().communicators.clear();
  world().cliques.clear();
  world().by_id.clear();
}

void run_streams_by(StreamRunner runner) {
  std::lock_guard lock(world().mutex);
  world().runner = runner;
}

Log log() {
  std::lock_guard lock(world().mutex);
  Log log = world().log;
  log.shared = static_cast<int>(std::ranges::count_if(
      world().communicators, [](const ncclComm& c) { return c.clique->members.size() > 1; }));
  return log;
}

}  // namespace sherd::test::fake_nccl
