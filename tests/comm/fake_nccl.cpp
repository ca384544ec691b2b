#include "comm/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <sherd/kernels/dtype.h>
#include <sherd/kernels/error.h>
#include <sherd/kernels/kernel_table.h>
#include <sherd/kernels/queue_stream.h>

namespace sherd::test::fake_nccl {
namespace {

enum class Kind { init, split, all_gather, reduce_scatter, all_reduce, broadcast, send, recv };

struct Operation {
  Kind kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  // or root
  void* stream = nullptr;
  int color = 0, key = 0;
  ncclComm_t* child = nullptr;
  ncclComm_t made = nullptr;  // what goes there, from another thread and after the parent is ready
  bool done = false;
};
using Op = std::shared_ptr<Operation>;

/// The communicators of one group.
struct Clique {
  std::vector<ncclComm_t> members;
  std::map<int64_t, std::map<int, Op>> rounds;
  std::map<std::pair<int, int>, std::pair<std::deque<Op>, std::deque<Op>>> mail;  // sends, recvs
};

}  // namespace
}  // namespace sherd::test::fake_nccl

struct ncclComm {
  sherd::test::fake_nccl::Clique* clique = nullptr;
  int rank = 0, world_rank = 0;
  int64_t round = 0;
  int operations = 0, looks = 0;
  bool in_progress = false;  // what was last said of it, so that nothing but looks and ends are allowed
  bool finalized = false, dead = false;
  std::vector<sherd::test::fake_nccl::Op> pending;
  std::vector<std::jthread> deliveries;
  std::atomic<bool> busy{false};
};

namespace sherd::test::fake_nccl {
namespace {

struct World {
  std::mutex mutex;
  Faults faults;
  Log log;
  std::list<ncclComm> communicators;
  std::list<Clique> cliques;
  std::map<std::string, Clique*> by_id;
  int64_t ids = 0;
};
World& world() {
  static World w;
  return w;
}

thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Op>> group;

void violation(const std::string& text) { world().log.violations.push_back(text); }

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

template <class T>
void reduce_as(void* dst, const std::vector<const char*>& sources, size_t begin, size_t count,
               ncclRedOp_t op) {
  std::vector<T> out(count);
  for (size_t i = 0; i < count; ++i) {
    const auto value = [&](size_t s) {
      T v;
      std::memcpy(&v, sources[s] + (begin + i) * sizeof(T), sizeof(T));
      return v;
    };
    T sum = value(0);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T v = value(s);
      if constexpr (std::is_class_v<T>) {
        const float a = static_cast<float>(sum), b = static_cast<float>(v);
        sum = T(op == ncclSum ? a + b : op == ncclMax ? std::max(a, b) : std::min(a, b));
      } else {
        sum = static_cast<T>(op == ncclSum ? sum + v : op == ncclMax ? std::max(sum, v) : std::min(sum, v));
      }
    }
    out[i] = sum;
  }
  if (count > 0) std::memcpy(dst, out.data(), count * sizeof(T));
}

void reduce(ncclDataType_t type, void* dst, const std::vector<const char*>& sources, size_t begin,
            size_t count, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat32:
      return reduce_as<float>(dst, sources, begin, count, op);
    case ncclFloat64:
      return reduce_as<double>(dst, sources, begin, count, op);
    case ncclBfloat16:
      return reduce_as<bf16>(dst, sources, begin, count, op);
    case ncclFloat16:
      return reduce_as<f16>(dst, sources, begin, count, op);
    case ncclInt32:
      return reduce_as<int32_t>(dst, sources, begin, count, op);
    case ncclInt64:
      return reduce_as<int64_t>(dst, sources, begin, count, op);
    default:
      violation("reduction of a type that the tests do not use");
  }
}

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

bool match(const std::map<int, Op>& ops) {
  const Operation& first = *ops.begin()->second;
  return std::all_of(ops.begin(), ops.end(), [&](const auto& entry) {
    const Operation& o = *entry.second;
    return o.kind == first.kind && o.count == first.count && o.type == first.type && o.op == first.op &&
           o.peer == first.peer;
  });
}

ncclComm_t new_communicator(Clique& clique, int rank, int world_rank) {
  ncclComm& comm = world().communicators.emplace_back();
  comm.clique = &clique;
  comm.rank = rank;
  comm.world_rank = world_rank;
  comm.looks = world().faults.looks;
  ++world().log.made;
  return &comm;
}

void split(Clique& parent, const std::map<int, Op>& ops) {
  std::map<int, std::vector<std::pair<int, int>>> colors;  // -> key, rank
  for (const auto& [rank, op] : ops) {
    colors[op->color].emplace_back(op->key, rank);
    const auto& pending = parent.members[static_cast<size_t>(rank)]->pending;
    if (std::count_if(pending.begin(), pending.end(), [](const Op& o) { return !o->done; }) > 1)
      violation("split beside other work");
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    Clique& clique = world().cliques.emplace_back();
    for (const auto& [key, rank] : members) {
      const int number = static_cast<int>(clique.members.size());
      const int world_rank = parent.members[static_cast<size_t>(rank)]->world_rank;
      clique.members.push_back(new_communicator(clique, number, world_rank));
      ops.at(rank)->made = clique.members.back();
    }
  }
}

