// A job's store in tests: where it listens, its secret, and the lines of its log.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd::test {

inline const std::string kLoopback = "127.0.0.1", kSecret = "the secret of this job";

/// Takes the lines of a StoreLog, from any thread.
class Lines {
 public:
  StoreLog log() {
    return [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  /// Waits for so many, then a little for one too many.
  std::vector<std::string> wait(size_t count) const {
    for (const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         all().size() < count && std::chrono::steady_clock::now() < last;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return all();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace sherd::test
