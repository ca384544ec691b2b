#include <sherd/comm/bootstrap/detail/store_server.h>

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/store_proof.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

// Connections accepted in one round; open ones are served between rounds.
constexpr int kAcceptedAtOnce = 16;
// Time for a refused client to read the reason.
constexpr auto kRefusalTime = std::chrono::seconds(1);
// Pause after a failed accept(), for example without free handles.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

// After so long, every rank that can still receive a failure has received it: a host that is cut off never
// sends its shutdown message.
constexpr auto kAfterFailure = std::chrono::seconds(4);

/// Announces through the server's own table.
class TableStore final : public Store {
 public:
  explicit TableStore(StoreTable& table) : table_(table) {}

 protected:
  StoreReply ask(const StoreRequest& request) override { return table_.apply(request); }

 private:
  StoreTable& table_;
};

// Returns the events to poll for. POLLRDHUP detects a client that hangs up while nothing is read from it.
short awaited(const StoreSession& session) {
  if (!session.pending().empty()) return POLLOUT;
  return session.wants_input() ? POLLIN : POLLRDHUP;
}

}  // namespace

StoreServer::StoreServer(const std::string& host, int port, int size, std::chrono::milliseconds linger,
                         std::string job, StoreGate gate)
    : linger_(linger),
      gate_(std::move(gate)),
      job_{size, std::move(job), gate_.secret},
      log_(gate_.log),
      listener_(Socket::listen(host, port)) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw CommError(fmt::format("store: no socket pair (error {})", errno));
  wake_ = Socket(pair[0]);
  woken_ = Socket(pair[1]);
  thread_ = std::thread([this] { serve(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  // Ends the thread's poll() at once; a lost byte only delays it by one poll.
  (void)!::send(wake_.fd(), "", 1, MSG_NOSIGNAL);
  thread_.join();
}

int StoreServer::poll_ms(bool stopping) const {
  if (stopping || Clock::now() < accept_again_) return 20;
  // Often enough to drop strangers soon after their deadline.
  return static_cast<int>(std::clamp<int64_t>(gate_.patience.count() / 4, 10, 1000));
}

std::chrono::milliseconds StoreServer::linger() {
  TableStore store(job_.table);
  return announced(store) ? std::min<std::chrono::milliseconds>(linger_, kAfterFailure) : linger_;
}

// Loop of the server's thread, which alone uses connections and sessions. Rank 0's own requests share the
// table only.
void StoreServer::serve() {
  Time last = Time::max();
  std::vector<pollfd> polled;
  for (;;) {
    const bool stopping = stop_;
    if (stopping && last == Time::max()) last = Clock::now() + linger();
    // Ranks that are still connected need the store for their shutdown: it ends when they have left.
    if (stopping && (job_.present.empty() || Clock::now() >= last)) return;

    const bool accepting = Clock::now() >= accept_again_;
    polled = {{listener_.fd(), static_cast<short>(accepting ? POLLIN : 0), 0},
              {woken_.fd(), static_cast<short>(stopping ? 0 : POLLIN), 0}};
    for (const Connection& c : connections_) polled.push_back({c.socket.fd(), awaited(c.session), 0});
    poll(polled.data(), polled.size(), poll_ms(stopping));

    const Time now = Clock::now();
    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i)
      it = attend(*it, polled[i].revents, now) ? std::next(it) : close(it);
    // After the loop above: a new connection has no entry in `polled`.
    if (accepting && polled[0].revents != 0) accept();
    log_.look(now);
  }
}

void StoreServer::accept() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    std::string host, port;
    int error = 0;
    Socket s = listener_.accept(host, port, error);
    if (!s) {
      if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
      // Out of handles: strangers have some. Else the listener stays readable, and a pause keeps this from
      // spinning.
      const bool no_handles = error == EMFILE || error == ENFILE;
      if (!no_handles || !make_room()) accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    // Ranks always fit: strangers are dropped first, and proven ranks never.
    if (connections_.size() >= static_cast<size_t>(job_.size) + gate_.strangers) make_room();
    std::string nonce;
    try {
      nonce = store_proof::random_bytes();
    } catch (const CommError& e) {
      log_.dropped(DropLog::Kind::stranger, host, port, e.what(), Clock::now());
      continue;
    }
    connections_.emplace_back(std::move(s), std::move(host), std::move(port), Clock::now() + gate_.patience,
                              job_, std::move(nonce));
  }
}

bool StoreServer::make_room() {
  std::map<std::string, int> strangers;
  for (const Connection& c : connections_)
    if (c.session.rank() < 0) ++strangers[c.host];
  if (strangers.empty()) return false;
  int most = 0;
  for (const auto& [host, connections] : strangers) most = std::max(most, connections);
  // If several addresses match, takes the oldest connection: a rank may have connected just now.
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), [&](const Connection& c) {
    return c.session.rank() < 0 && strangers.at(c.host) == most;
  });
  tell(*oldest, "too many connections at once that have not said who they are", Clock::now());
  close(oldest);
  return true;
}

bool StoreServer::attend(Connection& c, short seen, Time now) {
  if (seen != 0) {
    if (c.session.over() && c.session.pending().empty()) return false;  // it has read why, and hung up
    const bool good = c.session.pending().empty() ? read(c, now) : write(c);
    if (c.session.over() && !c.told) {
      tell(c, c.session.complaint(), now);
      c.until = now + kRefusalTime;
    }
    if (!good && c.session.rank() < 0) tell(c, "its connection broke before it said who it is", now);
    if (!good || (c.session.over() && !c.session.refused())) return false;
  }
  // A rank has no deadline: it may compute for hours between two requests.
  if (c.session.rank() >= 0 || now < c.until) return true;
  tell(c, fmt::format("it did not say who it is within {} ms", gate_.patience.count()), now);
  return false;
}

bool StoreServer::read(Connection& c, Time now) {
  std::array<char, 1 << 14> block;
  const ssize_t n = ::recv(c.socket.fd(), block.data(), block.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) {
    if (c.session.rank() < 0)
      tell(c, n == 0 ? "it hung up before it said who it is" : std::strerror(errno), now);
    return false;
  }
  c.session.receive({block.data(), static_cast<size_t>(n)});
  // Tries to send at once: most replies fit into the socket's buffer and need no further poll.
  return c.session.pending().empty() || write(c);
}

bool StoreServer::write(Connection& c) {
  while (!c.session.pending().empty()) {
    const std::string_view bytes = c.session.pending();
    const ssize_t n = ::send(c.socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    c.session.sent(static_cast<size_t>(n));
  }
  return true;
}

void StoreServer::tell(Connection& c, const std::string& why, Time now) {
  const DropLog::Kind kind = c.session.refused() ? DropLog::Kind::refused_rank : DropLog::Kind::stranger;
  if (!std::exchange(c.told, true)) log_.dropped(kind, c.host, c.port, why, now);
}

StoreServer::Connections::iterator StoreServer::close(Connections::iterator at) {
  const StoreSession& session = at->session;
  if (session.rank() >= 0 && !session.leaving()) {
    TableStore store(job_.table);
    // Through the table: the other ranks' watchdogs read the notice at their next poll.
    announce(store,
             {session.rank(),
              session.over()
                  ? fmt::format("rank {}'s connection to the job's store was dropped: {}", session.rank(),
                                session.complaint())
                  : fmt::format("rank {}'s process ended, or its host cannot be reached: its connection "
                                "to the job's store broke",
                                session.rank())});
  }
  return connections_.erase(at);
}

}  // namespace sherd
