// Collectives among the ranks of a group.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include <sherd/kernels/kernel_table.h>
#include <sherd/kernels/tensor.h>

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
/// stay alive until the stream has run the collective.
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
  /// As all_gather with counts[r] elements from rank r; `counts` is equal on every rank.
  virtual void all_gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                            const Tensor& send) = 0;
  /// recv (n elements) = slice rank() of the reduction of `send` (size()*n elements).
  /// In place when recv is send.flat(rank*n, (rank+1)*n); the other slices of send keep their values.
  virtual void reduce_scatter(Stream& stream, const Tensor& recv, const Tensor& send,
                              ReduceOp op = ReduceOp::sum) = 0;
  virtual void all_reduce(Stream& stream, const Tensor& inout, ReduceOp op = ReduceOp::sum) = 0;
  virtual void broadcast(Stream& stream, const Tensor& inout, int root) = 0;
  /// send holds send_counts[r] elements for each rank r, packed in rank order; recv likewise.
  virtual void all_to_all_v(Stream& stream, const Tensor& recv, std::span<const int64_t> recv_counts,
                            const Tensor& send, std::span<const int64_t> send_counts) = 0;
  /// Root receives counts[r] elements from every rank, packed; recv is ignored (may be undefined) elsewhere.
  virtual void gather_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                        const Tensor& send, int root) = 0;
  /// Root sends counts[r] elements to rank r; send is ignored elsewhere.
  virtual void scatter_v(Stream& stream, const Tensor& recv, std::span<const int64_t> counts,
                         const Tensor& send, int root) = 0;
  /// Point to point; matched in order per (sender, receiver). send completes when the receiver has the data.
  virtual void send(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void recv(Stream& stream, const Tensor& data, int peer) = 0;
  virtual void barrier(Stream& stream) = 0;

  /// Ranks with equal color (>= 0) form a group ordered by (key, rank). Host-blocking; every rank calls.
  /// Counters of the new communicator are shared with its parent: counts() sees them together.
  virtual std::shared_ptr<Communicator> split(int color, int key) = 0;
  /// A second communicator over the same ranks, for collectives that overlap. Host-blocking.
  std::shared_ptr<Communicator> clone() { return split(0, rank()); }

  /// A second communicator over the same ranks for slow work beside training, such as files: its collectives
  /// wait `timeout` for a peer, not what the launch says, and are counted by itself. Host-blocking.
  virtual std::shared_ptr<Communicator> side_channel(std::chrono::milliseconds timeout) = 0;

  /// Fails every pending and later collective of every communicator made from the same launch, on all ranks,
  /// with a CommError quoting `cause`. The first call wins. Never blocks, never throws.
  virtual void abort(const std::string& cause) noexcept = 0;

  /// Sums over this rank's communicator and everything split from the same world.
  virtual CommCounts counts() const = 0;
};

}  // namespace sherd
