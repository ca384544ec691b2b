// Rank 0's side of the job's store. Private to comm/.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>

#include <sherd/comm/bootstrap/detail/socket.h>
#include <sherd/comm/bootstrap/detail/store_table.h>

namespace sherd {

/// One thread that serves the ranks 1 to size-1. A rank whose connection breaks before it said goodbye is
/// announced as the job's failure. Connections that send what no client sends are closed.
class StoreServer {
 public:
  /// @throws CommError when it cannot listen.
  StoreServer(const std::string& host, int port, int size, std::chrono::milliseconds linger, std::string job);
  /// Waits for the ranks that are connected to say goodbye, at most `linger`, and not so long after a
  /// failure.
  ~StoreServer();

  StoreTable& table() { return table_; }
  int port() const { return listener_.local_port(); }

 private:
  struct Connection {
    Socket socket;
    Socket::Deadline since;
    int rank = -1;  // until the hello
    bool leaving = false;
    std::string in, out;
  };
  void serve();
  /// How long to wait for goodbyes: less once a failure was announced.
  std::chrono::milliseconds linger();
  void accept();
  bool read(Connection& c);
  bool write(Connection& c);
  /// False when the connection is to be closed.
  bool answer(Connection& c, const std::string& frame);
  void closed(const Connection& c);

  const int size_;
  const std::string job_;
  const std::chrono::milliseconds linger_;
  StoreTable table_;
  Socket listener_;
  Socket wake_, woken_;
  std::list<Connection> connections_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace sherd
