// Collectives on random pieces of one memory, right ones and wrong ones, against sums made here.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "misuse/training.h"

namespace sherd::misuse {
namespace {

enum class Verb {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all_v,
  gather_v,
  scatter_v,
  all_gather_v
};
constexpr const char* kVerbs[] = {"all_gather",   "reduce_scatter", "all_reduce", "broadcast",
                                  "all_to_all_v", "gather_v",       "scatter_v",  "all_gather_v"};

enum class Twist {
  none,
  other_size,    // a rank passes an element less
  other_verb,    // a rank calls a barrier
  other_root,    // a rank names another root
  other_op,      // a rank reduces by max
  wrong_root,    // all name a root that does not exist
  wrong_counts,  // counts for a rank too few
  other_dtype,   // send and recv differ
  undefined,     // a tensor that is none
};
constexpr const char* kTwists[] = {"",         "an element less", "a barrier instead", "another root",
                                   "max",      "no such root",    "a count too few",   "other dtype in recv",
                                   "no tensor"};

struct Call {
  Verb verb;
  Twist twist;
  int ranks, odd_rank, root;
  int64_t n;                         // elements of a rank's share
  int64_t send_at, recv_at, memory;  // in one memory
  bool shifted;                      // ranks' own slices move with the rank, as calls in place ask for
};

float value(int rank, int64_t i) { return static_cast<float>(100 * (rank + 1) + i % 97); }

int64_t send_size(const Call& c) {
  const bool whole =
      c.verb == Verb::reduce_scatter || c.verb == Verb::all_to_all_v || c.verb == Verb::scatter_v;
  return whole ? c.n * c.ranks : c.n;
}
int64_t recv_size(const Call& c) {
  const bool whole = c.verb == Verb::all_gather || c.verb == Verb::all_gather_v ||
                     c.verb == Verb::all_to_all_v || c.verb == Verb::gather_v;
  return whole ? c.n * c.ranks : c.n;
}
int64_t send_begin(const Call& c, int rank) {
  return c.send_at + (c.shifted && send_size(c) < recv_size(c) ? rank * c.n : 0);
}
int64_t recv_begin(const Call& c, int rank) {
  return c.recv_at + (c.shifted && recv_size(c) < send_size(c) ? rank * c.n : 0);
}

/// Returns the expected content of `rank`'s memory.
std::vector<float> wanted(const Call& c, int rank) {
  std::vector<float> memory(static_cast<size_t>(c.memory));
  for (int64_t i = 0; i < c.memory; ++i) memory[static_cast<size_t>(i)] = value(rank, i);
  const auto sent = [&](int from, int64_t i) { return value(from, send_begin(c, from) + i); };
  const auto put = [&](int64_t i, float v) { memory[static_cast<size_t>(recv_begin(c, rank) + i)] = v; };
  for (int64_t i = 0; i < recv_size(c); ++i) {
    const int from = static_cast<int>(i / c.n);
    const int64_t at = i % c.n;
    float sum = 0;  // of whole numbers: exact in any order
    switch (c.verb) {
      case Verb::all_gather:
      case Verb::all_gather_v:
        put(i, sent(from, at));
        break;
      case Verb::gather_v:
        if (rank == c.root) put(i, sent(from, at));
        break;
      case Verb::all_to_all_v:
        put(i, sent(from, rank * c.n + at));
        break;
      case Verb::scatter_v:
        put(i, sent(c.root, rank * c.n + i));
        break;
      case Verb::broadcast:
        put(i, value(c.root, c.recv_at + i));
        break;
      case Verb::reduce_scatter:
        for (int r = 0; r < c.ranks; ++r) sum += sent(r, rank * c.n + i);
        put(i, sum);
        break;
      case Verb::all_reduce:
        for (int r = 0; r < c.ranks; ++r) sum += value(r, c.recv_at + i);
        put(i, sum);
        break;
    }
  }
  return memory;
}

void call(const Call& c, RankContext& rank, const Tensor& memory) {
  Communicator& comm = *rank.world;
  Stream& s = rank.device->compute();
  const int me = comm.rank();
  const bool odd = me == c.odd_rank;
  if (odd && c.twist == Twist::other_verb) return comm.barrier(s);
  const int64_t less = odd && c.twist == Twist::other_size ? 1 : 0;
  Tensor send = memory.flat(send_begin(c, me), send_begin(c, me) + send_size(c) - less);
  Tensor recv = memory.flat(recv_begin(c, me), recv_begin(c, me) + recv_size(c) - less);
  if (c.twist == Twist::other_dtype) recv = Tensor::empty(*rank.device, {recv_size(c)}, DType::i32, "test");
  if (odd && c.twist == Twist::undefined) recv = Tensor();
  int root = c.root;
  if (odd && c.twist == Twist::other_root) root = (root + 1) % c.ranks;
  if (c.twist == Twist::wrong_root) root = c.root % 2 == 0 ? -1 : c.ranks;
  const ReduceOp op = odd && c.twist == Twist::other_op ? ReduceOp::max : ReduceOp::sum;
  std::vector<int64_t> counts(static_cast<size_t>(c.ranks), c.n);
  if (c.twist == Twist::wrong_counts) counts.pop_back();
  switch (c.verb) {
    case Verb::all_gather:
      return comm.all_gather(s, recv, send);
    case Verb::all_gather_v:
      return comm.all_gather_v(s, recv, counts, send);
    case Verb::reduce_scatter:
      return comm.reduce_scatter(s, recv, send, op);
    case Verb::all_reduce:
      return comm.all_reduce(s, recv, op);
    case Verb::broadcast:
      return comm.broadcast(s, recv, root);
    case Verb::all_to_all_v:
      return comm.all_to_all_v(s, recv, counts, send, counts);
    case Verb::gather_v:
      return comm.gather_v(s, recv, counts, send, root);
    case Verb::scatter_v:
      return comm.scatter_v(s, recv, counts, send, root);
  }
}

Case collective_case(uint64_t seed) {
  Dice dice(seed);
  Call c{};
  c.verb = static_cast<Verb>(dice.below(8));
  c.ranks = 2 + dice.below(3);
  c.n = 1 + dice.below(5);
  c.odd_rank = dice.below(c.ranks);
  c.root = dice.below(c.ranks);
  c.twist = dice.chance(45) ? static_cast<Twist>(1 + dice.below(8)) : Twist::none;
  if (c.twist == Twist::other_dtype && (c.verb == Verb::all_reduce || c.verb == Verb::broadcast))
    c.twist = Twist::none;  // of one tensor only
  c.memory = 4 * c.n * c.ranks;
  const int64_t room = c.memory - 2 * c.n * c.ranks;
  c.shifted = dice.chance(50);
  c.send_at = dice.below(static_cast<int>(room));
  c.recv_at = dice.chance(40)   ? c.send_at
              : dice.chance(50) ? c.send_at + c.n * c.ranks
                                : dice.below(static_cast<int>(room));
  c.recv_at = std::min(c.recv_at, c.memory - (1 + c.ranks) * c.n);
  const std::string name = fmt::format(
      "{} of {} elements on {} ranks, root {}, sends [{}, {}) and receives [{}, {}){} of {}{}",
      kVerbs[int(c.verb)], c.n, c.ranks, c.root, c.send_at, c.send_at + send_size(c), c.recv_at,
      c.recv_at + recv_size(c), c.shifted ? " moved by rank" : "", c.memory,
      c.twist == Twist::none ? "" : fmt::format("; rank {}: {}", c.odd_rank, kTwists[int(c.twist)]));
  return {name, [=]() -> std::string {
            std::vector<std::string> wrong(static_cast<size_t>(c.ranks));
            sherd::launch(c.ranks, watched(), [&](RankContext& rank) {
              const int me = rank.world->rank();
              Stream& s = rank.device->compute();
              const Tensor memory = Tensor::empty(*rank.device, {c.memory}, DType::f32, "test");
              std::vector<float> start(static_cast<size_t>(c.memory));
              for (int64_t i = 0; i < c.memory; ++i) start[static_cast<size_t>(i)] = value(me, i);
              ops::copy_from_host(s, memory, start.data(), memory.nbytes());
              call(c, rank, memory);
              const std::vector<float> got = ops::to_floats(s, memory), want = wanted(c, me);
              for (size_t i = 0; i < got.size(); ++i)
                if (got[i] != want[i]) {
                  wrong[static_cast<size_t>(me)] =
                      fmt::format("rank {}, element {}: {} instead of {}", me, i, got[i], want[i]);
                  break;
                }
            });
            for (auto& w : wrong)
              if (!w.empty()) return w;
            return "";
          }};
}

}  // namespace

std::vector<Case> collective_cases(uint64_t seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) cases.push_back(collective_case(seed + static_cast<uint64_t>(i)));
  return cases;
}

}  // namespace sherd::misuse
