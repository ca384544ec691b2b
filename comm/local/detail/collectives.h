// Data movement of each collective, once all ranks have met.
#pragma once

#include <span>

#include <sherd/comm/core/detail/call.h>
#include <sherd/comm/local/detail/rendezvous.h>

namespace sherd::local {

/// What a rank sees inside a collective: the calls of all, by rank.
struct CollectiveContext {
  int rank;
  Rendezvous<const comm::Call>& meeting;
  /// First element of every rank's `send`, by rank.
  std::span<const void* const> sends;
  /// Of this rank's stream: where the kernels run or are issued.
  ExecutionContext& context;
  Device& device;

  const comm::Call& call(size_t r) const { return *meeting.slots()[r]; }
  const comm::Call& mine() const { return call(static_cast<size_t>(rank)); }
  size_t size() const { return meeting.slots().size(); }
};

/// Runs on each rank. Reads the peers' memory, writes this rank's `recv`.
using Phase = void (*)(const CollectiveContext&);

/// Every rank is done with the first phase before any begins the second.
struct CollectiveAlgorithm {
  Phase first = nullptr, second = nullptr;
};

/// Also all_gather; with a root, gather_v.
extern const CollectiveAlgorithm move_all_gather_v, move_reduce_scatter, move_all_reduce, move_broadcast,
    move_all_to_all_v, move_scatter_v, move_nothing;

}  // namespace sherd::local