void execute(Clique& clique, const std::map<int, Op>& ops) {
  const Operation& first = *ops.begin()->second;
  const size_t bytes = first.count * bytes_of(first.type);
  std::vector<const char*> sends;
  for (const auto& [rank, op] : ops) sends.push_back(static_cast<const char*>(op->send));
  const auto move = [](void* to, const void* from, size_t n) {
    if (n > 0 && to != from) std::memmove(to, from, n);
  };
  if (first.kind == Kind::split) split(clique, ops);
  if (first.kind == Kind::all_gather)
    for (const auto& [rank, op] : ops)
      for (size_t r = 0; r < sends.size(); ++r)
        move(static_cast<char*>(op->recv) + r * bytes, sends[r], bytes);
  if (first.kind == Kind::broadcast)
    for (const auto& [rank, op] : ops) move(op->recv, sends[static_cast<size_t>(first.peer)], bytes);
  if (first.kind == Kind::reduce_scatter || first.kind == Kind::all_reduce) {
    const bool scatter = first.kind == Kind::reduce_scatter;
    // All results before any is written: buffers may be shared with their own inputs.
    std::vector<std::vector<char>> results;
    for (const auto& [rank, op] : ops) {
      results.emplace_back(bytes);
      reduce(first.type, results.back().data(), sends, scatter ? static_cast<size_t>(rank) * first.count : 0,
             first.count, first.op);
    }
    size_t i = 0;
    for (const auto& [rank, op] : ops) move(op->recv, results[i++].data(), bytes);
  }
  for (const auto& [rank, op] : ops) op->done = true;
}

/// Puts an operation where its peers see it, and does what can be done now.
void post(ncclComm_t comm, const Op& op) {
  Clique& clique = *comm->clique;
  comm->pending.push_back(op);
  comm->looks = world().faults.looks;
  if (++comm->operations > world().faults.error_after && comm->world_rank == world().faults.error_on) return;
  if (comm->world_rank == world().faults.silent && op->kind != Kind::init) return;
  if (op->kind == Kind::send || op->kind == Kind::recv) {
    const bool sends = op->kind == Kind::send;
    auto& [out, in] = clique.mail[sends ? std::pair(comm->rank, op->peer) : std::pair(op->peer, comm->rank)];
    (sends ? out : in).push_back(op);
    while (!out.empty() && !in.empty()) {
      if (out.front()->count != in.front()->count || out.front()->type != in.front()->type) return;  // hangs
      std::memmove(in.front()->recv, out.front()->send, in.front()->count * bytes_of(in.front()->type));
      in.front()->done = out.front()->done = true;
      in.pop_front();
      out.pop_front();
    }
    return;
  }
  const int64_t round = comm->round++;
  auto& ops = clique.rounds[round];
  ops[comm->rank] = op;
  if (ops.size() == clique.members.size() && match(ops)) {
    execute(clique, ops);
    clique.rounds.erase(round);
  }
}

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
  if (comm->world_rank == world().faults.error_on && comm->operations > world().faults.error_after)
    return world().faults.error;
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

