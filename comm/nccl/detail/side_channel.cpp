#include <sherd/comm/nccl/detail/side_channel.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sherd/comm/watch/reports.h>
#include <sherd/kernels/copy/copy.h>

namespace sherd::nccl {
namespace {

using comm::Call;
using comm::Verb;

constexpr size_t kPiece = StoreLimits::kMaxValue - 1;
/// A longer one is announced, and put when the root asks.
constexpr size_t kShort = 64 << 10;
/// First byte of a value: the last of its key, one that more follow, or what is put when the root asks.
constexpr char kLast = '.', kMore = '+', kAsk = '?';
/// Between polls for a rank that may be at its files: a rank polls its store 20 times a second.
constexpr std::chrono::milliseconds kLongestPoll{50};

void copy(Session& session, ExecutionContext& context, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  session.device().kernels<CopyKernels>().copy(context, to, from, static_cast<int64_t>(bytes));
  if (context.queue) context.queue->record()->synchronize();
}

std::string bytes_of(Session& session, ExecutionContext& context, const Tensor& t) {
  std::string bytes(t.defined() ? static_cast<size_t>(t.nbytes()) : 0, '\0');
  copy(session, context, bytes.data(), t.defined() ? t.raw() : nullptr, bytes.size());
  return bytes;
}

std::string joined(const std::vector<std::string>& all) {
  std::string bytes;
  for (const std::string& part : all) bytes += part;
  return bytes;
}

std::string reduced(const std::vector<std::string>& all, ReduceOp op) {
  std::string result = all.front();
  for (size_t r = 1; r < all.size(); ++r)
    for (size_t at = 0; at < result.size(); at += sizeof(int64_t)) {
      int64_t sum = 0, next = 0;
      std::memcpy(&sum, &result[at], sizeof sum);
      std::memcpy(&next, &all[r][at], sizeof next);
      sum = op == ReduceOp::sum   ? sum + next
            : op == ReduceOp::max ? std::max(sum, next)
                                  : std::min(sum, next);
      std::memcpy(&result[at], &sum, sizeof sum);
    }
  return result;
}

}  // namespace

bool SideChannel::has(Verb verb, const Call& call) {
  switch (verb) {
    case Verb::all_reduce:
      return call.dtype == DType::i64;
    case Verb::all_gather:
    case Verb::all_gather_v:
    case Verb::gather_v:
    case Verb::broadcast:
    case Verb::barrier:
      return true;
    default:
      return false;
  }
}

void SideChannel::put(const std::string& key, const std::string& bytes) {
  // The first value last: who finds it finds all.
  const size_t more = bytes.empty() ? 0 : (bytes.size() - 1) / kPiece;
  for (size_t i = more + 1; i-- > 0;)
    session_.store().set(i == 0 ? key : fmt::format("{}+{}", key, i),
                         (i < more ? kMore : kLast) + bytes.substr(i * kPiece, kPiece));
}

std::string SideChannel::rest(const std::string& key, std::string first, bool erase) {
  std::string bytes = first.substr(1);
  if (erase) session_.store().erase(key);
  for (int i = 1; first.front() == kMore; ++i) {
    const std::string next = fmt::format("{}+{}", key, i);
    first = session_.store().get(next).value();
    if (erase) session_.store().erase(next);
    bytes += first.substr(1);
  }
  return bytes;
}

std::string SideChannel::await(const std::string& key, int rank, const std::string& where,
                               const Deadline& deadline) {
  const std::vector<int> awaited = {world_rank(rank)};
  for (Backoff backoff(kLongestPoll);; backoff.sleep()) {
    session_.check(where);
    // Read before the key: what a rank sets before it leaves is there.
    const bool left = !session_.progress().left_before(awaited, "", 0).empty();
    if (auto value = session_.store().get(key)) return *value;
    if (left) session_.fail(where, comm::left_message(where, awaited), awaited.front());
    if (deadline.passed())
      session_.fail(where, comm::timeout_message(where, deadline.timeout, awaited), awaited.front());
  }
}

std::vector<std::string> SideChannel::gather(const std::string& key, std::string mine, int root,
                                             const std::string& where, const Deadline& deadline) {
  const auto of = [&](int rank) { return store_entry(key, rank); };
  const auto asked = [&](int rank) { return fmt::format("{}/ask/{}", key, rank); };
  const auto longer = [&](int rank) { return fmt::format("{}/long/{}", key, rank); };
  if (rank_ != root) {
    if (mine.size() <= kShort) return put(of(rank_), mine), std::vector<std::string>();
    session_.store().set(of(rank_), std::string(1, kAsk));
    await(asked(rank_), root, where, deadline);
    session_.store().erase(asked(rank_));
    put(longer(rank_), mine);
    return {};
  }
  // All are named that do not come.
  const auto first =
      session_.collect(key, static_cast<size_t>(rank_), std::string(1, kLast), world_ranks_, where, deadline);
  std::vector<std::string> all;
  for (int r = 0; r < static_cast<int>(world_ranks_.size()); ++r) {
    const std::string& value = first[static_cast<size_t>(r)];
    if (value.front() != kAsk) {
      all.push_back(rest(of(r), value, true));
    } else {
      session_.store().erase(of(r));
      session_.store().set(asked(r), "");
      all.push_back(rest(longer(r), await(longer(r), r, where, deadline), true));
    }
  }
  all[static_cast<size_t>(rank_)] = std::move(mine);
  return all;
}

std::string SideChannel::broadcast(const std::string& key, const std::string& bytes, int root,
                                   const std::string& where, const Deadline& deadline) {
  if (world_ranks_.size() == 1) return bytes;
  if (rank_ == root) {
    put(key, bytes);
    for (size_t i = 0; i == 0 || i * kPiece < bytes.size(); ++i)
      kept_.push_back(i == 0 ? key : fmt::format("{}+{}", key, i));
    return bytes;
  }
  return rest(key, await(key, root, where, deadline), false);
}

void SideChannel::run(ExecutionContext& context, Verb verb, const Call& call, const std::string& where,
                      const Deadline& deadline) {
  const std::string key = fmt::format("{}/{}", name_, call.sequence);
  const bool gathers = verb == Verb::gather_v, sends = verb != Verb::broadcast;
  const int root = gathers || !sends ? call.root : 0;
  std::string bytes = bytes_of(session_, context, verb == Verb::barrier ? Tensor() : call.send);
  if (sends) {
    const auto all = gather(key, std::move(bytes), root, where, deadline);
    if (verb == Verb::all_reduce)
      for (size_t r = 0; r < all.size(); ++r)
        if (all[r].size() != all.front().size())
          session_.fail(
              where, fmt::format("{}: {} bytes on rank {}, {} on rank {}; all ranks give equally many", where,
                                 all[r].size(), world_ranks_[r], all.front().size(), world_ranks_.front()));
    if (all.empty())
      bytes.clear();
    else
      bytes = verb == Verb::all_reduce ? reduced(all, call.reduce) : joined(all);
  }
  if (!gathers) {
    const std::vector<std::string> before = sends ? std::exchange(kept_, {}) : std::vector<std::string>();
    bytes = broadcast(key + "/all", bytes, root, where, deadline);
    // All ranks are in this call: none still reads what earlier ones have left.
    for (const std::string& left : before) session_.store().erase(left);
  }
  if (call.recv.defined() && (!gathers || rank_ == root))
    copy(session_, context, call.recv.raw(), bytes.data(), bytes.size());
}

}  // namespace sherd::nccl
