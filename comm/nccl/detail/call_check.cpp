#include <sherd/comm/nccl/detail/call_check.h>

#include <fmt/format.h>

#include <sherd/comm/core/detail/call_bytes.h>

namespace sherd::nccl {
namespace {

using comm::Call;

// Exchanges the calls of the members through the store, under `key`; every member compares all of them itself, so
// that all throw the same error at the same call. `reason` returns why they do not agree, or "".
template <class Reason>
void check(Session& session, const std::string& key, size_t index, const std::vector<int>& members,
           const Call& call, const std::string& where, const Deadline& deadline, Reason reason) {
  const auto prefix = [&](int64_t sequence) { return fmt::format("{}/{}", key, sequence); };
  const auto entries =
      session.collect(prefix(call.sequence), index, comm::encode(call), members, where, deadline);
  std::vector<Call> calls;
  for (size_t i = 0; i < entries.size(); ++i) {
    auto entry = comm::decode_call(entries[i]);
    if (!entry)
      // A value that does not parse comes from another version of the program.
      session.fail(
          where,
          fmt::format("{}: the store's entry of rank {} is not a call; do all ranks run one version?", where,
                      members[i]),
          members[i]);
    calls.push_back(std::move(*entry));
  }
  if (const std::string text = reason(calls); !text.empty()) session.fail(where, text);
  // Every member has reached this call, so none still reads the one before.
  session.store().erase(fmt::format("{}/{}", prefix(call.sequence - 1), index));
}

}  // namespace

void check_collective(Session& session, const std::string& group, const std::vector<int>& world_ranks,
                      int rank, const Call& call, const std::string& where, const Deadline& deadline) {
  check(session, group + "/call", static_cast<size_t>(rank), world_ranks, call, where, deadline,
        [&](const std::vector<Call>& calls) {
          std::vector<const Call*> pointers;
          for (const Call& c : calls) pointers.push_back(&c);
          return comm::disagreement(pointers, world_ranks);
        });
}

// Only the two ranks of a message take part; the sender has entry 0, the receiver entry 1.
void check_message(Session& session, const std::string& group, const std::vector<int>& world_ranks, int rank,
                   int peer, bool sends, const Call& call, const std::string& where,
                   const Deadline& deadline) {
  const int from = sends ? rank : peer, to = sends ? peer : rank;
  const size_t mine = sends ? 0 : 1;
  check(session, fmt::format("{}/message/{}-{}", group, from, to), mine,
        {world_ranks[static_cast<size_t>(from)], world_ranks[static_cast<size_t>(to)]}, call, where, deadline,
        [&](const std::vector<Call>& calls) {
          return comm::message_disagreement(where, call, calls[1 - mine]);
        });
}

}  // namespace sherd::nccl
