#include <sherd/comm/bootstrap/detail/store_client.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>
#include <sherd/comm/core/detail/timeouts.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGoodbyeTime{3000};
constexpr const char* kAnotherProgram =
    "is not sherd's store but another program, or sherd in another version; set SHERD_STORE_PORT to a free "
    "port "
    "of rank 0's host, and start the same program everywhere";
constexpr const char* kSameSecret =
    "give all ranks the same SHERD_JOB_SECRET, or SHERD_JOB_SECRET_FILE with the same content";

}  // namespace

ClientStore::ClientStore(const std::string& host, const LaunchEnvironment& e,
                         std::chrono::milliseconds timeout)
    : rank_(e.rank), place_(fmt::format("{}:{}", host, e.store_port)), timeout_(timeout) {
  const auto deadline = comm::deadline_after(timeout);
  std::string why = "nothing was tried";
  // Rank 0 may start later than this rank: connections are tried until the timeout, with the last reason
  // kept for the error.
  for (Backoff backoff(std::chrono::milliseconds(200)); Clock::now() < deadline; backoff.sleep()) {
    socket_ = Socket::connect(host, e.store_port, deadline, why);
    if (socket_ && greet(e, deadline, why)) return;
  }
  throw CommError(
      fmt::format(
          "store: rank {} could not reach rank 0 at {} within {} ms: {}; did rank 0 start, and do its "
          "address (MASTER_ADDR; with MPI SHERD_STORE_HOST) and port lead there?",
          rank_, place_, timeout.count(), why),
      0);
}

ClientStore::~ClientStore() {
  // The shutdown message distinguishes an orderly end from a lost connection, which rank 0 announces as a
  // failure.
  try {
    exchange({StoreRequest::Op::bye, 0, {}, {}}, std::min(timeout_, kGoodbyeTime));
  } catch (...) {  // rank 0 has gone
  }
}

StoreReply ClientStore::ask(const StoreRequest& request) {
  const bool hasty = request.patience.count() > 0;
  return exchange(request, hasty ? std::min(timeout_, request.patience) : timeout_);
}

// One request and its reply at a time; threads of the rank take turns by mutex_. After a failure the
// connection is unusable, and every later request throws the same reason.
StoreReply ClientStore::exchange(const StoreRequest& request, std::chrono::milliseconds timeout) {
  const auto deadline = comm::deadline_after(timeout);
  std::unique_lock lock(mutex_, std::defer_lock);
  // A request with a short patience (of a watchdog) must not wait behind another thread's long one.
  if (request.patience.count() == 0) lock.lock();
  for (Backoff backoff; !lock && !lock.try_lock(); backoff.sleep())
    if (Clock::now() > deadline) lost("it did not answer another request in time");
  if (broken_.empty()) {
    if (socket_.send(store_wire::encode(request), deadline, broken_)) {
      if (const auto body = frame(store_wire::kMaxReply, deadline, broken_)) {
        if (auto reply = store_wire::decode_reply(*body)) return std::move(*reply);
        broken_ = "it sent a malformed reply";
      }
    }
  }
  lost(broken_);
}

void ClientStore::lost(const std::string& why) const {
  throw CommError(
      fmt::format("store: rank {} lost rank 0 at {}: {}; look there for what went wrong", rank_, place_, why),
      0);
}

void ClientStore::not_ours(const std::string& what) const {
  throw CommError(fmt::format("store: what answers rank {} at {} {}", rank_, place_, what), 0);
}

// Returns the next frame; nothing on failure, with `why`. Bytes of a following frame stay in buffer_.
std::optional<std::string> ClientStore::frame(size_t most, Socket::Deadline deadline, std::string& why) {
  for (;;) {
    bool too_long = false;
    if (auto body = store_wire::take_frame(buffer_, most, too_long)) return body;
    if (too_long) not_ours(kAnotherProgram);
    if (!socket_.receive(buffer_, deadline, why)) return std::nullopt;
  }
}

// Authenticates both sides by a challenge: each sends a nonce, and the proofs are keyed digests of both
// nonces and the greeting. The secret itself is never sent. Returns false when another attempt may succeed;
// throws when none can.
bool ClientStore::greet(const LaunchEnvironment& e, Socket::Deadline deadline, std::string& why) {
  buffer_.clear();
  // A listener that accepts but never answers must not use up the whole timeout.
  const auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(10));
  const store_wire::Opening own{store_proof::random_bytes()};
  if (!socket_.send(store_wire::encode(own), soon, why)) return false;
  const auto answer = frame(store_wire::kMaxWelcome, soon, why);
  if (!answer) return false;
  const auto theirs = store_wire::decode_opening(*answer);
  if (!theirs) not_ours(kAnotherProgram);

  store_wire::Hello hello{e.rank, e.size, e.job.substr(0, store_wire::kMaxJob), {}};
  const store_proof::Talk talk{own, *theirs, hello};
  if (!e.secret.empty()) hello.proof = store_proof::proof(e.secret, store_proof::Role::client, talk);
  if (!socket_.send(store_wire::encode(hello), soon, why)) return false;
  const auto body = frame(store_wire::kMaxWelcome, soon, why);
  if (!body) return false;
  const auto welcome = store_wire::decode_welcome(*body);
  if (!welcome) not_ours(kAnotherProgram);
  using Verdict = store_wire::Welcome::Verdict;
  const bool trusted =
      e.secret.empty() || store_proof::proves(welcome->proof, e.secret, store_proof::Role::server, talk);
  // Rank 0 must prove that it knows the secret before its answer counts; it does not prove it to a client
  // that it refuses for its secret.
  if (welcome->verdict != Verdict::secret && !trusted)
    not_ours(
        fmt::format("does not know the secret of this rank's job, so it is not trusted; {}", kSameSecret));
  if (welcome->verdict == Verdict::accepted) return true;
  // No further attempt: a refusal does not change with time.
  throw CommError(fmt::format("store: rank 0 at {} refuses rank {}: {}; {}", place_, rank_,
                              store_wire::printable(welcome->reason, store_wire::kMaxReason),
                              welcome->verdict == Verdict::secret
                                  ? kSameSecret
                                  : "are RANK, WORLD_SIZE and the port those of this job?"),
                  rank_);
}

}  // namespace sherd
