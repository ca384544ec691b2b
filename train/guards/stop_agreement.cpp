#include <sherd/train/guards/stop_agreement.h>

#include <utility>

#include <fmt/format.h>

#include <sherd/train/settings/duration.h>

namespace sherd {
namespace {

// Signals come after it, so that they are named where both hold in the same step.
constexpr int64_t kLimit = 1, kSignals = 128;

}  // namespace

StopAgreement::StopAgreement(const StopRequest* request, std::shared_ptr<const WallLimit> limit,
                             Clock::time_point start)
    : request_(request), limit_(std::move(limit)), start_(start) {}

int64_t StopAgreement::want() const noexcept {
  if (const int signal = request_ != nullptr ? request_->signal() : 0; signal != 0) return kSignals + signal;
  const bool late =
      limit_ != nullptr && limit_->reached(std::chrono::duration<double>(Clock::now() - start_).count());
  return late ? kLimit : 0;
}

std::string StopAgreement::reason(double limit) const {
  if (heard_ == 0) return "";
  if (heard_ == kLimit) return fmt::format("the limit of {} is near", show_duration(limit));
  return StopRequest::name_of(static_cast<int>(heard_ - kSignals)) + " came";
}

}  // namespace sherd
