// Collectives among the ranks of a group.
#pragma once

#include <algorithm>
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

/// Group of ranks that call collectives together.
///
/// Asynchronous: a call queues the collective on `stream` and returns. Every rank of the group calls the same
/// collectives in the same order with matching sizes and dtypes. A mismatch, a timeout or a failed peer fails
/// the streams of all ranks with one CommError that names rank, operation and sequence number. One
/// communicator runs one collective at a time and is driven from one stream at a time; use clones for
/// collectives that must overlap. Ranks with nothing to contribute still call, with empty tensors. Buffers
/// stay alive until the stream has run the collective; they and the stream belong to device().
///
/// In place (`send` and `recv` in one memory) is allowed only where a verb says so and exactly as it says.
/// Any other overlap throws InvalidArgument at the call, on that rank, naming the slice to use.
///
/// After leave(), once its queue is empty, a rank takes part in nothing: pending and new collectives of the
/// other ranks that need it fail with a CommError at once instead of after the timeout.
///
/// Sums (f32, bf16, f16, f64, i32, i64): bf16 and f16 are accumulated in fp32 and rounded once. The order is
/// one fixed pairwise tree over ranks: neighbours (0,1), (2,3), ... are added, then the sums of neighbours;
/// an odd one is carried up unchanged. Hence a sum over groups of a power-of-two size, followed by a sum over
/// the groups in rank order, has the same bits as the sum over all ranks at once. max and min give NaN when
/// any rank has one.
///
/// bytes in counts(): payload that this rank receives from others, in bytes. all_gather and reduce_scatter:
/// (n-1) * slice; all_reduce: 2 * (n-1)/n * size rounded up to elements; v-variants: the received bytes.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns this process's rank in the launcher's group (for messages).
  virtual int world_rank() const = 0;
  /// Returns the device this rank computes on (given by the launcher; outlives the communicator).
  virtual Device& device() const = 0;

  /// Gathers: recv (size()*n elements) = the n elements of `send` of every rank, in rank order. In place when
  /// send is recv.flat(rank*n, (rank+1)*n).
  virtual void all_gather(Stream& stream, const Tensor& recv, const Tensor& send) = 0;
  /// Gathers counts[r] elements from rank r; `counts` is equal on every rank. In place when send is this
  /// rank's piece of recv.
  virtual void all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                            const Tensor& send) = 0;
  /// Reduces and scatters: recv (n elements) = slice rank() of the reduction of `send` (size()*n elements).
  /// In place when recv is send.flat(rank*n, (rank+1)*n); the other slices of send keep their values.
  virtual void reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send,
                              ReduceOp op = ReduceOp::sum) = 0;
  virtual void all_reduce(Stream& stream, const Tensor& inout, ReduceOp op = ReduceOp::sum) = 0;
  virtual void broadcast(Stream& stream, const Tensor& inout, int root) = 0;
  /// Exchanges: send holds send_counts[r] elements for each rank r, packed in rank order; recv likewise.
  /// Never in place.
  virtual void all_to_all_v(Stream& stream, const Tensor& recv, std::span<const int64_t> recv_counts,
                            const Tensor& send, std::span<const int64_t> send_counts) = 0;
  /// Gathers counts[r] elements from every rank on root, packed; recv is ignored (may be undefined)
  /// elsewhere. In place when root's send is its piece of recv.
  virtual void gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                        const Tensor& send, int root) = 0;
  /// Scatters counts[r] elements from root to rank r; send is ignored elsewhere. In place when root's recv is
  /// its piece of send.
  virtual void scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                         const Tensor& send, int root) = 0;
  /// Send and receive point to point, matched in order per (sender, receiver). send completes when the
  /// receiver has the data.
  virtual void send(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void recv(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void barrier(Stream& stream) = 0;

  /// Sets the purpose of later calls, which is part of their identity. Calls with different purposes on
  /// different ranks fail as different collectives do, with both named (NCCL: with check_calls, else by
  /// digest()). The thread that makes the calls uses it. A new communicator has no purpose.
  void serve(Purpose purpose) { purpose_ = std::move(purpose); }
  const Purpose& serves() const { return purpose_; }
  /// Returns a running digest of verb, elements and purpose of the collectives with a purpose
  /// (Purpose::in_digest()). It covers this rank's calls on the communicators that counts() covers, in order,
  /// since reset_digest(). It is equal on ranks that make the same calls. all_to_all_v enters without its
  /// elements, which differ between ranks.
  virtual uint64_t digest() const = 0;
  virtual void reset_digest() = 0;

  /// Splits: ranks with equal color (>= 0) form a group ordered by (key, rank). Host-blocking; every rank
  /// calls. The new communicator shares counters with its parent: counts() covers both.
  virtual std::shared_ptr<Communicator> split(int color, int key) = 0;
  /// Splits into groups that every rank knows: returns that of `ranks`, in this order, of which this rank is one.
  /// Every rank calls with its own group, and the groups do not overlap. Host-blocking.
  virtual std::shared_ptr<Communicator> subgroup(std::span<const int> ranks) {
    const auto mine = std::ranges::find(ranks, rank());
    return split(*std::ranges::min_element(ranks), static_cast<int>(mine - ranks.begin()));
  }
  /// Returns a second communicator over the same ranks, for collectives that overlap. Host-blocking.
  std::shared_ptr<Communicator> clone() { return split(0, rank()); }

  /// Returns a second communicator over the same ranks for slow operations beside training, such as files.
  /// Its collectives wait `timeout` for a peer instead of the launch's timeout and are counted separately.
  /// They are small; NCCL has barriers, broadcasts, gathers and reductions of i64 there, by the job's store, and throws
  /// NotSupported for others. Their order among those of other communicators is free. Host-blocking.
  virtual std::shared_ptr<Communicator> side_channel(std::chrono::milliseconds timeout) = 0;

  /// Connects every pair of the group now, where a backend else does so at a pair's first exchange, with memory for it: for groups
  /// that use all_to_all_v, or reductions of 16 bits. Collective; host-blocking; at once
  /// after the first call.
  virtual void connect_pairs() {}

  /// Allocates memory of device() for long-lived buffers of this launch's collectives. Every rank of the
  /// launch calls with its own specifications, without waiting for the others.
  /// @throws OutOfMemory.
  virtual std::unique_ptr<BufferSet> make_buffers(std::span<const BufferSpec> specs) = 0;

  /// Fails every pending and later collective of every communicator of the same launch, on all ranks, with a
  /// CommError quoting `cause`. The first call wins. Never blocks, never throws.
  virtual void abort(const std::string& cause) noexcept = 0;

  /// Declares that this rank makes no further call on any communicator of the launch; its queued calls still
  /// run. launch() calls it when the body has ended. Never blocks, never throws.
  virtual void leave() noexcept = 0;

  /// Restores the launch after errors that every rank has caught (its own, or the CommError about another's).
  /// Collective over *all* ranks of the launch, whatever the group of this communicator; host-blocking. The
  /// first caller aborts the launch if it is not aborted yet, so a rank whose error no other rank has
  /// detected just calls. Every stream of device() is drained and works again. The numbering of all
  /// communicators and digest() restart; queued operations that did not run are lost. Events recorded before
  /// keep their failure. No other thread of the rank may use its communicators or streams meanwhile, so wait
  /// for a background checkpoint (CheckpointSaver) before.
  ///
  /// It restores communication, not data. Gradients, unsharded parameters and outputs of collectives are
  /// undefined, and a rank may fail in one step while another is still in the step before. A collective
  /// completes on all ranks or on none. So a barrier, synchronised with before an irreversible operation (the
  /// optimizer's step), makes all ranks redo the same step. `timeout` 0: as of this communicator's
  /// collectives.
  /// @return the errors that this rank's streams had failed with.
  /// @throws CommError on all callers, at once when a rank has ended, or after `timeout`; NotSupported on all
  /// for NCCL, or a device that failed itself. The launch then stays aborted.
  virtual std::vector<std::string> recover(
      std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) = 0;

  /// Returns sums over this rank's communicator and everything split from the same world.
  virtual CommCounts counts() const = 0;
  /// Returns the ranks' lateness at the collectives that this rank observes, since the launch.
  /// BackendKind::local observes those of all groups. BackendKind::mpi observes those of this rank's groups,
  /// each when the group's next one begins. Empty where calls are only handed to a device that does not
  /// report arrivals (GPUs).
  virtual ArrivalTotals arrivals() const { return {}; }

 private:
  Purpose purpose_;
};

/// Scope that sets the purpose of a communicator's calls.
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
