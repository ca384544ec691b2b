#include <sherd/comm/mpi/detail/collectives.h>

#include <algorithm>
#include <array>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/reduce/reduce.h>

namespace sherd::mpi {
namespace {

using comm::Call;
using comm::Verb;

size_t at(int rank) { return static_cast<size_t>(rank); }

// Bytes. Smaller broadcasts go from the root to all ranks directly: a second exchange costs more latency than
// the root's link saves.
constexpr int64_t kDirectBroadcast = 64 << 10;

// Bytes, of each rank's piece in scratch memory.
constexpr int64_t kAlignment = 64;

// Memory that MPI may still use after the rank has aborted the call. Members are destroyed in reverse order:
// the device last.
struct Held {
  std::shared_ptr<Device> device;
  Call call;
  std::shared_ptr<char> slices = {};
};

/// One call at work.
class Work {
 public:
  Work(Member& member, Member::Meeting& meeting, const Call& call, ExecutionContext& context)
      : meeting_(meeting),
        call_(call),
        context_(context),
        member_(member),
        rank_(member.rank()),
        size_(member.size()),
        piece_(std::max<int64_t>(1, member.session().options().reduction_piece / bytes())),
        held_(std::make_shared<Held>(Held{member.shared_device(), call})) {}

  void all_gather_v() const { exchange(alike(own()), packed(recv(), call_.counts)); }
  void reduce_scatter() const {
    if (by_library(call_.recv.numel())) {
      // MPI wants the result elsewhere than in what it reads.
      const int64_t n = call_.recv.nbytes();
      char* const own_slice = send() + rank_ * n;
      const bool in_place = recv() == own_slice;
      if (in_place) held_->slices = member_.scratch(n);
      char* const result = in_place ? held_->slices.get() : recv();
      meeting_.finish(meeting_.start(
          Reduction{send(), result, static_cast<int>(call_.recv.numel()), call_.dtype, /*scatter=*/true},
          held_));
      if (in_place) member_.device().kernels<CopyKernels>().copy(context_, recv(), result, n);
      return;
    }
    std::vector<int64_t> begins;
    for (int r = 0; r <= size_; ++r) begins.push_back(r * call_.recv.numel());
    reduce_slices(begins, recv());
  }
  void all_reduce() const {
    const int64_t n = call_.elements, slice = (n + size_ - 1) / size_;
    if (by_library(n))
      return meeting_.finish(meeting_.start(
          Reduction{nullptr, recv(), static_cast<int>(n), call_.dtype, /*scatter=*/false}, held_));
    std::vector<int64_t> begins;
    for (int r = 0; r <= size_; ++r) begins.push_back(std::min(r * slice, n));
    reduce_slices(begins, recv() + begins[at(rank_)] * bytes());
    // Second exchange in the same meeting: its data follow the first one's on the same tags.
    const std::vector<Piece> slices = pieces(recv(), begins);
    exchange(alike(slices[at(rank_)]), slices);
  }
  // Sends each rank a slice; the ranks then exchange their slices. The root sends about 2 n bytes, for any
  // number of ranks.
  void broadcast() const {
    const int64_t n = call_.elements * bytes();
    const bool is_root = rank_ == call_.root;
    if (n < kDirectBroadcast || size_ == 2) {
      if (is_root) return exchange(alike({send(), n}), none());
      std::vector<Piece> recvs = none();
      recvs[at(call_.root)] = {recv(), n};
      return exchange(none(), recvs);
    }
    const int64_t slice = (n + size_ - 1) / size_;
    std::vector<Piece> slices;
    for (int r = 0; r < size_; ++r) {
      const int64_t begin = std::min(r * slice, n);
      slices.push_back({recv() + begin, std::min(begin + slice, n) - begin});
    }
    std::vector<Piece> recvs = none();
    if (!is_root) recvs[at(call_.root)] = slices[at(rank_)];
    exchange(is_root ? slices : none(), recvs);
    std::vector<Piece> sends = alike(slices[at(rank_)]);
    sends[at(call_.root)] = {};
    exchange(sends, is_root ? none() : slices);
  }
  void all_to_all_v() const {
    exchange(packed(send(), call_.send_counts), packed(recv(), call_.recv_counts));
  }
  void gather_v() const {
    std::vector<Piece> sends = none();
    sends[at(call_.root)] = own();
    exchange(sends, rank_ == call_.root ? packed(recv(), call_.counts) : none());
  }
  void scatter_v() const {
    std::vector<Piece> recvs = none();
    recvs[at(call_.root)] = {recv(), call_.recv.nbytes()};
    exchange(rank_ == call_.root ? packed(send(), call_.counts) : none(), recvs);
  }
  void message(int peer) const {
    std::vector<Piece> sends = none(), recvs = none();
    if (call_.send.defined()) sends[at(peer)] = own();
    if (call_.recv.defined()) recvs[at(peer)] = {recv(), call_.recv.nbytes()};
    exchange(sends, recvs);
  }

 private:
  char* send() const { return static_cast<char*>(call_.send.raw()); }
  char* recv() const { return static_cast<char*>(call_.recv.raw()); }
  int64_t bytes() const { return size_of(call_.dtype); }
  Piece own() const { return {send(), call_.send.nbytes()}; }
  /// A sum that MPI does, in its own order; the same answer on all ranks.
  bool by_library(int64_t elements) const {
    return member_.group() && call_.reduce == ReduceOp::sum && elements > 0 && has_sum(call_.dtype, elements);
  }
  std::vector<Piece> none() const { return std::vector<Piece>(at(size_)); }
  std::vector<Piece> alike(const Piece& piece) const { return std::vector<Piece>(at(size_), piece); }

