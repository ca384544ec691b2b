// Requests to a store and its replies.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// Limits of a store, in bytes: one key, one value, everything together.
struct StoreLimits {
  static constexpr size_t kMaxKey = 1 << 10, kMaxValue = 1 << 20, kMaxTotal = 256 << 20;
};

/// Request to a store; one step, which never waits.
struct StoreRequest {
  enum class Op : uint8_t { set, set_once, get, add, erase, all, bye };
  Op op = Op::get;
  int64_t number = 0;
  std::string key, value;
  /// Time allowed for the answer; 0: the store's default for all. Not sent.
  std::chrono::milliseconds patience{0};
};
struct StoreReply {
  enum class Status : uint8_t { absent, ok, refused };
  Status status = Status::absent;
  int64_t number = 0;
  std::vector<std::string> values;  // refused: one, the reason
};

/// Returns the name of entry `number` under a prefix.
inline std::string store_entry(const std::string& prefix, int64_t number) {
  return prefix + "/" + std::to_string(number);
}

}  // namespace sherd
