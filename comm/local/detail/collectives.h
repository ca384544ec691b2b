// Data movement of each collective, once all ranks have met.
#pragma once

#include <span>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/local/detail/rendezvous.h>

namespace sherd::local {

/// View of a collective from one rank: the calls of all ranks, by rank.
struct CollectiveContext {
  int rank;
  Rendezvous<const comm::Call>& meeting;
  /// First element of every rank's `send`, by rank.
  std::span<const void* const> sends;
  /// Context of this rank's stream, on which the kernels run or are issued.
  ExecutionContext& context;
  Device& device;

  const comm::Call& call(size_t r) const { return *meeting.slots()[r]; }
  const comm::Call& mine() const { return call(static_cast<size_t>(rank)); }
  size_t size() const { return meeting.slots().size(); }
};

/// Phase of a collective, run on each rank. Reads the peers' memory, writes this rank's `recv`.
using Phase = void (*)(const CollectiveContext&);

/// Phases of a collective: every rank has completed the first before any begins the second.
struct CollectiveAlgorithm {
  Phase first = nullptr, second = nullptr;
};

/// Also all_gather; with a root, gather_v.
extern const CollectiveAlgorithm move_all_gather_v, move_reduce_scatter, move_all_reduce, move_broadcast,
    move_all_to_all_v, move_scatter_v, move_nothing;

}  // namespace sherd::local
