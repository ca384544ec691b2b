// Key-value store of a job's processes, for rendezvous, agreement and reports of failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store_message.h>

namespace sherd {

/// Keys and values are any bytes: keys up to 1 KiB, values up to 1 MiB, 256 MiB together.
/// Thread-safe. @throws CommError when the store cannot be reached, InvalidArgument when it refuses.
class Store : public StoreLimits {
 public:
  virtual ~Store() = default;

  /// `patience` above 0: the store counts as lost when it does not answer for so long; of get(), too.
  void set(const std::string& key, const std::string& value,
           std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  /// Sets the key if it is absent; returns the value that is there now.
  std::string set_once(const std::string& key, const std::string& value);
  std::optional<std::string> get(const std::string& key,
                                 std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  /// Adds to a counter, which begins at 0; returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  void erase(const std::string& key);
  /// The values of prefix/0 ... prefix/(count-1), once all are there.
  std::optional<std::vector<std::string>> all(const std::string& prefix, int64_t count);

  /// Waits for the key. @throws CommError after `timeout`.
  std::string wait(const std::string& key, std::chrono::milliseconds timeout);
  /// Returns when all `size` ranks have called it; a name serves once. @throws CommError after `timeout`,
  /// naming the ranks that did not come.
  void barrier(const std::string& name, int rank, int size, std::chrono::milliseconds timeout);
  /// The numbers r in [0, count) for which prefix/r is absent.
  std::vector<int> absent(const std::string& prefix, int count);

 protected:
  virtual StoreReply ask(const StoreRequest& request) = 0;

 private:
  StoreReply answer(StoreRequest::Op op, const std::string& key, const std::string& value = {},
                    int64_t number = 0, std::chrono::milliseconds patience = std::chrono::milliseconds(0));
};

/// A store for threads of one process.
std::shared_ptr<Store> make_memory_store();

/// The first failure of a job, as its ranks tell each other. The first call wins.
struct AbortNotice {
  int rank = -1;
  std::string cause;
};
void announce(Store& store, const AbortNotice& notice);
/// Patience: as of get().
std::optional<AbortNotice> announced(Store& store,
                                     std::chrono::milliseconds patience = std::chrono::milliseconds(0));

/// Sleeps between looks at something that others change: 20 microseconds, then twice as long each time.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds longest = std::chrono::milliseconds(5)) : longest_(longest) {}
  void sleep();

 private:
  std::chrono::microseconds next_{20}, longest_;
};

}  // namespace sherd
