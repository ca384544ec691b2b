#include <sherd/comm/local/collectives.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <sherd/comm/reduce.h>

namespace sherd::local {
namespace {

/// Elements; dst and src may be the same place (in-place collectives).
void copy(const Tensor& dst, int64_t to, const Tensor& src, int64_t from, int64_t count) {
  const int64_t e = size_of(dst.dtype());
  char* d = static_cast<char*>(dst.raw()) + to * e;
  const char* s = static_cast<const char*>(src.raw()) + from * e;
  if (count > 0 && d != s) std::memcpy(d, s, static_cast<size_t>(count * e));
}

int64_t offset_of(const std::vector<int64_t>& counts, size_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank), int64_t{0});
}

}  // namespace

void move_all_gather_v(const Inside& in) noexcept {
  const Call& my = in.mine();
  if (my.root >= 0 && my.root != in.rank) return;
  int64_t to = 0;
  for (size_t r = 0; r < in.size(); ++r) {
    copy(my.recv, to, in.call(r).send, 0, my.counts[r]);
    to += my.counts[r];
  }
}

void move_reduce_scatter(const Inside& in) noexcept {
  const Call& my = in.mine();
  const int64_t n = my.recv.numel();
  reduce_pairwise(my.reduce, my.dtype, my.recv.raw(), in.sends, in.rank * n, n);
}

void move_all_reduce(const Inside& in) noexcept {
  const Call& my = in.mine();
  const int64_t numel = my.recv.numel(), ranks = static_cast<int64_t>(in.size());
  const int64_t slice = (numel + ranks - 1) / ranks;
  const auto begin = [&](int64_t r) { return std::min(r * slice, numel); };
  const auto count = [&](int64_t r) { return begin(r + 1) - begin(r); };

  // Only this rank reads slice `rank` of any buffer, so its own may hold the result at once.
  const int64_t first = begin(in.rank);
  char* mine = static_cast<char*>(my.recv.raw()) + first * size_of(my.dtype);
  reduce_pairwise(my.reduce, my.dtype, mine, in.sends, first, count(in.rank));
  in.sync();
  for (int64_t step = 1; step < ranks; ++step) {
    const int64_t r = (in.rank + step) % ranks;
    copy(my.recv, begin(r), in.call(static_cast<size_t>(r)).recv, begin(r), count(r));
  }
}

void move_broadcast(const Inside& in) noexcept {
  const Call& my = in.mine();
  copy(my.recv, 0, in.call(static_cast<size_t>(my.root)).send, 0, my.recv.numel());
}

void move_all_to_all_v(const Inside& in) noexcept {
  const Call& my = in.mine();
  const size_t rank = static_cast<size_t>(in.rank);
  int64_t to = 0;
  for (size_t r = 0; r < in.size(); ++r) {
    const Call& peer = in.call(r);
    copy(my.recv, to, peer.send, offset_of(peer.send_counts, rank), my.recv_counts[r]);
    to += my.recv_counts[r];
  }
}

void move_scatter_v(const Inside& in) noexcept {
  const Call& my = in.mine();
  const size_t rank = static_cast<size_t>(in.rank);
  copy(my.recv, 0, in.call(static_cast<size_t>(my.root)).send, offset_of(my.counts, rank), my.counts[rank]);
}

void move_nothing(const Inside&) noexcept {}

}  // namespace sherd::local
