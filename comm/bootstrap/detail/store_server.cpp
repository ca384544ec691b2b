#include <sherd/comm/bootstrap/detail/store_server.h>

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <sherd/comm/bootstrap/detail/store_wire.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

// Strangers are given this long to say who they are, and no more than so many are heard at once.
constexpr auto kHelloTime = std::chrono::seconds(10);
constexpr size_t kMostStrangers = 64;

// Those that can still hear of a failure have done so after so long: a host that is cut off never says
// goodbye.
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

}  // namespace

StoreServer::StoreServer(const std::string& host, int port, int size, std::chrono::milliseconds linger,
                         std::string job)
    : size_(size), job_(std::move(job)), linger_(linger), listener_(Socket::listen(host, port)) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw CommError(fmt::format("store: no socket pair (error {})", errno));
  wake_ = Socket(pair[0]);
  woken_ = Socket(pair[1]);
  thread_ = std::thread([this] { serve(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  (void)!::send(wake_.fd(), "", 1, MSG_NOSIGNAL);
  thread_.join();
}

std::chrono::milliseconds StoreServer::linger() {
  TableStore store(table_);
  return announced(store) ? std::min<std::chrono::milliseconds>(linger_, kAfterFailure) : linger_;
}

void StoreServer::serve() {
  Socket::Deadline last = Socket::Deadline::max();
  std::vector<pollfd> polled;
  for (;;) {
    if (stop_ && last == Socket::Deadline::max()) last = Clock::now() + linger();
    const bool ranks_left =
        std::any_of(connections_.begin(), connections_.end(), [](const auto& c) { return c.rank >= 0; });
    if (stop_ && (!ranks_left || Clock::now() >= last)) return;

    polled = {{listener_.fd(), POLLIN, 0}, {woken_.fd(), static_cast<short>(stop_ ? 0 : POLLIN), 0}};
    for (const Connection& c : connections_)
      polled.push_back({c.socket.fd(), static_cast<short>(c.out.empty() ? POLLIN : POLLOUT), 0});
    poll(polled.data(), polled.size(), stop_ ? 20 : 1000);

    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      Connection& c = *it;
      bool good = c.rank >= 0 || Clock::now() < c.since + kHelloTime;
      if (good && polled[i].revents != 0) good = (polled[i].revents & POLLOUT) ? write(c) : read(c);
      if (good) {
        ++it;
      } else {
        closed(c);
        it = connections_.erase(it);
      }
    }
    if (polled[0].revents != 0) accept();
  }
}

void StoreServer::accept() {
  Socket s(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!s) {
    // Out of handles: the listener stays readable, so a pause keeps this from spinning.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
  if (connections_.size() >= static_cast<size_t>(size_) + kMostStrangers) return;
  s.prepare();
  connections_.push_back({std::move(s), Clock::now()});
}

bool StoreServer::read(Connection& c) {
  std::string why;
  if (!c.socket.receive(c.in, Clock::now(), why)) return false;
  for (;;) {
    bool too_long = false;
    const auto frame =
        store_wire::take_frame(c.in, c.rank < 0 ? store_wire::kMaxHello : store_wire::kMaxRequest, too_long);
    if (too_long) return false;
    if (!frame) break;
    if (!answer(c, *frame)) return false;
  }
  return c.out.empty() || write(c);
}

bool StoreServer::answer(Connection& c, const std::string& frame) {
  if (c.rank < 0) {
    const auto hello = store_wire::decode_hello(frame);
    if (!hello) return false;
    std::string refusal;
    if (hello->size != size_)
      refusal = fmt::format("this job has {} processes, not {}", size_, hello->size);
    else if (!job_.empty() && !hello->job.empty() && hello->job != job_)
      refusal = fmt::format("this is job \"{}\", not \"{}\"", job_, hello->job);
    else if (hello->rank < 1 || hello->rank >= size_)
      refusal = fmt::format("rank {} does not connect here; ranks 1 to {} do", hello->rank, size_ - 1);
    else if (std::any_of(connections_.begin(), connections_.end(),
                         [&](const auto& other) { return other.rank == hello->rank; }))
      refusal = fmt::format("there is a rank {} already", hello->rank);
    if (refusal.empty())
      c.rank = hello->rank;
    else
      c.since -= kHelloTime - std::chrono::seconds(1);  // time to read the refusal
    // The hello comes back, so that the client knows a store from another program.
    c.out += store_wire::encode(*hello);
    c.out += refusal.empty() ? store_wire::encode(StoreReply{StoreReply::Status::ok})
                             : store_wire::encode(StoreReply{StoreReply::Status::refused, 0, {refusal}});
    return true;
  }
  const auto request = store_wire::decode_request(frame);
  if (!request) return false;
  if (request->op == StoreRequest::Op::bye) c.leaving = true;
  c.out += store_wire::encode(table_.apply(*request));
  return true;
}

bool StoreServer::write(Connection& c) {
  const ssize_t n = ::send(c.socket.fd(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  c.out.erase(0, static_cast<size_t>(n));
  return true;
}

void StoreServer::closed(const Connection& c) {
  if (c.rank < 0 || c.leaving) return;
  TableStore store(table_);
  announce(store,
           {c.rank, fmt::format("rank {}'s process ended, or its host cannot be reached: its connection "
                                "to the job's store broke",
                                c.rank)});
}

}  // namespace sherd
