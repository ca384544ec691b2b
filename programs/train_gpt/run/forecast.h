// Forecast of a run: its training step, counted on a dry device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/comm/launcher.h>
#include <sherd/train/data/token_windows.h>
#include <sherd/train/plan/dry_rank.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/model/trained_work.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

struct Forecast {
  sherd::RankForecast rank;
  sherd::CommCounts comm;      // as StepResult::comm of a step without an evaluation before it
  int64_t run_peak_bytes = 0;  // as Allocator::peak_bytes() of the whole run
  /// Allocator::blocks() of the device and of Device::copies(), after steps.
  std::vector<int64_t> blocks = {}, copies = {};
  ParameterCount parameters = {};  // of the whole model
  sherd::TokenWork work = {};      // Trainer::work()
  /// Cost of Newton-Schulz by rank of Muon's first team; empty without Muon.
  std::vector<double> newton_schulz_cost = {};
};

struct ForecastOptions {
  int ranks_per_host = 8;
  /// Threads and kernels of the run's device; its memory, where it is a GPU.
  sherd::DryDeviceOptions device = {};
  ModelBuilder build = build_model;
};

/// Returns windows of one sequence of tokens that are all 0, for steps whose data does not matter.
std::shared_ptr<const sherd::TokenWindows> windows_of_zeros(const TrainConfig& config);

/// Runs the trainer of one rank on a dry device, without data, weights or other ranks. Experts get equal shares of
/// the rows. A run that does not fit in DryDeviceOptions::keep_within even so is planned as with enough memory.
/// @throws as Trainer's constructor.
Forecast forecast(const TrainConfig& config, int rank, ForecastOptions options = {});

/// Ranks to plan besides the first and the last: those with the most and the least Newton-Schulz work. few: the first
/// and the one with the most alone.
enum class PlannedRanks { several, few };
/// Returns them but the first, by whose forecast they are known: all of up to 8 ranks for `several`.
std::vector<int> further_ranks(const Forecast& first, int64_t world, PlannedRanks which);

/// The device of a forecast of a run on this one. @pre it has the memory of no communicator but the world's
sherd::DryDeviceOptions dry_options(sherd::Device& device);

/// Returns the bytes that a run may take of the rank's memory: 95 % of a GPU's, whose context and libraries the plan does not count;
/// memory_of() a rank on CPUs.
int64_t usable_memory(const sherd::RankContext& rank);

/// On GPUs: bounds what the allocator keeps as plans do, by --memory-limit or usable_memory(). Where the job has several GPUs: takes the
/// memory of the rank's step now, before it has collectives. A GPU's call for memory may wait for all that runs there, collectives
/// among it.
void reserve_memory(const TrainConfig& config, const sherd::RankContext& context);

}  // namespace train_gpt
