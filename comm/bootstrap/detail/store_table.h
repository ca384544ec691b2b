// Memory of a store. Private to comm/.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

#include <sherd/comm/bootstrap/store_message.h>

namespace sherd {

/// Keys and values. Thread-safe; throws std::bad_alloc alone.
class StoreTable {
 public:
  StoreReply apply(const StoreRequest& request);
  /// Returns the size of all keys and values.
  size_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  StoreReply put(const std::string& key, const std::string& value);

  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

}  // namespace sherd
