// Choice of the sharding of a program's own model, by dry runs of its training step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/dtensor/mesh.h>
#include <sherd/fsdp/options.h>
#include <sherd/kernels/device/dry/dry_device.h>
#include <sherd/train/plan/hardware_profile.h>
#include <sherd/train/plan/step_time.h>

namespace sherd {

/// What choose() sets.
struct Sharding {
  FullyShardOptions unit = {};
  RootOptions root = {};
  int variant = 0;  // of the program's model
};

struct ChosenSharding : Sharding {
  StepTime time = {};      // of the slowest planned rank
  int64_t bytes = 0;       // of the rank that takes most, with what the allocator keeps
  int64_t host_bytes = 0;  // of host memory, of the rank that takes most
  int dry_runs = 0;        // of all choices
};

/// Returns the training step of a model that it builds on the rank's device and wraps by fully_shard() with these options and the mesh.
/// The step owns the model and its optimizer. The device computes nothing: values that a step reads on the host are those that
/// were there before.
using ShardedStep =
    std::function<std::function<void()>(RankContext& rank, const DeviceMesh& mesh, const Sharding& sharding)>;

/// What choose() may set.
struct ChoiceLimits {
  HardwareProfile hardware = {};
  /// Threads, kernels and kind of the run's device; keep_within is set.
  DryDeviceOptions device = {};
  /// Of a rank; 0: the hardware's. Planned peaks have an error of up to 1 %: planned_limit() leaves room for it.
  int64_t memory_bytes = 0;
  /// Choices differ from it in strategy, layout, prefetch and variant alone.
  Sharding base = {};
  std::vector<Strategy> strategies = {Strategy::optim_grads_params, Strategy::optim_grads, Strategy::optim,
                                      Strategy::no_shard};
  std::vector<LayoutPolicy> layouts = {LayoutPolicy::ragged, LayoutPolicy::even_rows,
                                       LayoutPolicy::whole_param};
  std::vector<int> prefetch = {1, 0, 2};  // of strategies that unshard for each use
  /// Forms of the model that compute the same, numbered from 0, such as without and with recomputation.
  int variants = 1;
};

/// Returns the fastest sharding that fits on all planned ranks: up to 8 are all planned, of more the first and the last. Of equally fast ones the
/// first in the order of the lists, the variant changing last. Choices that throw are left out. Each choice is planned by the second step of its model. Losses and
/// weights are the same under all choices in a run without gradient accumulation; with it optim and no_shard add microbatches in
/// another order (fsdp/strategy.h). Equal arguments give equal choices, so that ranks need not tell each other. Communicates
/// with no rank; one thread.
/// @throws OutOfMemory naming the choice that takes the least memory, where none fits; the error of the first choice where none can be
/// run; InvalidArgument for an empty list or variants < 1.
[[nodiscard]] ChosenSharding choose(const ShardedStep& model, const std::vector<MeshDim>& mesh,
                                    const ChoiceLimits& limits);

}  // namespace sherd
