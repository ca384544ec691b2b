// Memory report: each rank's memory by use, beside what it would be without sharding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/optim/optimizer.h>
#include <sherd/optim/routing.h>

namespace sherd {

/// Bytes of one rank, by purpose. `other_peak` is the rest of its peak: activations, scratch memory, copies
/// for and from the host, and the allocators' caches. `host`: what rests on the host (Place::host), beside all of these.
struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0, other_peak = 0, host = 0;
};

/// Returns the peaks so far of every rank, in rank order. Collective over `world`.
[[nodiscard]] std::vector<RankMemory> rank_memory(Communicator& world);

/// Returns what one rank would hold under no_shard: parameters, gradients, optimizer states.
/// @param root sharded; its parameters count in their rest forms, with a copy in the compute dtype beside fp32 masters.
/// @param routing of the parameters that have gradients and states.
/// @param optimizer whose states count; null: those that AdamW and Muon would have in f32.
[[nodiscard]] RankMemory replicated_memory(ModuleBase& root, const Routing& routing,
                                           const Optimizer* optimizer = nullptr);

/// Formats aligned lines: all ranks, `replicated` (its other_peak and host are not used), and the largest rank's part
/// of it, where what is on the host does not count.
std::string memory_table(const std::vector<RankMemory>& ranks, const RankMemory& replicated);

}  // namespace sherd
