#include <sherd/comm/nccl/detail/call_check.h>

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace sherd::nccl {
namespace {

using comm::Call;

constexpr std::array kOps = {"all_gather", "all_gather_v", "reduce_scatter", "all_reduce",
                             "broadcast",  "all_to_all_v", "gather_v",       "scatter_v",
                             "send",       "recv",         "barrier"};

// All ranks of a job run one build on one kind of host, so numbers are copied as they are in memory.
void put(std::string& to, int64_t v) { to.append(reinterpret_cast<const char*>(&v), sizeof v); }
void put(std::string& to, const std::vector<int64_t>& v) {
  put(to, static_cast<int64_t>(v.size()));
  for (int64_t x : v) put(to, x);
}

/// Reads from the front. After a missing byte `good` is false and everything read is zero or empty.
struct Source {
  const std::string& bytes;
  size_t at = 0;
  bool good = true;

  int64_t number() {
    int64_t v = 0;
    good = good && bytes.size() - at >= sizeof v;
    if (good) std::memcpy(&v, bytes.data() + at, sizeof v);
    at += good ? sizeof v : 0;
    return v;
  }
  std::string text() {
    const int64_t n = number();
    good = good && n >= 0 && static_cast<size_t>(n) <= bytes.size() - at;
    if (!good) return "";
    at += static_cast<size_t>(n);
    return bytes.substr(at - static_cast<size_t>(n), static_cast<size_t>(n));
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> v;
    for (int64_t n = number(); good && n > 0; --n) v.push_back(number());
    return v;
  }
};

// Decodes the calls of all members; fails the launch with the rank whose entry cannot be decoded.
std::vector<Call> decode_all(Session& session, const std::vector<std::string>& bytes,
                             const std::vector<int>& members, const std::string& where) {
  std::vector<Call> calls;
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto call = decode(bytes[i]);
    if (!call)
      session.fail(
          where,
          fmt::format("{}: the store's entry of rank {} is not a call; do all ranks run one version?", where,
                      members[i]),
          members[i]);
    calls.push_back(std::move(*call));
  }
  return calls;
}

}  // namespace

std::string encode(const Call& c) {
  std::string bytes;
  int64_t op = 0;
  // The array of names is the wire format: an operation is sent as its index.
  while (std::strcmp(kOps[static_cast<size_t>(op)], c.op) != 0) ++op;
  for (int64_t v : {op, c.sequence, static_cast<int64_t>(c.dtype), c.elements, static_cast<int64_t>(c.root),
                    static_cast<int64_t>(c.reduce)})
    put(bytes, v);
  put(bytes, c.counts);
  put(bytes, c.send_counts);
  put(bytes, c.recv_counts);
  put(bytes, static_cast<int64_t>(c.purpose.text().size()));
  bytes += c.purpose.text();
  return bytes;
}

std::optional<Call> decode(const std::string& bytes) {
  Source in{bytes};
  Call c;
  const int64_t op = in.number();
  if (op < 0 || op >= static_cast<int64_t>(kOps.size())) return std::nullopt;
  c.op = kOps[static_cast<size_t>(op)];
  c.sequence = in.number();
  c.dtype = static_cast<DType>(in.number());
  c.elements = in.number();
  c.root = static_cast<int>(in.number());
  c.reduce = static_cast<ReduceOp>(in.number());
  c.counts = in.numbers();
  c.send_counts = in.numbers();
  c.recv_counts = in.numbers();
  c.purpose = Purpose(in.text());
  if (!in.good || in.at != bytes.size()) return std::nullopt;
  return c;
}

// Every rank compares all calls itself, so that all throw the same error at the same call.
void check_collective(Session& session, const std::string& group, const std::vector<int>& world_ranks,
                      int rank, const Call& call, const std::string& where, const Deadline& deadline) {
  const auto prefix = [&](int64_t sequence) { return fmt::format("{}/call/{}", group, sequence); };
  const auto bytes = session.collect(prefix(call.sequence), static_cast<size_t>(rank), encode(call),
                                     world_ranks, where, deadline);
  const std::vector<Call> calls = decode_all(session, bytes, world_ranks, where);
  std::vector<const Call*> pointers;
  for (const Call& c : calls) pointers.push_back(&c);
  // all_to_all_v agrees crosswise, which takes a count per rank of everybody.
  std::string reason = comm::disagreement(pointers, world_ranks);
  if (!reason.empty()) session.fail(where, reason);
  // Every rank has reached this call, so none still reads the call before.
  session.store().erase(fmt::format("{}/{}", prefix(call.sequence - 1), rank));
}

// Only the two ranks of a message take part; the sender has entry 0, the receiver entry 1.
void check_message(Session& session, const std::string& group, const std::vector<int>& world_ranks, int rank,
                   int peer, bool sends, const Call& call, const std::string& where,
                   const Deadline& deadline) {
  const int from = sends ? rank : peer, to = sends ? peer : rank;
  const std::vector<int> pair{world_ranks[static_cast<size_t>(from)], world_ranks[static_cast<size_t>(to)]};
  const auto prefix = [&](int64_t sequence) {
    return fmt::format("{}/message/{}-{}/{}", group, from, to, sequence);
  };
  const size_t mine = sends ? 0 : 1;
  const auto bytes = session.collect(prefix(call.sequence), mine, encode(call), pair, where, deadline);
  const std::vector<Call> calls = decode_all(session, bytes, pair, where);
  const Call& theirs = calls[1 - mine];
  if (const std::string reason = comm::message_disagreement(where, call, theirs); !reason.empty())
    session.fail(where, reason);
  // The peer has put this message's call, so it has read the one before: this rank's old entry can go.
  session.store().erase(fmt::format("{}/{}", prefix(call.sequence - 1), mine));
}

}  // namespace sherd::nccl
