#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/store_server.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>
#include <sherd/comm/bootstrap/detail/tcp_store.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

Socket::Deadline deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

/// The store of a rank other than 0: one connection, one request at a time.
class ClientStore final : public Store {
 public:
  ClientStore(const LaunchEnvironment& e, std::chrono::milliseconds timeout)
      : rank_(e.rank), place_(fmt::format("{}:{}", e.store_host, e.store_port)), timeout_(timeout) {
    const auto deadline = deadline_after(timeout);
    std::string why = "nothing was tried";
    for (Backoff backoff(std::chrono::milliseconds(200)); Clock::now() < deadline; backoff.sleep()) {
      socket_ = Socket::connect(e.store_host, e.store_port, deadline, why);
      if (socket_ && greet(e, deadline, why)) return;
    }
    throw CommError(
        fmt::format("store: rank {} could not reach rank 0 at {} within {} ms: {}; did rank 0 "
                    "start, and do its address (MASTER_ADDR; with MPI SHERD_STORE_HOST) and port lead "
                    "there?",
                    rank_, place_, timeout.count(), why),
        0);
  }
  ~ClientStore() override {
    try {
      exchange({StoreRequest::Op::bye, 0, {}, {}}, std::min(timeout_, kGoodbyeTime));
    } catch (...) {  // rank 0 has gone
    }
  }

 protected:
  StoreReply ask(const StoreRequest& request) override {
    const bool hasty = request.patience.count() > 0;
    return exchange(request, hasty ? std::min(timeout_, request.patience) : timeout_);
  }

 private:
  static constexpr std::chrono::milliseconds kGoodbyeTime{3000};

  StoreReply exchange(const StoreRequest& request, std::chrono::milliseconds timeout) {
    const auto deadline = deadline_after(timeout);
    std::unique_lock lock(mutex_, std::defer_lock);
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

  [[noreturn]] void lost(const std::string& why) const {
    throw CommError(fmt::format("store: rank {} lost rank 0 at {}: {}; look there for what went wrong", rank_,
                                place_, why),
                    0);
  }

  std::optional<std::string> frame(size_t most, Socket::Deadline deadline, std::string& why) {
    for (;;) {
      bool too_long = false;
      if (auto body = store_wire::take_frame(buffer_, most, too_long)) return body;
      if (too_long) stranger();
      if (!socket_.receive(buffer_, deadline, why)) return std::nullopt;
    }
  }

  [[noreturn]] void stranger() const {
    throw CommError(fmt::format("store: what answers rank {} at {} is not sherd's store but another program; "
                                "set SHERD_STORE_PORT to a free port of rank 0's host",
                                rank_, place_),
                    0);
  }

  /// False when another try may help.
  bool greet(const LaunchEnvironment& e, Socket::Deadline deadline, std::string& why) {
    buffer_.clear();
    const std::string hello =
        store_wire::encode(store_wire::Hello{e.rank, e.size, e.job.substr(0, store_wire::kMaxJob)});
    const auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(10));
    if (!socket_.send(hello, soon, why)) return false;
    const auto echo = frame(store_wire::kMaxHello, soon, why);
    if (!echo) return false;
    if (hello.substr(store_wire::kLengthBytes) != *echo) stranger();
    const auto body = frame(store_wire::kMaxRequest, soon, why);
    const auto reply = body ? store_wire::decode_reply(*body) : std::nullopt;
    if (!reply) return false;
    if (reply->status == StoreReply::Status::ok) return true;
    throw CommError(fmt::format("store: rank 0 at {} refuses rank {}: {}; are RANK, WORLD_SIZE and the port "
                                "those of this job?",
                                place_, rank_, reply->values.empty() ? "" : reply->values[0]),
                    rank_);
  }

  const int rank_;
  const std::string place_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  Socket socket_;
  std::string buffer_, broken_;
};

}  // namespace

ServerStore::ServerStore(const std::string& host, int port, int size, std::chrono::milliseconds linger,
                         const std::string& job)
    : server_(std::make_unique<StoreServer>(host, port, size, linger, job.substr(0, store_wire::kMaxJob))) {}
ServerStore::~ServerStore() = default;
int ServerStore::port() const { return server_->port(); }
StoreReply ServerStore::ask(const StoreRequest& request) { return server_->table().apply(request); }

std::shared_ptr<Store> connect_store(const LaunchEnvironment& e, std::chrono::milliseconds timeout,
                                     std::chrono::milliseconds linger) {
  if (e.size < 1 || e.rank < 0 || e.rank >= e.size || timeout.count() <= 0)
    throw InvalidArgument(
        fmt::format("store: rank {} of {} with a timeout of {} ms; use a rank below the "
                    "size and at least 1 ms",
                    e.rank, e.size, timeout.count()));
  if (e.size == 1) return make_memory_store();
  if (e.rank == 0)
    return std::make_shared<ServerStore>(e.one_host ? e.store_host : "", e.store_port, e.size, linger, e.job);
  return std::make_shared<ClientStore>(e, timeout);
}

}  // namespace sherd
