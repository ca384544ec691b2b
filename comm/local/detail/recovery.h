// Meeting point of a launch's ranks after a failure, to resume.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/watch/abort_domain.h>

namespace sherd::local {

/// Rendezvous of all ranks of a launch. Thread-safe. Its waits do not end by the abort that it clears.
class Recovery {
 public:
  /// `ranks`: size of the launch. The domain outlives this.
  Recovery(comm::AbortDomain& domain, int ranks);

  /// Call it on a rank whose operations have all ended. The last rank to arrive clears the failure; then all
  /// return. `obstacle`: why this rank cannot continue, or "".
  /// @throws CommError on all that have arrived, and on those that still arrive: at once when a rank has
  /// left; after `timeout`, naming the missing ranks. NotSupported with the obstacle.
  void meet(int world_rank, const std::string& obstacle, std::chrono::milliseconds timeout);

 private:
  /// Returns the ranks that have not arrived; with `left`, only those that have left.
  std::vector<int> missing(bool left) const;
  void refuse(std::string reason);
  [[noreturn]] void raise(int world_rank) const;

  comm::AbortDomain& domain_;
  const std::shared_ptr<comm::WaitPoint> point_;
  std::vector<bool> here_;
  uint64_t meetings_ = 0;
  bool impossible_ = false;  // for an obstacle
  std::string refused_;      // why, once it is
};

}  // namespace sherd::local
