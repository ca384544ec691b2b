// The memory behind a store. Private to comm/.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

#include <sherd/comm/bootstrap/store_message.h>

namespace sherd {

/// Thread-safe; never throws but for want of memory.
class StoreTable {
 public:
  StoreReply apply(const StoreRequest& request);

 private:
  StoreReply put(const std::string& key, const std::string& value);

  std::mutex mutex_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

}  // namespace sherd
