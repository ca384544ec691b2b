#include <sherd/comm/local/detail/collectives.h>

#include <algorithm>
#include <numeric>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/reduce/reduce.h>

namespace sherd::local {
namespace {

/// Elements; dst and src may be the same place (in-place collectives).
void copy(const CollectiveContext& in, const Tensor& dst, int64_t to, const Tensor& src, int64_t from,
          int64_t count) {
  const int64_t e = size_of(dst.dtype());
  char* d = static_cast<char*>(dst.raw()) + to * e;
  const char* s = static_cast<const char*>(src.raw()) + from * e;
  if (count > 0 && d != s) in.device.kernels<CopyKernels>().copy(in.context, d, s, count * e);
}

int64_t offset_of(const std::vector<int64_t>& counts, size_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), int64_t{0});
}

// Reduces elements [begin, begin + count) of all ranks' inputs. One kernel reads all of them, so the bits do
// not depend on which rank reduces.
void reduce(const CollectiveContext& in, void* dst, int64_t begin, int64_t count) {
  const comm::Call& my = in.mine();
  in.device.kernels<ReduceKernels>().reduce(
      in.context, {my.reduce, my.dtype, dst, {in.sends.begin(), in.sends.end()}, begin, count});
}

/// Returns all ranks, this one's successor first and itself last, so that ranks do not read one buffer at the same time.
std::vector<size_t> from_successor(const CollectiveContext& in) {
  std::vector<size_t> order(in.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(in.rank) + 1, order.end());
  return order;
}

void all_gather_v(const CollectiveContext& in) {
  const comm::Call& my = in.mine();
  // gather_v: only the root receives.
  if (my.root >= 0 && my.root != in.rank) return;
  for (const size_t r : from_successor(in))
    copy(in, my.recv, offset_of(my.counts, r), in.call(r).send, 0, my.counts[r]);
}

// One phase: each rank reads the peers' inputs and writes its own output, which no peer reads.
void reduce_scatter(const CollectiveContext& in) {
  const comm::Call& my = in.mine();
  const int64_t n = my.recv.numel();
  reduce(in, my.recv.raw(), in.rank * n, n);
}

/// Elements [begin, begin + count) of an all_reduce, which rank r sums up.
struct Slice {
  int64_t begin, count;
};
Slice slice_of(const CollectiveContext& in, int64_t r) {
  const int64_t numel = in.mine().recv.numel(), ranks = static_cast<int64_t>(in.size());
  // The last slices may be shorter or empty.
  const int64_t each = (numel + ranks - 1) / ranks, begin = std::min(r * each, numel);
  return {begin, std::min(begin + each, numel) - begin};
}

void all_reduce_own(const CollectiveContext& in) {
  // Only this rank reads its slice of any buffer, so its own may hold the result at once.
  const comm::Call& my = in.mine();
  const Slice own = slice_of(in, in.rank);
  reduce(in, static_cast<char*>(my.recv.raw()) + own.begin * size_of(my.dtype), own.begin, own.count);
}

void all_reduce_gather(const CollectiveContext& in) {
  for (const size_t r : from_successor(in)) {
    if (static_cast<int64_t>(r) == in.rank) continue;
    const Slice theirs = slice_of(in, static_cast<int64_t>(r));
    copy(in, in.mine().recv, theirs.begin, in.call(r).recv, theirs.begin, theirs.count);
  }
}

void broadcast(const CollectiveContext& in) {
  const comm::Call& my = in.mine();
  copy(in, my.recv, 0, in.call(static_cast<size_t>(my.root)).send, 0, my.recv.numel());
}

void all_to_all_v(const CollectiveContext& in) {
  const comm::Call& my = in.mine();
  const size_t rank = static_cast<size_t>(in.rank);
  for (const size_t r : from_successor(in)) {
    const comm::Call& peer = in.call(r);
    // The peer's counts give the offset; disagreement() has checked that they match this rank's.
    copy(in, my.recv, offset_of(my.recv_counts, r), peer.send, offset_of(peer.send_counts, rank),
         my.recv_counts[r]);
  }
}

void scatter_v(const CollectiveContext& in) {
  const comm::Call& my = in.mine();
  const size_t rank = static_cast<size_t>(in.rank);
  copy(in, my.recv, 0, in.call(static_cast<size_t>(my.root)).send, offset_of(my.counts, rank),
       my.counts[rank]);
}

void nothing(const CollectiveContext&) {}

}  // namespace

const CollectiveAlgorithm move_all_gather_v{all_gather_v}, move_reduce_scatter{reduce_scatter},
    move_all_reduce{all_reduce_own, all_reduce_gather}, move_broadcast{broadcast},
    move_all_to_all_v{all_to_all_v}, move_scatter_v{scatter_v}, move_nothing{nothing};

}  // namespace sherd::local
