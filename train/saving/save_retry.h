// Further attempts of the last save of a run, while its weights are in memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <sherd/comm/core/communicator.h>

namespace sherd {

struct SaveRetryOptions {
  /// Seconds from the first failure in which further attempts begin; 0: no further attempts.
  double seconds = 0;
  /// Seconds that this rank leaves for further attempts now: until the grace of a signal or a limit of time ends. 0 or
  /// less: the next attempt is the last one. Null: no bound but `seconds`.
  std::function<double()> left = {};
  /// Prints one line for each failure that another attempt follows. Called on rank 0. Null: prints nothing.
  std::function<void(const std::string&)> say = {};
};

/// Waits between attempts: 0.5 s, 1 s, 2 s, ... up to 60 s. One rank's part; its calls are collective.
class SaveRetry {
 public:
  /// `world` is used by the rank's thread, on its compute stream.
  SaveRetry(std::shared_ptr<Communicator> world, SaveRetryOptions options);

  /// Call it after an attempt that failed with `failure` on every rank. Waits and returns whether another
  /// attempt is due: the same on every rank. The ranks exchange a word every 0.2 s meanwhile, so that a rank
  /// that ends or receives a stop request ends the wait of all.
  /// @param useless this rank knows that another attempt would fail, too.
  /// @throws CommError when a rank has failed.
  [[nodiscard]] bool again(const std::string& failure, bool useless);

 private:
  using Clock = std::chrono::steady_clock;
  double left() const;
  double least(double seconds);

  std::shared_ptr<Communicator> world_;
  SaveRetryOptions options_;
  Clock::time_point first_{};  // failure
  double pause_ = 0.5;
  int attempts_ = 0;
};

}  // namespace sherd
