// Repetition of one step from the same state, to check that a machine computes the same bits again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// Results of a step, the same on every rank.
struct StepFigures {
  double loss = 0;
  double grad_norm = 0;
};

struct RepeatedStep {
  /// Both runs gave the same bits on every rank.
  bool same = false;
  /// First difference on this rank, human-readable: "weights of blocks.0.qkv.weight, element 17: 0.25 and
  /// then 0.5"; empty without a difference.
  std::string difference;
  /// Size of the copy that this rank held meanwhile.
  int64_t bytes = 0;
};

/// Runs `step` twice from the same weights, optimizer state and buffers, and compares loss, gradient norm,
/// and every element of this rank's weights, optimizer state (with its counters) and buffers, by their bits.
/// Afterwards they are those of the second run, and so is everything that follows: the run continues as if
/// its step had been done once.
///
/// `step` issues one whole step (backwards, clipping, Optimizer::step()), waits for it, and has the same
/// effect at every call: it resets its own counters (data, random numbers, steps) first.
///
/// The copy is in the device's host memory (Device::staging(), counted there as "repeated step"): as much
/// as this rank's weights, states and buffers, and 4 MiB. Between steps; collective over the root's mesh;
/// blocks the host.
[[nodiscard]] RepeatedStep repeat_step(ModuleBase& root, Optimizer& optimizer,
                                       const std::function<StepFigures()>& step);

/// Returns the bytes of its copy on this rank.
int64_t repeat_bytes(ModuleBase& root, const Optimizer& optimizer);

}  // namespace sherd
