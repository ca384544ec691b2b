// Collectives among the ranks of a group.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/core/arrivals.h>
#include <sherd/comm/core/buffers.h>
#include <sherd/comm/core/purpose.h>
#include <sherd/kernels/device/reduce_op.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// Calls issued and bytes received from other ranks, per operation.
struct CommCount {
  int64_t calls = 0;
  int64_t bytes = 0;
};
/// Keys: all_gather, all_gather_v, reduce_scatter, all_reduce, broadcast, all_to_all_v, gather_v, scatter_v,
/// send, recv, barrier.
using CommCounts = std::map<std::string, CommCount>;

/// A group of ranks that call collectives together.
///
/// Asynchronous: a call queues the collective on `stream` and returns. Every rank of the group calls the same
/// collectives in the same order with matching sizes and dtypes; a mismatch, a timeout or a failed peer fails
/// the streams of all ranks with one CommError that names rank, operation and sequence number. One
/// communicator runs one collective at a time and is driven from one stream at a time; use clones for
/// collectives that must overlap. Ranks with nothing to contribute still call, with empty tensors. Buffers
/// stay alive until the stream has run the collective; they and the stream belong to device().
///
/// In place, that is with `send` and `recv` in one memory, only where a verb says so and exactly as it says:
/// any other overlap is an InvalidArgument at the call, on that rank, that names the slice that would do.
///
/// A rank whose body has returned (leave()) and that has nothing queued any more takes part in nothing: who
/// waits for it, or begins to, gets a CommError at once instead of after the timeout.
///
/// Sums (f32, bf16, f16, f64, i32, i64): bf16 and f16 are accumulated in fp32 and rounded once. The order is
/// one fixed pairwise tree over ranks: neighbours (0,1), (2,3), ... are added, then the sums of neighbours,
/// an odd one out is carried up unchanged. Hence a sum over groups of a power-of-two size, followed by a sum
/// over the groups in rank order, has the same bits as the sum over all ranks at once. max and min give
/// NaN when any rank has one.
///
/// bytes in counts(): payload this rank receives from others, in bytes: all_gather and reduce_scatter
/// (n-1) * slice; all_reduce 2 * (n-1)/n * size rounded up to elements; the v-variants what they receive.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Rank of this process in the group the launcher made (for messages).
  virtual int world_rank() const = 0;
  /// The device this rank computes on (given by the launcher; outlives the communicator).
  virtual Device& device() const = 0;

  /// recv (size()*n elements) = the n elements of `send` of every rank, in rank order.
  /// In place when send is recv.flat(rank*n, (rank+1)*n).
  virtual void all_gather(Stream& stream, const Tensor& recv, const Tensor& send) = 0;
  /// As all_gather with counts[r] elements from rank r; `counts` is equal on every rank. In place when send is
  /// this rank's piece of recv.
  virtual void all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                            const Tensor& send) = 0;
  /// recv (n elements) = slice rank() of the reduction of `send` (size()*n elements).
  /// In place when recv is send.flat(rank*n, (rank+1)*n); the other slices of send keep their values.
  virtual void reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send,
                              ReduceOp op = ReduceOp::sum) = 0;
  virtual void all_reduce(Stream& stream, const Tensor& inout, ReduceOp op = ReduceOp::sum) = 0;
  virtual void broadcast(Stream& stream, const Tensor& inout, int root) = 0;
  /// send holds send_counts[r] elements for each rank r, packed in rank order; recv likewise. Never in place.
  virtual void all_to_all_v(Stream& stream, const Tensor& recv, std::span<const int64_t> recv_counts,
                            const Tensor& send, std::span<const int64_t> send_counts) = 0;
  /// Root receives counts[r] elements from every rank, packed; recv is ignored (may be undefined) elsewhere.
  /// In place when root's send is its piece of recv.
  virtual void gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                        const Tensor& send, int root) = 0;
  /// Root sends counts[r] elements to rank r; send is ignored elsewhere. In place when root's recv is its piece
  /// of send.
  virtual void scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                         const Tensor& send, int root) = 0;
  /// Point to point; matched in order per (sender, receiver). send completes when the receiver has the data.
  virtual void send(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void recv(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void barrier(Stream& stream) = 0;

  /// What the calls from here on serve, until told otherwise: part of their identity. Ranks whose calls serve
  /// different things fail as if they had called different collectives, with both named (NCCL: with
  /// check_calls, else digest() tells). Used by the thread that makes the calls. A new communicator has none.
  void serve(Purpose purpose) { purpose_ = std::move(purpose); }
  const Purpose& serves() const { return purpose_; }
  /// A running digest of verb, elements and purpose of the collectives with a purpose (Purpose::in_digest()) that
  /// this rank has called on the communicators that counts() sees, in the order of the calls, since
  /// reset_digest(). Equal on ranks that do the same; all_to_all_v enters without its elements, which differ from
  /// rank to rank.
  virtual uint64_t digest() const = 0;
  virtual void reset_digest() = 0;

  /// Ranks with equal color (>= 0) form a group ordered by (key, rank). Host-blocking; every rank calls.
  /// Counters of the new communicator are shared with its parent: counts() sees them together.
  virtual std::shared_ptr<Communicator> split(int color, int key) = 0;
  /// A second communicator over the same ranks, for collectives that overlap. Host-blocking.
  std::shared_ptr<Communicator> clone() { return split(0, rank()); }

  /// A second communicator over the same ranks for slow work beside training, such as files: its collectives
  /// wait `timeout` for a peer, not what the launch says, and are counted by itself. Host-blocking.
  virtual std::shared_ptr<Communicator> side_channel(std::chrono::milliseconds timeout) = 0;

  /// Memory of device() for buffers that collectives of this launch will use for long. Every rank of the launch
  /// calls with its own specifications, but nobody waits here.
  /// @throws OutOfMemory.
  virtual std::unique_ptr<BufferSet> make_buffers(std::span<const BufferSpec> specs) = 0;

  /// Fails every pending and later collective of every communicator made from the same launch, on all ranks,
  /// with a CommError quoting `cause`. The first call wins. Never blocks, never throws.
  virtual void abort(const std::string& cause) noexcept = 0;

  /// This rank makes no further call on any communicator of the launch; what it has queued still runs.
  /// launch() says it when the body has ended. Never blocks, never throws.
  virtual void leave() noexcept = 0;

  /// After errors that every rank has caught (its own, or the CommError about another's), makes the launch
  /// work again. Collective over *all* ranks of the launch, whatever the group of this communicator;
  /// host-blocking. Whoever calls first aborts the launch if it is not aborted yet, so a rank whose error
  /// nobody else has seen just calls. Every stream of device() runs dry and works again; the numbering of all
  /// communicators and digest() begin anew; what was queued and did not run is lost. Events recorded before
  /// keep their failure. No other thread of the rank may use its communicators or streams meanwhile, so a
  /// checkpoint that is written behind training (CheckpointSaver) is waited for before.
  ///
  /// It mends communication, not data: gradients, unsharded parameters and anything that a collective was to
  /// write are undefined, and a rank may fail in one step while another is still in the step before. As a
  /// collective is done on all ranks or on none, a barrier that is synchronised with before what cannot be
  /// undone (the optimizer's step) makes all ranks redo the same step.
  /// `timeout` 0: as of this communicator's collectives. Returns what this rank's streams had failed with.
  /// @throws CommError on all that have called, at once when a rank has ended, or after `timeout`; NotSupported
  /// on all where it cannot be done: NCCL, or a device that failed itself. The launch then stays aborted.
  virtual std::vector<std::string> recover(
      std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) = 0;

  /// Sums over this rank's communicator and everything split from the same world.
  virtual CommCounts counts() const = 0;
  /// How late ranks came to the collectives that this rank can see, since the launch: with BackendKind::local those
  /// of all groups, with BackendKind::mpi those of the groups that this rank is in, each when the group's next one
  /// begins. Empty where calls are only handed to a device, which keeps the time to itself (GPUs).
  virtual ArrivalTotals arrivals() const { return {}; }

 private:
  Purpose purpose_;
};

/// What a communicator's calls serve, for the time of a scope.
class Serving {
 public:
  Serving(Communicator& comm, Purpose purpose) : comm_(comm), before_(comm.serves()) {
    comm_.serve(std::move(purpose));
  }
  ~Serving() { comm_.serve(std::move(before_)); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

 private:
  Communicator& comm_;
  Purpose before_;
};

}  // namespace sherd
