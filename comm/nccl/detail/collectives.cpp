#include <sherd/comm/nccl/detail/collectives.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/reduce/reduce.h>

namespace sherd::nccl {
namespace {

using comm::Call;
using comm::Verb;

// Slices that are received into scratch memory begin at multiples of this.
constexpr int64_t kAlignment = 128;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
    case DType::i8:  // moved, and never reduced
    case DType::f8_e4m3:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t type_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

size_t at(int rank) { return static_cast<size_t>(rank); }

/// A piece of memory that goes to or comes from a rank.
struct Piece {
  char* data = nullptr;
  int64_t count = 0;
};

/// The issuing of one call. Counts of elements throughout.
class Issue {
 public:
  Issue(const Lane& lane, const Call& call) : lane_(lane), call_(call), type_(type_of(call.dtype)) {}

  void all_gather() const {
    if (call_.send.numel() == 0) return;
    run([&](ncclComm_t comm) {
      return api().all_gather(send(), recv(), length(call_.send.numel()), type_, comm, stream());
    });
  }
  void reduce_scatter() const {
    const int64_t n = call_.recv.numel();
    if (n == 0) return;
    if (!in_fixed_order())
      return run([&](ncclComm_t comm) {
        return api().reduce_scatter(send(), recv(), length(n), type_, type_of(call_.reduce), comm, stream());
      });
    // NCCL moves the slices, and one kernel reduces them with Communicator's bits.
    std::vector<int64_t> begins;
    for (int r = 0; r <= lane_.size; ++r) begins.push_back(r * n);
    reduce_slices(begins, recv());
  }
  void all_reduce() const {
    const int64_t n = call_.elements;
    if (n == 0) return;
    if (!in_fixed_order())
      return run([&](ncclComm_t comm) {
        return api().all_reduce(send(), recv(), length(n), type_, type_of(call_.reduce), comm, stream());
      });
    // Same as the local backend's all_reduce: each rank reduces one slice, then the slices are gathered.
    const int64_t slice = (n + lane_.size - 1) / lane_.size;
    std::vector<int64_t> begins;
    for (int r = 0; r <= lane_.size; ++r) begins.push_back(std::min(r * slice, n));
    char* const mine = recv() + begins[at(lane_.rank)] * bytes();
    reduce_slices(begins, mine);
    // Equal slices: NCCL's all-gather. Otherwise the last slices are shorter, and messages carry them.
    if (n % lane_.size == 0)
      return run([&](ncclComm_t comm) {
        return api().all_gather(mine, recv(), length(slice), type_, comm, stream());
      });
    const Piece own{mine, begins[at(lane_.rank) + 1] - begins[at(lane_.rank)]};
    exchange(std::vector<Piece>(at(lane_.size), own), pieces(recv(), begins));
  }
  void broadcast(int root) const {
    if (call_.elements == 0) return;
    run([&](ncclComm_t comm) {
      return api().broadcast(send(), recv(), length(call_.elements), type_, root, comm, stream());
    });
  }
  void all_gather_v() const {
    const Piece own{send(), call_.send.numel()};
    exchange(std::vector<Piece>(at(lane_.size), own), packed(recv(), call_.counts));
  }
  void all_to_all_v() const {
    exchange(packed(send(), call_.send_counts), packed(recv(), call_.recv_counts));
  }
  void gather_v(int root) const {
    std::vector<Piece> sends(at(lane_.size)), recvs(at(lane_.size));
    // One message per rank to the root, which receives all of them in one NCCL group.
    sends[at(root)] = {send(), call_.send.numel()};
    if (lane_.rank == root) recvs = packed(recv(), call_.counts);
    exchange(sends, recvs);
  }
  void scatter_v(int root) const {
    std::vector<Piece> sends(at(lane_.size)), recvs(at(lane_.size));
    recvs[at(root)] = {recv(), call_.recv.numel()};
    if (lane_.rank == root) sends = packed(send(), call_.counts);
    exchange(sends, recvs);
  }
  void message(int peer) const {
    std::vector<Piece> sends(at(lane_.size)), recvs(at(lane_.size));
    if (call_.send.defined()) sends[at(peer)] = {send(), call_.elements};
    if (call_.recv.defined()) recvs[at(peer)] = {recv(), call_.elements};
    exchange(sends, recvs);
  }
  void barrier() const {
    bool fresh = false;
    void* const word = lane_.handle.word(fresh);
    if (fresh)
      lane_.session.device().kernels<ElementwiseKernels>().fill(lane_.context, {word, DType::i32}, 1, 0);
    // NCCL has no barrier. The maximum of zeros stays zero, so the word needs no reset.
    run([&](ncclComm_t comm) { return api().all_reduce(word, word, 1, ncclInt32, ncclMax, comm, stream()); });
  }
  void register_memory() const {
    // The whole before a slice of it, which is then registered with it.
    const auto bytes_of = [](const Tensor& t) { return t.defined() ? t.nbytes() : 0; };
    std::array both{&call_.send, &call_.recv};
    if (bytes_of(*both[0]) < bytes_of(*both[1])) std::swap(both[0], both[1]);
    for (const Tensor* t : both)
      if (t->defined()) lane_.handle.register_memory(t->raw(), t->nbytes(), lane_.where, lane_.deadline);
  }