ncclResult_t add(ncclComm_t comm, Operation operation) {
  const auto op = std::make_shared<Operation>(std::move(operation));
  if (group_depth > 0) {
    group.emplace_back(comm, op);
    return world().faults.looks > 0 ? ncclInProgress : ncclSuccess;
  }
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  post(comm, op);
  if (op->kind == Kind::split) {
    comm->in_progress = true;
    return ncclSuccess;  // said before the work is done; the communicator's state tells when
  }
  return state_of(comm);
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
  comm->operations = 0;
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
  comm->dead = true;
  deliver(comm);  // a split that is over, although nobody has looked
  comm->deliveries.clear();
  for (const Op& op : comm->pending) op->done = true;
  comm->pending.clear();
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
  Inside inside(comm);
  if (refuses(comm)) return ncclInvalidArgument;
  for (const auto& [c, op] : operations) {
    if (c != comm) violation("a group over two communicators");
    if (op->peer == comm->rank && (op->kind == Kind::send || op->kind == Kind::recv))
      violation("a message to itself");
    if (op->count == 0) violation("an empty message");
    post(comm, op);
  }
  return state_of(comm);
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

/// Done when what was issued on a stream before is done.
class FakeEvent final : public NativeEvent {
 public:
  explicit FakeEvent(std::vector<Op> before) : before_(std::move(before)) {}
  bool done() const override {
    std::lock_guard lock(world().mutex);
    return std::all_of(before_.begin(), before_.end(), [](const Op& op) { return op->done; });
  }
  void synchronize() const override {
    while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  const std::vector<Op> before_;
};

class FakeStamp final : public NativeStamp {
 public:
  bool done() const override { return true; }
  void synchronize() const override {}
  double microseconds() const override { return at_; }

 private:
  const double at_ = Trace::now();
};

class FakeQueue final : public NativeQueue {
 public:
  explicit FakeQueue(Allocator& allocator) : allocator_(allocator) {}
  ~FakeQueue() override { allocator_.release(scratch_, bytes_, "fake scratch"); }
  void start() override {}
  void finish() noexcept override {
    FakeEvent(outstanding()).synchronize();
    kept_.clear();
  }
  void* handle() const override { return const_cast<FakeQueue*>(this); }
  std::shared_ptr<NativeEvent> record() override {
    auto before = outstanding();
    if (before.empty()) kept_.clear();
    return std::make_shared<FakeEvent>(std::move(before));
  }
  std::shared_ptr<NativeStamp> stamp() override {
    FakeEvent(outstanding()).synchronize();
    return std::make_shared<FakeStamp>();
  }
  void wait(const NativeEvent& event) override { event.synchronize(); }
  void keep(std::shared_ptr<const void> object) override { kept_.push_back(std::move(object)); }
  void after(std::function<void()> f) override {
    FakeEvent(outstanding()).synchronize();
    f();
  }
  void* scratch(int64_t bytes) override {
    if (bytes > bytes_) {
      allocator_.release(scratch_, bytes_, "fake scratch");
      scratch_ = allocator_.allocate(bytes, "fake scratch", true);
      bytes_ = bytes;
    }
    return scratch_;
  }

 private:
  std::vector<Op> outstanding() {
    std::lock_guard lock(world().mutex);
    std::vector<Op> ops;
    for (const ncclComm& comm : world().communicators)
      for (const Op& op : comm.pending)
        if (op->stream == this && !op->done) ops.push_back(op);
    return ops;
  }

  Allocator& allocator_;
  std::vector<std::shared_ptr<const void>> kept_;
  void* scratch_ = nullptr;
  int64_t bytes_ = 0;
};

/// The host's memory, with a bound on the number of blocks.
class FewBlocks final : public MemorySource {
 public:
  explicit FewBlocks(int most) : left_(most) {}
  void* allocate(int64_t bytes) override {
    if (left_.fetch_sub(1) > 0) return std::aligned_alloc(128, static_cast<size_t>(bytes));
    ++left_;
    return nullptr;
  }
  void release(void* p) noexcept override {
    ++left_;
    std::free(p);
  }
  std::string owner() const override { return "the imitated GPU"; }

 private:
  std::atomic<int> left_;
};

class QueueDevice final : public Device {
 public:
  QueueDevice(const std::string& label, int blocks)
      : allocator_(label, 0, blocks > 0 ? std::make_unique<FewBlocks>(blocks) : nullptr),
        host_(make_cpu_device({.label = label, .kernels = "reference"})),
        kernels_(reference_kernels()),
        compute_(make_stream("compute")) {
    kernels_.reduce = [](ExecutionContext& context, const ReduceArgs& args) {
      std::memset(context.scratch(1 << 12), 0x55, 1 << 12);
      reference_kernels().reduce(context, args);
    };
  }
  Allocator& allocator() override { return allocator_; }
  const KernelTable& kernels() const override { return kernels_; }
  Stream& compute() override { return *compute_; }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority) override {
    return make_stream(std::move(name));
  }
  const std::string& label() const override { return host_->label(); }
  std::string describe() const override { return "an imitated GPU"; }

 private:
  std::unique_ptr<Stream> make_stream(std::string name) {
    return std::make_unique<QueueStream>(*this, std::move(name), 1, std::make_unique<FakeQueue>(allocator_));
  }
  Allocator allocator_;
  std::shared_ptr<Device> host_;
  KernelTable kernels_;
  std::unique_ptr<Stream> compute_;
};

}  // namespace

const nccl::NcclApi& api() {
  static const nccl::NcclApi table{get_unique_id,  comm_init_rank_config,
                                   comm_split,     comm_get_async_error,
                                   comm_abort,     comm_finalize,
                                   comm_destroy,   all_gather,
                                   reduce_scatter, all_reduce,
                                   broadcast,      send,
                                   recv,           group_start,
                                   group_end,      get_error_string,
                                   get_last_error, comm_register,
                                   comm_deregister};
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

Log log() {
  std::lock_guard lock(world().mutex);
  return world().log;
}

std::shared_ptr<Device> make_queue_device(const std::string& label, int blocks) {
  return std::make_shared<QueueDevice>(label, blocks);
}

}  // namespace sherd::test::fake_nccl
