// Compares weights that several ranks hold alike: finds memory or arithmetic that went wrong on one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Weights of which some ranks hold other bits than the rest.
struct ReplicaDifference {
  std::string parameter, unit;
  /// World ranks whose bits are wrong: the minority, where more than half of the holders agree; otherwise all
  /// holders, for nobody can tell who is right.
  std::vector<int> ranks;
  /// The holders that agree; empty where no majority does.
  std::vector<int> majority;
};

struct ReplicaCheck {
  /// Pieces of parameters that more than one rank holds, of which each was compared. 0: nothing is held
  /// twice.
  int64_t compared = 0;
  std::vector<ReplicaDifference> differences;
  /// The differences in words, by unit and parameter; the first few, and how many more there are. Empty: all
  /// agree.
  std::string describe() const;
};

/// Compares, in bits, what ranks hold of the same elements: 64-bit checksums (XXH3) of each piece travel, 16
/// bytes for a parameter. Compared are master weights (Parameter::shard()) where the strategy or the mesh
/// repeats them: no_shard, replicas, parameters that tensor-parallel ranks hold whole, experts likewise; and,
/// where weights rest with more ranks than their masters (optim, optim_grads, Outer::optim), the whole
/// parameters as the next forward will read them, which brings them up to date. Ignored parameters and
/// buffers, which ranks may hold differently, are left out, and so are optimizer states: what goes wrong
/// there shows in the weights of a later step.
///
/// Between steps; collective over the root's mesh; blocks the host. Every byte that is compared goes through
/// host memory, 4 MiB at a time. @returns the same on every rank.
ReplicaCheck check_replicas(ModuleBase& root);

}  // namespace sherd