  /// Elements [begins[r], begins[r + 1]) for each rank r.
  std::vector<Piece> pieces(char* base, const std::vector<int64_t>& begins) const {
    std::vector<Piece> p;
    for (int r = 0; r < size_; ++r)
      p.push_back({base + begins[at(r)] * bytes(), (begins[at(r) + 1] - begins[at(r)]) * bytes()});
    return p;
  }
  std::vector<Piece> packed(char* base, const std::vector<int64_t>& counts) const {
    std::vector<int64_t> begins{0};
    for (const int64_t c : counts) begins.push_back(begins.back() + c);
    return pieces(base, begins);
  }

  /// sends[r] goes to rank r, recvs[r] comes from there; this rank's own piece is copied.
  void exchange(const std::vector<Piece>& sends, const std::vector<Piece>& recvs) const {
    const std::shared_ptr<Batch> batch = meeting_.start(sends, recvs, held_);
    const Piece from = sends[at(rank_)], to = recvs[at(rank_)];
    // The own copy runs while MPI moves the rest.
    if (from.bytes > 0 && to.bytes > 0 && to.data != from.data)
      member_.device().kernels<CopyKernels>().copy(context_, to.data, from.data, to.bytes);
    meeting_.finish(batch);
  }

  /// dst = the reduction over ranks of elements [begins[rank], begins[rank + 1]) of send. Each rank gets its
  /// slice of all others and sums up in the tree of Communicator; the next piece arrives while one is summed
  /// up.
  void reduce_slices(const std::vector<int64_t>& begins, char* dst) const {
    const std::vector<Piece> slices = pieces(send(), begins);
    const Piece mine = slices[at(rank_)];
    int64_t longest = 0;
    for (const Piece& s : slices) longest = std::max(longest, s.bytes);
    // The same number of steps on all ranks: shorter slices send and receive empty parts.
    const int64_t length = piece_ * bytes(), steps = (longest + length - 1) / length;
    const auto part = [&](const Piece& whole, int64_t step) {
      const int64_t begin = std::min(step * length, whole.bytes);
      return Piece{whole.data + begin, std::min(length, whole.bytes - begin)};
    };

    // Two sets of buffers: one receives while the other is reduced. Scratch is 2 * (ranks - 1) pieces, for
    // any size of the call.
    std::array<std::vector<Piece>, 2> arriving{none(), none()};
    const int64_t stride = (std::min(length, mine.bytes) + kAlignment - 1) / kAlignment * kAlignment;
    held_->slices = member_.scratch(std::min<int64_t>(2, steps) * (size_ - 1) * stride);
    char* place = held_->slices.get();
    for (size_t i = 0; i < std::min<size_t>(2, static_cast<size_t>(steps)); ++i)
      for (int r = 0; r < size_; ++r)
        if (r != rank_) arriving[i][at(r)] = {std::exchange(place, place + stride), 0};
    const auto start = [&](int64_t step) {
      std::vector<Piece> sends, &recvs = arriving[static_cast<size_t>(step % 2)];
      for (int r = 0; r < size_; ++r) {
        sends.push_back(part(slices[at(r)], step));
        recvs[at(r)].bytes = r == rank_ ? 0 : part(mine, step).bytes;
      }
      return meeting_.start(sends, recvs, held_);
    };
    std::shared_ptr<Batch> next = steps > 0 ? start(0) : nullptr;
    for (int64_t step = 0; step < steps; ++step) {
      // The next step's buffers were read by the reduction of step - 1, which has run on this thread.
      const std::shared_ptr<Batch> now = step + 1 < steps ? std::exchange(next, start(step + 1)) : next;
      meeting_.finish(now);
      const Piece here = part(mine, step);
      if (here.bytes == 0) continue;
      std::vector<const void*> sources;
      for (int r = 0; r < size_; ++r)
        sources.push_back(r == rank_ ? here.data : arriving[static_cast<size_t>(step % 2)][at(r)].data);
      member_.device().kernels<ReduceKernels>().reduce(
          context_,
          {call_.reduce, call_.dtype, dst + step * length, std::move(sources), 0, here.bytes / bytes()});
    }
  }

  Member::Meeting& meeting_;
  const Call& call_;
  ExecutionContext& context_;
  Member& member_;
  const int rank_, size_;
  const int64_t piece_;  // elements
  const std::shared_ptr<Held> held_;
};

}  // namespace

void run(Member& member, Verb verb, const Call& call, int peer, ExecutionContext& context) {
  const bool message = verb == Verb::send || verb == Verb::recv;
  const auto meeting = message ? member.meet_peer(call, verb == Verb::send, peer) : member.meet(call);
  const Work work(member, *meeting, call, context);
  switch (verb) {
    case Verb::all_gather:
    case Verb::all_gather_v:
      return work.all_gather_v();
    case Verb::reduce_scatter:
      return work.reduce_scatter();
    case Verb::all_reduce:
      return work.all_reduce();
    case Verb::broadcast:
      return work.broadcast();
    case Verb::all_to_all_v:
      return work.all_to_all_v();
    case Verb::gather_v:
      return work.gather_v();
    case Verb::scatter_v:
      return work.scatter_v();
    case Verb::send:
    case Verb::recv:
      return work.message(peer);
    case Verb::barrier:
      return;
  }
}

}  // namespace sherd::mpi
