// Key-value store of a job's processes, for rendezvous, agreement and reports of failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store_message.h>

namespace sherd {

/// Key-value store. Keys and values are any bytes: keys up to 1 KiB, values up to 1 MiB, 256 MiB together.
/// Thread-safe.
/// @throws CommError when the store cannot be reached, InvalidArgument when it refuses.
class Store : public StoreLimits {
 public:
  virtual ~Store() = default;

  /// Sets a key. `patience` above 0: the store counts as lost after this time without an answer (also for
  /// get()).
  void set(const std::string& key, const std::string& value,
           std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  /// Sets the key if it is absent; returns the present value.
  std::string set_once(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  /// Adds to a counter, which begins at 0; returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  void erase(const std::string& key);
  /// Returns the values of prefix/0 ... prefix/(count-1) once all are present, else nullopt.
  std::optional<std::vector<std::string>> all(const std::string& prefix, int64_t count);

  /// Sets prefix/index, and returns the values of prefix/0 ... prefix/(count-1) once all are present. Calls `poll`
  /// between polls, and late(indices that are absent) after the deadline; both end the wait by an exception.
  std::vector<std::string> collect(const std::string& prefix, int index, const std::string& value, int count,
                                   std::chrono::steady_clock::time_point deadline,
                                   const std::function<void()>& poll,
                                   const std::function<void(const std::vector<int>& missing)>& late);
  /// Waits for the key. @throws CommError after `timeout`.
  std::string wait(const std::string& key, std::chrono::milliseconds timeout);
  /// Returns when all `size` ranks have called it; use a name once. @throws CommError after `timeout`, naming
  /// the missing ranks.
  void barrier(const std::string& name, int rank, int size, std::chrono::milliseconds timeout);
  /// Returns the indices r in [0, count) for which prefix/r is absent.
  std::vector<int> absent(const std::string& prefix, int count);

 protected:
  virtual StoreReply ask(const StoreRequest& request) = 0;

 private:
  StoreReply answer(StoreRequest::Op op, const std::string& key, const std::string& value = {},
                    int64_t number = 0, std::chrono::milliseconds patience = std::chrono::milliseconds(0));
};

/// Returns a store for threads of one process.
std::shared_ptr<Store> make_memory_store();

/// First failure of a job, as its ranks share it. The first call wins.
struct AbortNotice {
  int rank = -1;
  std::string cause;
};
void announce(Store& store, const AbortNotice& notice);
/// Returns the notice, if any. Patience: as for get().
std::optional<AbortNotice> announced(Store& store,
                                     std::chrono::milliseconds patience = std::chrono::milliseconds(0));

/// Sleeps between polls: 20 microseconds at first, then 2x longer each time. With `awake`, only lets other threads run for
/// that time.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds longest = std::chrono::milliseconds(5),
                   std::chrono::microseconds awake = std::chrono::microseconds(0))
      : longest_(longest), awake_until_(std::chrono::steady_clock::now() + awake) {}
  void sleep();

 private:
  std::chrono::microseconds next_{20}, longest_;
  std::chrono::steady_clock::time_point awake_until_;
};

}  // namespace sherd
