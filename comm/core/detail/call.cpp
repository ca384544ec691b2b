#include <sherd/comm/core/detail/call.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace sherd::comm {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

namespace {

bool uniform(const std::vector<int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

// Returns whether two ranks made the same call. Purposes compare by hash. Elements of all_to_all_v differ by
// rank: disagreement() compares its counts pair by pair.
bool agree(const Call& a, const Call& b) {
  return std::string_view(a.op) == b.op && a.sequence == b.sequence && a.dtype == b.dtype &&
         a.counts == b.counts && a.root == b.root && a.reduce == b.reduce &&
         a.purpose.hash() == b.purpose.hash() && (!a.recv_counts.empty() || a.elements == b.elements);
}

}  // namespace

std::string describe(const Call& c) {
  const std::string_view op = c.op;
  std::string s = fmt::format("{} #{} (", op, c.sequence);
  const auto end = [&] { return c.purpose ? fmt::format(") for {}", c.purpose.text()) : std::string(")"); };
  if (op == "barrier") return s + "0 bytes" + end();
  if (op == "all_reduce" || op == "reduce_scatter") s += fmt::format("{}, ", name_of(c.reduce));
  s += fmt::format("{}, {} elements, {} bytes", sherd::name_of(c.dtype), c.elements,
                   c.elements * size_of(c.dtype));
  if (!uniform(c.counts)) s += fmt::format(", counts [{}]", fmt::join(c.counts, ", "));
  if (c.root >= 0) s += fmt::format(", root {}", c.root);
  return s + end();
}

std::vector<int> split_group(const std::vector<SplitWish>& wishes, int color) {
  std::vector<int> ranks;
  for (size_t r = 0; r < wishes.size(); ++r)
    if (wishes[r].color == color) ranks.push_back(static_cast<int>(r));
  // Stable: ranks with equal keys stay in the parent's order, as in MPI_Comm_split.
  std::ranges::stable_sort(ranks, {}, [&](int r) { return wishes[static_cast<size_t>(r)].key; });
  return ranks;
}

std::string split_text(int color, int key, const Purpose& purpose) {
  std::string text = fmt::format("split(color {}, key {})", color, key);
  if (purpose) text += fmt::format(" for {}", purpose.text());
  return text;
}

std::string disagreement(const std::vector<const Call*>& calls, const std::vector<int>& world_ranks) {
  const Call& first = *calls[0];
  // Against the first rank only: the text is then the same on every rank that compares.
  for (size_t r = 1; r < calls.size(); ++r) {
    if (!agree(first, *calls[r]))
      return fmt::format(
          "ranks of one group called different collectives: rank {} called {}, rank {} called {}; every rank "
          "calls the same collectives in the same order, for the same purpose, with equal dtypes, sizes and "
          "roots",
          world_ranks[0], describe(first), world_ranks[r], describe(*calls[r]));
  }
  if (first.recv_counts.empty()) return "";
  for (size_t from = 0; from < calls.size(); ++from) {
    for (size_t to = 0; to < calls.size(); ++to) {
      const int64_t sent = calls[from]->send_counts[to], expected = calls[to]->recv_counts[from];
      if (sent != expected)
        return fmt::format("sizes differ in {} #{}: rank {} sends {} elements to rank {}, which expects {}",
                           first.op, first.sequence, world_ranks[from], sent, world_ranks[to], expected);
    }
  }
  return "";
}

std::string message_disagreement(const std::string& where, const Call& mine, const Call& theirs) {
  if (theirs.dtype == mine.dtype && theirs.elements == mine.elements &&
      theirs.purpose.hash() == mine.purpose.hash())
    return "";
  return fmt::format("{}: does not match {} there; give both the same element count, dtype and purpose",
                     where, describe(theirs));
}

}  // namespace sherd::comm
