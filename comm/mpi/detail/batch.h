// Transfers of MPI that complete together. Private to comm/mpi.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace sherd::mpi {

/// Transfers that are waited for together. Thread-safe.
class Batch {
 public:
  /// Returns whether all have ended: the caller may use the memory again.
  bool done() const { return open_.load(std::memory_order_acquire) == 0; }
  /// Returns whether a transfer ended in an error of MPI: its data is missing. Valid when done().
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Returns the processes whose data has not come yet or, when all has, to which data is not sent yet;
  /// ascending.
  std::vector<int> late() const;

 private:
  friend class Engine;
  friend class Requests;
  struct Open {
    int64_t receives = 0, sends = 0;
  };
  /// Changes the number of transfers that are open with a process.
  void count(int process, bool sends, int change);
  /// Ends one transfer, or the order that started them; the last one ends the batch.
  static void end_one(const std::shared_ptr<Batch>& batch);

  mutable std::mutex mutex_;
  std::map<int, Open> by_process_;  // under it
  std::vector<int> everybody_;      // of a reduction: MPI does not name the ranks that it waits for
  std::atomic<int64_t> open_{0};
  std::atomic<bool> failed_{false};
  std::function<void()> on_done_;
  std::shared_ptr<const void> keep_;
};

}  // namespace sherd::mpi