 private:
  const NcclApi& api() const { return lane_.session.api(); }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(lane_.context.native); }
  char* send() const { return static_cast<char*>(call_.send.raw()); }
  char* recv() const { return static_cast<char*>(call_.recv.raw()); }
  int64_t bytes() const { return size_of(call_.dtype); }
  static size_t length(int64_t count) { return static_cast<size_t>(count); }
  void run(const Handle::Call& f) const { lane_.handle.run_counted(lane_.where, lane_.deadline, f); }

  /// NCCL rounds 16-bit sums at every step; Communicator promises one rounding.
  bool in_fixed_order() const {
    const bool half = call_.dtype == DType::bf16 || call_.dtype == DType::f16;
    const bool floating = half || call_.dtype == DType::f32 || call_.dtype == DType::f64;
    return lane_.size > 1 &&
           ((half && call_.reduce == ReduceOp::sum) || (floating && lane_.session.options().exact_order));
  }

  std::vector<Piece> pieces(char* base, const std::vector<int64_t>& begins) const {
    std::vector<Piece> p;
    for (int r = 0; r < lane_.size; ++r)
      p.push_back({base + begins[at(r)] * bytes(), begins[at(r) + 1] - begins[at(r)]});
    return p;
  }
  std::vector<Piece> packed(char* base, const std::vector<int64_t>& counts) const {
    std::vector<int64_t> begins{0};
    for (int64_t c : counts) begins.push_back(begins.back() + c);
    return pieces(base, begins);
  }

  /// sends[r] goes to rank r, recvs[r] comes from there; own pieces are copied.
  void exchange(const std::vector<Piece>& sends, const std::vector<Piece>& recvs) const {
    const Piece from = sends[at(lane_.rank)], to = recvs[at(lane_.rank)];
    // Own pieces never enter NCCL's group: a call without pieces of peers issues no NCCL operation.
    if (to.count > 0 && to.data != from.data)
      lane_.session.device().kernels<CopyKernels>().copy(lane_.context, to.data, from.data,
                                                         to.count * bytes());
    const auto work = [&](const std::vector<Piece>& p, int r) {
      return r != lane_.rank && p[at(r)].count > 0;
    };
    bool any = false, first = false;
    for (int r = 0; r < lane_.size; ++r) {
      if (!work(sends, r) && !work(recvs, r)) continue;
      any = true;
      first = lane_.handle.connects(r) || first;
    }
    if (!any) return;
    Session::Issuing quiet;
    if (first && lane_.context.queue) quiet = lane_.session.issue_in_quiet();
    run([&](ncclComm_t comm) {
      // One group: sends and receives of all pairs progress together, so no order of ranks can deadlock.
      ncclResult_t result = api().group_start();
      if (result != ncclSuccess) return result;
      const auto add = [&](ncclResult_t r) {
        if (result == ncclSuccess || result == ncclInProgress) result = r;
      };
      for (int r = 0; r < lane_.size; ++r) {
        if (work(sends, r))
          add(api().send(sends[at(r)].data, length(sends[at(r)].count), type_, r, comm, stream()));
        if (work(recvs, r))
          add(api().recv(recvs[at(r)].data, length(recvs[at(r)].count), type_, r, comm, stream()));
      }
      // Ends the group also after an error: a group left open would swallow later calls.
      const ncclResult_t end = api().group_end();
      return result == ncclSuccess || result == ncclInProgress ? end : result;
    });
  }

  /// dst = the reduction over ranks of elements [begins[rank], begins[rank + 1]) of send.
  void reduce_slices(const std::vector<int64_t>& begins, char* dst) const {
    const std::vector<Piece> sends = pieces(send(), begins);
    const Piece own = sends[at(lane_.rank)];
    // Scratch for the slices of all other ranks: about as much as this rank's input.
    const int64_t stride = (own.count * bytes() + kAlignment - 1) / kAlignment * kAlignment;
    char* next = own.count == 0 ? nullptr : lane_.handle.scratch(lane_.context, (lane_.size - 1) * stride);
    std::vector<Piece> recvs;
    std::vector<const void*> sources;
    for (int r = 0; r < lane_.size; ++r) {
      recvs.push_back(r == lane_.rank ? own : Piece{next, own.count});
      sources.push_back(recvs.back().data);
      if (r != lane_.rank && next) next += stride;
    }
    exchange(sends, recvs);
    if (own.count > 0)
      lane_.session.device().kernels<ReduceKernels>().reduce(
          lane_.context, {call_.reduce, call_.dtype, dst, std::move(sources), 0, own.count});
  }

  const Lane& lane_;
  const Call& call_;
  const ncclDataType_t type_;
};

}  // namespace

void issue(const Lane& lane, Verb verb, const Call& call, int peer) {
  const Issue issue(lane, call);
  // Before NCCL's call, which reads the registrations while it is issued.
  if (lane.session.options().register_buffers && call.sequence > 0) issue.register_memory();
  switch (verb) {
    case Verb::all_gather:
      return issue.all_gather();
    case Verb::all_gather_v:
      return issue.all_gather_v();
    case Verb::reduce_scatter:
      return issue.reduce_scatter();
    case Verb::all_reduce:
      return issue.all_reduce();
    case Verb::broadcast:
      return issue.broadcast(call.root);
    case Verb::all_to_all_v:
      return issue.all_to_all_v();
    case Verb::gather_v:
      return issue.gather_v(call.root);
    case Verb::scatter_v:
      return issue.scatter_v(call.root);
    case Verb::send:
    case Verb::recv:
      return issue.message(peer);
    case Verb::barrier:
      return issue.barrier();
  }
}

}  // namespace sherd::nccl
