// Compares memory of which several ranks hold copies: finds memory or arithmetic that went wrong on one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// A tensor of which some ranks hold other bits than the rest.
struct ReplicaDifference {
  /// Name of the parameter or of the buffer, and the parameter's unit ("" of a buffer).
  std::string parameter, unit;
  /// World ranks whose bits are wrong: the minority, where more than half of the holders agree; otherwise all
  /// holders, for nothing tells which is right.
  std::vector<int> ranks;
  /// The holders that agree; empty where no majority does.
  std::vector<int> majority;
  /// What differs: "weights", "fp32 master weights", "optimizer state 'exp_avg'", "optimizer counter 'step'", "buffer".
  std::string what = "weights";
};

struct ReplicaCheck {
  /// Tensors of which more than one rank holds copies; each was compared. 0: nothing is held twice.
  int64_t compared = 0;
  /// In the order of parameters: by parameter weights and masters, then states, counters, buffers.
  std::vector<ReplicaDifference> differences;
  /// The differences in words, by kind, parameter and unit; the first few, and how many more there are. Empty: all
  /// agree.
  std::string describe() const;
};

/// Compares, in bits, all memory that a step reads or a checkpoint saves and of which several ranks hold copies:
///   - weights as they rest between uses, in the dtype of their unit, along the mesh dimensions that repeat them;
///   - fp32 master weights, where they are memory of their own, and states of `optimizers` (moments, momentum and those
///     of further update rules), along the dimensions that repeat the optimizer state;
///   - counters of `optimizers`, and buffers that are not Buffer::set_per_rank(), which all ranks hold.
/// Which dimensions repeat what is ShardAxes' answer. Ignored parameters, which ranks may hold differently, and their
/// states are left out. Weights are brought up to date first, as the next forward would.
///
/// Between steps; collective over the root's mesh, with the same optimizers on every rank; blocks the host. Each rank
/// reads its copies once (on a GPU through host memory, 4 MiB at a time) and sends 16 bytes for each set of holders
/// (XXH3, 64 bits) in one all-gather. Only when these differ does a second one of 16 bytes a tensor name the tensors.
/// Nothing is kept. @returns the same on every rank.
ReplicaCheck check_replicas(ModuleBase& root, const std::vector<const Optimizer*>& optimizers);
ReplicaCheck check_replicas(ModuleBase& root, const Optimizer* optimizer = nullptr);

}  // namespace sherd
