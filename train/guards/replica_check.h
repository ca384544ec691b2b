// Comparison of replicated memory between ranks: finds memory errors or wrong arithmetic on one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// A tensor whose bits differ between its holders.
struct ReplicaDifference {
  /// Name of the parameter or of the buffer, and the parameter's unit ("" of a buffer).
  std::string parameter, unit;
  /// World ranks with wrong bits: the minority, where more than half of the holders agree; otherwise all
  /// holders, since the right bits are unknown.
  std::vector<int> ranks;
  /// The holders that agree; empty where no majority does.
  std::vector<int> majority;
  /// Differing tensor: "weights", "fp32 master weights" ("master weights" in 16 bits), "low halves of master weights", "optimizer state 'exp_avg'", "optimizer counter
  /// 'step'", "buffer". State of whole matrices is named like other state: "optimizer state 'soap_left'".
  std::string what = "weights";
};

struct ReplicaCheck {
  /// Number of compared tensors, those with more than one holder. 0: no tensor is replicated.
  int64_t compared = 0;
  /// In the order of parameters: by parameter weights and masters, then states, counters, buffers.
  std::vector<ReplicaDifference> differences;
  /// Describes the differences by kind, parameter and unit: the first few, and the number of others. Empty:
  /// all agree.
  std::string describe() const;
};

/// Compares, in bits, all memory that a step reads or a checkpoint saves and of which several ranks hold copies:
///   - stored weights between uses, in the dtype of their unit, along the mesh dimensions that repeat them;
///   - master weights, where they are memory of their own, and states of `optimizers` (moments, momentum and those
///     of further update rules), along the dimensions that repeat the optimizer state;
///   - state of whole matrices (Optimizer::owned_state()), where several ranks store the same matrix (OwnedState::repeated);
///   - counters of `optimizers`, and buffers that are not Buffer::set_per_rank(), which all ranks hold.
/// ShardAxes defines which dimensions repeat what. Ignored parameters, which may differ between ranks, and
/// their states are left out. Stored weights are updated first, as the next forward would.
///
/// Between steps; collective over the root's mesh, with the same optimizers on every rank; blocks the host. Each rank
/// reads its copies once (on a GPU through host memory, 4 MiB at a time) and sends 16 bytes for each set of holders
/// (XXH3, 64 bits) in one all-gather. Only when these differ does a second one of 16 bytes a tensor name the tensors.
/// Nothing is kept. @returns the same on every rank.
[[nodiscard]] ReplicaCheck check_replicas(ModuleBase& root, const std::vector<const Optimizer*>& optimizers);
[[nodiscard]] ReplicaCheck check_replicas(ModuleBase& root, const Optimizer* optimizer = nullptr);

}  // namespace sherd
