// Plan of this run's step, in the lines that train_gpt prints (--plan).
#pragma once

#include <cstdint>
#include <string>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/device.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

class RunPlan {
 public:
  /// Returns the plan, of all ranks where they are at most 8, else of rank 0. Each communicator is taken to need the
  /// memory of the world's. @throws as forecast(). @pre `device` has the memory of no other communicator
  static RunPlan of(const TrainConfig& config, sherd::Device& device);

  /// Returns the largest peak of the planned ranks.
  int64_t peak_bytes() const { return peak_bytes_; }
  /// Returns the line for the start.
  std::string start() const;
  /// Returns the line for the end, with the errors. @param comm of rank 0 in a step
  std::string end(int64_t peak_bytes, const sherd::CommCounts& comm) const;

 private:
  int64_t peak_bytes_ = 0, host_bytes_ = 0;
  sherd::CommCounts comm_;  // of rank 0 in a step
};

}  // namespace train_gpt
