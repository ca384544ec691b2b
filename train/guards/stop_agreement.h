// All ranks of a run stop after the same step, whoever was told to.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <sherd/train/guards/stop_request.h>
#include <sherd/train/guards/wall_limit.h>

namespace sherd {

/// One rank's part in it. Each step, every rank puts want() into a word of a reduction (ReduceOp::max) that
/// the step makes anyway, as late as it can, and takes the result by hear() when it collects the step. As all
/// hear the same word of the same step, they stop together: with that step, or with the one that is under way
/// behind it. No collective of its own.
class StopAgreement {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param request the process's; null: no signals. `limit`: null on all ranks but those that watch the time
  /// (one of the job is enough), counted from `start`; whoever feeds it shares it, since work that is queued
  /// may ask after that has gone. `request` outlives this.
  StopAgreement(const StopRequest* request, std::shared_ptr<const WallLimit> limit,
                Clock::time_point start = Clock::now());

  /// What this rank wishes now: 0 to go on, else why not. Any thread.
  int64_t want() const noexcept;
  /// The largest want() of all ranks in some step. The first that is not 0 counts.
  void hear(int64_t word) noexcept {
    if (heard_ == 0) heard_ = word;
  }
  /// Whether the run is to end with what is issued by now. The same on all ranks that have heard the same.
  bool stops() const { return heard_ != 0; }
  /// "SIGTERM came", "the limit of 3h50m0s is near"; empty when the run goes on.
  /// @param limit in seconds, as all ranks know it.
  std::string reason(double limit) const;

 private:
  const StopRequest* request_;
  std::shared_ptr<const WallLimit> limit_;
  Clock::time_point start_;
  int64_t heard_ = 0;
};

}  // namespace sherd
