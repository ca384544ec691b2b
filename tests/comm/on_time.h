// Tests of late ranks, independent of the machine's load: ranks wait for signs of each other instead of for a
// time, and a run in which another rank was late by chance is made again with a longer timeout.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/comm/bootstrap/store.h>

#include "comm/ranks.h"

namespace sherd::test {

/// Timeout for events that correct code causes at once: long enough on any machine.
inline constexpr std::chrono::seconds kLongEnough{120};

/// Signs that the ranks of one run give each other, whatever process they are in, beside the communicators
/// that the test is about. Every process makes them, before the run. Thread-safe.
class Signs {
 public:
  void give(const std::string& sign) { store_->set(sign, ""); }
  /// @throws CommError when the sign is not given.
  void await(const std::string& sign) { store_->wait(sign, kLongEnough); }

  void has_failed(int rank) { give(failure_of(rank)); }
  /// Waits until all of these have failed: none of them receives later actions of the caller.
  void await_failures(const std::vector<int>& ranks) {
    for (const int rank : ranks) await(failure_of(rank));
  }

 private:
  static std::string failure_of(int rank) { return "failed/" + std::to_string(rank); }

  const std::shared_ptr<Store> store_ = common_store();
};

inline LaunchOptions timeout_of(std::chrono::milliseconds timeout) {
  LaunchOptions options;
  options.timeout = timeout;
  return options;
}

/// The first result of `run`, a function of the timeout, in which every rank that was to be in time was, and
/// the timeout that it had; with the longest timeout, whatever came. `in_time` is asked of the result, and of
/// several processes has to say the same in all. A rank that never comes is reported in each run, so that it
/// fails no less.
template <class Run, class InTime>
auto with_timeout(const Run& run, const InTime& in_time) {
  using namespace std::chrono_literals;
  // Processes that were late for the making of a world may not be able to make another one.
  for (std::chrono::milliseconds timeout = processes() > 1 ? 1500ms : 300ms;; timeout *= 5) {
    auto result = run(timeout);
    if (timeout > 30s || in_time(result)) return std::pair(timeout, std::move(result));
  }
}

}  // namespace sherd::test
