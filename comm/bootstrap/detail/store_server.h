// Rank 0's side of the job's store. Private to comm/.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include <sherd/comm/bootstrap/detail/drop_log.h>
#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_gate.h>
#include <sherd/comm/bootstrap/detail/store_session.h>

namespace sherd {

/// One thread that serves the ranks 1 to size-1. A rank whose connection breaks before its shutdown message
/// is announced as the job's failure. A client that does not prove in time that it is one of the ranks is
/// dropped, with a line in the log.
class StoreServer {
 public:
  /// @throws CommError when it cannot listen.
  StoreServer(const std::string& host, int port, int size, std::chrono::milliseconds linger, std::string job,
              StoreGate gate);
  /// Waits for the shutdown of the connected ranks, at most `linger`, and less after a failure.
  ~StoreServer();

  StoreTable& table() { return job_.table; }
  int port() const { return listener_.local_port(); }

 private:
  using Time = Socket::Deadline;
  struct Connection {
    Connection(Socket s, std::string from, std::string from_port, Time deadline, StoreJob& job,
               std::string nonce)
        : socket(std::move(s)),
          host(std::move(from)),
          port(std::move(from_port)),
          until(deadline),
          session(job, std::move(nonce)) {}
    Socket socket;
    std::string host, port;
    Time until;  // deadline of a client that is unproven or refused
    StoreSession session;
    bool told = false;  // its drop is logged
  };
  using Connections = std::list<Connection>;

  void serve();
  int poll_ms(bool stopping) const;
  /// Returns the timeout for shutdown messages: shorter once a failure was announced.
  std::chrono::milliseconds linger();
  void accept();
  /// Drops one unproven client to have room for another: the oldest of the address that has most of them.
  /// False without one.
  bool make_room();
  /// Handles the events that poll() saw on it. False when the connection is to be closed.
  bool attend(Connection& c, short seen, Time now);
  bool read(Connection& c, Time now);
  bool write(Connection& c);
  void tell(Connection& c, const std::string& why, Time now);
  Connections::iterator close(Connections::iterator at);

  const std::chrono::milliseconds linger_;
  const StoreGate gate_;
  StoreJob job_;
  DropLog log_;
  Socket listener_;
  Socket wake_, woken_;
  Connections connections_;
  Time accept_again_{};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace sherd
