#include <sherd/train/saving/save_retry.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <sherd/kernels/ops.h>
#include <sherd/train/settings/duration.h>

namespace sherd {
namespace {

constexpr double kLongestPause = 60, kPoll = 0.2;

}  // namespace

SaveRetry::SaveRetry(std::shared_ptr<Communicator> world, SaveRetryOptions options)
    : world_(std::move(world)), options_(std::move(options)) {}

double SaveRetry::left() const {
  const double own = options_.seconds - std::chrono::duration<double>(Clock::now() - first_).count();
  return options_.left ? std::min(own, options_.left()) : own;
}

// Returns the least value of all ranks, in whole milliseconds.
double SaveRetry::least(double seconds) {
  constexpr double kDay = 86'400;
  auto ms = static_cast<int64_t>(std::clamp(seconds, 0.0, kDay) * 1e3);
  Stream& s = world_->device().compute();
  const Tensor word = Tensor::empty(world_->device(), {1}, DType::i64, "save retry");
  ops::copy_from_host(s, word, &ms, sizeof ms);
  world_->all_reduce(s, word, ReduceOp::min);
  ops::copy_to_host(s, &ms, word);
  return static_cast<double>(ms) / 1e3;
}

bool SaveRetry::again(const std::string& failure, bool useless) {
  if (attempts_++ == 0) first_ = Clock::now();
  const double most = least(useless ? 0 : left());
  if (most <= 0) return false;
  const double pause = std::min(std::exchange(pause_, std::min(2 * pause_, kLongestPause)), most);
  if (world_->rank() == 0 && options_.say)
    options_.say(fmt::format(
        "attempt {} to save the last checkpoint failed: {}; the next one follows in {}, and others "
        "until {} from now",
        attempts_, failure, show_duration(pause), show_duration(most)));
  const auto until = Clock::now() + std::chrono::duration<double>(pause);
  for (double rest = pause; rest > 0;) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(rest, kPoll)));
    rest = least(std::min(std::chrono::duration<double>(until - Clock::now()).count(), left()));
  }
  return true;
}

}  // namespace sherd
