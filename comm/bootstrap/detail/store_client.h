// Store of a rank other than 0. Private to comm/; see connect_store.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/bootstrap/detail/socket.h>

namespace sherd {

/// One connection to rank 0's store, one request at a time.
class ClientStore final : public Store {
 public:
  /// Connects to port store_port of `host` as the rank that the environment names. Tries again until
  /// `timeout`.
  /// @throws CommError as connect_store().
  ClientStore(const std::string& host, const LaunchEnvironment& environment,
              std::chrono::milliseconds timeout);
  ~ClientStore() override;

 protected:
  StoreReply ask(const StoreRequest& request) override;

 private:
  StoreReply exchange(const StoreRequest& request, std::chrono::milliseconds timeout);
  std::optional<std::string> frame(size_t most, Socket::Deadline deadline, std::string& why);
  /// Authenticates both sides. False when another attempt may succeed.
  bool greet(const LaunchEnvironment& e, Socket::Deadline deadline, std::string& why);
  [[noreturn]] void lost(const std::string& why) const;
  [[noreturn]] void not_ours(const std::string& what) const;

  const int rank_;
  const std::string place_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  Socket socket_;
  std::string buffer_, broken_;
};

}  // namespace sherd
