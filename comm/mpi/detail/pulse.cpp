#include <sherd/comm/mpi/detail/pulse.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sherd/comm/core/detail/timeouts.h>

namespace sherd::mpi {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{1000};

}  // namespace

Pulse::Pulse(std::shared_ptr<Store> store, std::string prefix, int process, int processes, milliseconds limit)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      process_(process),
      neighbour_((process + 1) % processes),
      limit_(limit),
      interval_(std::min(kInterval, limit / 4)) {}

std::optional<milliseconds> Pulse::look(Clock::time_point now) {
  if (neighbour_ == process_) return {};
  if (last_ && now - *last_ < interval_) return {};
  const Clock::duration passed = last_ ? std::min(now - *last_, 2 * interval_) : Clock::duration{};
  last_ = now;
  store_->set(fmt::format("{}/{}", prefix_, process_), std::to_string(++beats_), comm::kStoreAnswers);
  const std::string heard =
      store_->get(fmt::format("{}/{}", prefix_, neighbour_), comm::kStoreAnswers).value_or("");
  silence_ = heard == heard_ ? silence_ + passed : Clock::duration{};
  heard_ = heard;
  if (silence_ <= limit_) return {};
  return std::chrono::duration_cast<milliseconds>(silence_);
}

}  // namespace sherd::mpi
