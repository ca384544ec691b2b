// Progress of the ranks of a launch at their calls, exchanged through their store: ranks that have left before a call,
// and stragglers of a late one. For backends whose ranks exchange no messages of their own. Private to comm/.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store.h>

namespace sherd::comm {

/// Numbers of the operations that each rank has begun, by key: the name of a communicator, for instance. Thread-safe.
class Progress {
 public:
  /// `world`: prefix of the keys in the store.
  Progress(std::shared_ptr<Store> store, std::string world, int world_rank);

  /// Counts an operation that this rank begins; returns its number, from 1. `where` describes it, for reports.
  int64_t begin(const std::string& key, const std::string& where = "");
  /// Describes this rank's last operation; "" before the first.
  std::string last(const std::string& key) const;

  /// Announces to the other ranks that this one begins no further operation.
  void leave();
  /// Reads which ranks have left, and answers a pending find_stragglers() of another rank. Call it regularly, on
  /// one thread. @throws as the store does.
  void poll();
  /// Returns those of `ranks` that have left without having begun operation `number` of the key. Number 0: those
  /// that have left.
  std::vector<int> left_before(const std::vector<int>& ranks, const std::string& key, int64_t number) const;

  /// Finds the ranks that operation `number` waits for: asks by a key of the store which every rank polls, and waits
  /// a little for the answers, or until `stop`. Each rank answers once. Returns a clause that names ranks that have
  /// begun less or do not answer; "" when unknown.
  std::string find_stragglers(const std::string& key, const std::vector<int>& world_ranks, int64_t number,
                              const std::function<bool()>& stop);

 private:
  struct Count {
    int64_t number = 0;
    std::string last;
  };
  using Counts = std::map<std::string, Count>;
  /// This rank's counts as text.
  std::string text() const;
  static Counts parse(std::istream& text);
  void answer();

  const std::shared_ptr<Store> store_;
  const std::string world_;
  const int world_rank_;
  std::atomic<bool> answered_{false};
  int64_t polls_ = 0, departures_seen_ = 0;  // used by poll() alone
  mutable std::mutex mutex_;
  Counts counts_;               // under mutex_, as the next
  std::map<int, Counts> left_;  // of the ranks that have left
};

}  // namespace sherd::comm
