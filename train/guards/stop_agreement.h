// Agreement to stop: all ranks of a run stop after the same step.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <sherd/train/guards/stop_request.h>
#include <sherd/train/guards/wall_limit.h>

namespace sherd {

/// One rank's part in it. Each step, every rank puts want() into a word of a reduction (ReduceOp::max) that
/// the step makes anyway, as late as it can, and passes the result to `hear()` when it collects the step. All
/// ranks receive the same word of the same step, so they stop together: with that step, or with the one
/// issued right after it. Without a collective of its own.
class StopAgreement {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param request the process's; null: without signals. `limit`: null on all ranks but those that watch the
  /// time (one of the job is enough), counted from `start`. Its owner shares it, since queued operations may
  /// read it later. `request` outlives this.
  StopAgreement(const StopRequest* request, std::shared_ptr<const WallLimit> limit,
                Clock::time_point start = Clock::now());

  /// This rank's request: 0 to continue, else the reason to stop. Any thread.
  int64_t want() const noexcept;
  /// The largest want() of all ranks in some step. The first that is not 0 counts.
  void hear(int64_t word) noexcept {
    if (heard_ == 0) heard_ = word;
  }
  /// Returns whether the run ends with the steps issued by now. The same on all ranks that have received the
  /// same.
  bool stops() const { return heard_ != 0; }
  /// "SIGTERM came", "the limit of 3h50m0s is near"; empty when the run continues. @param limit in seconds,
  /// the same on all ranks.
  std::string reason(double limit) const;

 private:
  const StopRequest* request_;
  std::shared_ptr<const WallLimit> limit_;
  Clock::time_point start_;
  int64_t heard_ = 0;
};

}  // namespace sherd
