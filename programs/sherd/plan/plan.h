// Plan of a run: what each rank stores and moves, and how long a step is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sherd/train/plan/hardware_profile.h>
#include <sherd/train/plan/step_time.h>

#include "listed_model.h"
#include "train_gpt/run/forecast.h"
#include "train_gpt/run/search.h"
#include "train_gpt/settings/train_config.h"

namespace sherd::tools {

struct PlanRequest {
  /// Configuration of the run. With a pipeline: ranks are a stage's, the model is that of all stages.
  train_gpt::TrainConfig config;
  HardwareProfile hardware;
  std::shared_ptr<const ListedModel> listed = {};  // of which a list of parameters is known alone
  int pipeline = 1;
  train_gpt::Constraints constraints = {};  // of a search: what the flags fix, and the memory limit
  std::vector<std::string> notes = {};      // what the plan assumes, a line each

  /// Bytes that a rank may take.
  int64_t memory_bytes() const {
    return constraints.memory_bytes > 0 ? constraints.memory_bytes : hardware.memory_bytes;
  }
};

struct Plan {
  int64_t parameters = 0, active_parameters = 0;  // of the whole model, all stages
  double flops_per_token = 0;
  std::vector<RankForecast> ranks;  // by descending peak
  StepTime time;                    // of the slowest of them
  double tokens_per_s = 0;          // of all ranks
  double flops_per_s = 0;           // model FLOPs of a rank
  std::optional<double> mfu = {};   // their part of HardwareProfile::dense_peak()
  bool fits = false;
  std::vector<std::string> notes;

  const RankForecast& most_loaded() const { return ranks.front(); }
};

using train_gpt::PlannedRanks;

/// The dry device and the model of the request's forecasts.
train_gpt::ForecastOptions forecast_options(const PlanRequest& request);

/// @throws as train_gpt::forecast().
[[nodiscard]] Plan make_plan(const PlanRequest& request, PlannedRanks which = PlannedRanks::several);

/// Returns rank 0's predicted step in the Chrome trace format, as train_gpt --trace writes measured ones.
std::string predicted_trace(const PlanRequest& request);

}  // namespace sherd::tools
