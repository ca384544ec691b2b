#include <sherd/comm/watch/heartbeat.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::comm {
namespace {

constexpr std::chrono::milliseconds kHeartbeatInterval{1000};

}  // namespace

Heartbeat::Heartbeat(std::shared_ptr<Store> store, std::string prefix, int process, int processes,
                     std::chrono::milliseconds limit)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      process_(process),
      successor_((process + 1) % processes),
      limit_(limit),
      // Four intervals at least fit into the limit: one slow store request is not a missing heartbeat.
      interval_(std::min(kHeartbeatInterval, limit / 4)) {}

std::optional<std::chrono::milliseconds> Heartbeat::check(Clock::time_point now) {
  if (successor_ == process_) return {};
  if (last_ && now - *last_ < interval_) return {};
  // A longer gap means that this process was suspended itself. It counts as two intervals at most.
  const Clock::duration passed = last_ ? std::min(now - *last_, 2 * interval_) : Clock::duration{};
  last_ = now;
  // A count, not a time: the clocks of two hosts are not compared.
  store_->set(fmt::format("{}/{}", prefix_, process_), std::to_string(++beats_), kStoreAnswers);
  // A ring: each process checks one other, so the store's load grows with the processes and not with their
  // square.
  const std::string beat = store_->get(fmt::format("{}/{}", prefix_, successor_), kStoreAnswers).value_or("");
  silence_ = beat == received_ ? silence_ + passed : Clock::duration{};
  received_ = beat;
  if (silence_ <= limit_) return {};
  return std::chrono::duration_cast<std::chrono::milliseconds>(silence_);
}

}  // namespace sherd::comm
