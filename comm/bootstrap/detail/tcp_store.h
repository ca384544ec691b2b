// Rank 0's store, which listens for the other ranks. Private to comm/; see connect_store.
#pragma once

#include <memory>
#include <string>

#include <sherd/comm/bootstrap/detail/store_gate.h>
#include <sherd/comm/bootstrap/store.h>

namespace sherd {

class StoreServer;

class ServerStore final : public Store {
 public:
  /// Host: as Socket::listen takes it. Port 0: any free one. Job: as LaunchEnvironment's.
  /// @throws CommError when it cannot listen.
  ServerStore(const std::string& host, int port, int size, std::chrono::milliseconds linger,
              const std::string& job = {}, StoreGate gate = {});
  ~ServerStore() override;
  int port() const;

 protected:
  StoreReply ask(const StoreRequest& request) override;

 private:
  std::unique_ptr<StoreServer> server_;
};

}  // namespace sherd
