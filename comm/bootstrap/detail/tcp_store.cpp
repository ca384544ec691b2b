#include <sherd/comm/bootstrap/detail/tcp_store.h>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/comm/bootstrap/detail/drop_log.h>
#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_client.h>
#include <sherd/comm/bootstrap/detail/store_server.h>
#include <sherd/comm/bootstrap/detail/store_wire.h>

namespace sherd {
namespace {

/// Returns the loopback address over which ranks of one host connect. The host's name may not resolve there.
std::string loopback(const LaunchEnvironment& e) { return e.store_host == "::1" ? "::1" : "127.0.0.1"; }

/// Returns the address to listen on for several hosts; "": every interface. A name may mean another address
/// here than on the other hosts. Kubernetes gives its first pod "localhost".
std::string listening_host(const LaunchEnvironment& e) {
  return is_address(e.store_host) && !is_loopback(e.store_host) ? e.store_host : "";
}

void require_one_host(const LaunchEnvironment& e) {
  if (e.one_host || is_loopback(e.store_host)) return;
  throw InvalidArgument(fmt::format(
      "store: rank {} of {} is to reach it at {}, and the job has no secret; without one it listens "
      "on "
      "loopback alone (SHERD_STORE_WITHOUT_SECRET=loopback), where other hosts do not get. Give all ranks "
      "the "
      "same SHERD_JOB_SECRET_FILE or SHERD_JOB_SECRET, start the job by MPI, which hands one on, or say "
      "SHERD_STORE_WITHOUT_SECRET=everywhere",
      e.rank, e.size, e.store_host));
}

}  // namespace

ServerStore::ServerStore(const std::string& host, int port, int size, std::chrono::milliseconds linger,
                         const std::string& job, StoreGate gate)
    : server_(std::make_unique<StoreServer>(host, port, size, linger, job.substr(0, store_wire::kMaxJob),
                                            std::move(gate))) {}
ServerStore::~ServerStore() = default;
int ServerStore::port() const { return server_->port(); }
StoreReply ServerStore::ask(const StoreRequest& request) { return server_->table().apply(request); }

std::shared_ptr<Store> connect_store(const LaunchEnvironment& e, std::chrono::milliseconds timeout,
                                     const StoreOptions& options) {
  if (e.size < 1 || e.rank < 0 || e.rank >= e.size || timeout.count() <= 0)
    throw InvalidArgument(
        fmt::format("store: rank {} of {} with a timeout of {} ms; use a rank below the "
                    "size and at least 1 ms",
                    e.rank, e.size, timeout.count()));
  if (e.size == 1) return make_memory_store();
  const bool open = e.secret.empty() && e.without_secret == WithoutSecret::everywhere;
  if (e.secret.empty() && !open) require_one_host(e);
  const bool on_loopback = e.one_host || (e.secret.empty() && !open);
  if (e.rank != 0) return std::make_shared<ClientStore>(on_loopback ? loopback(e) : e.store_host, e, timeout);

  const std::string host = on_loopback ? loopback(e) : listening_host(e);
  auto store = std::make_shared<ServerStore>(host, e.store_port, e.size, options.linger, e.job,
                                             StoreGate{e.secret, options.log});
  if (open && !on_loopback)
    say(options.log,
        fmt::format(
            "store: the job has no secret, so any process that reaches port {} of rank 0's host can end it; "
            "give "
            "all ranks the same SHERD_JOB_SECRET_FILE or SHERD_JOB_SECRET (or start by MPI, or, on one "
            "host, say SHERD_STORE_WITHOUT_SECRET=loopback)",
            e.store_port));
  return store;
}

}  // namespace sherd
