// How the data of each collective moves, once all ranks have met.
#pragma once

#include <span>

#include <sherd/comm/local/call.h>
#include <sherd/comm/local/rendezvous.h>

namespace sherd::local {

/// What a rank sees inside a collective: the calls of all, by rank.
struct Inside {
  int rank;
  Rendezvous<const Call>& meeting;
  /// First element of every rank's `send`, by rank.
  std::span<const void* const> sends;

  const Call& call(size_t r) const { return *meeting.slots()[r]; }
  const Call& mine() const { return call(static_cast<size_t>(rank)); }
  size_t size() const { return meeting.slots().size(); }
  /// To be called by every rank equally often.
  void sync() const noexcept { meeting.sync(false); }
};

/// Runs on each rank. Reads the peers' `send`, writes this rank's `recv`.
using Move = void (*)(const Inside&) noexcept;

/// Also all_gather; with a root, gather_v.
void move_all_gather_v(const Inside&) noexcept;
void move_reduce_scatter(const Inside&) noexcept;
void move_all_reduce(const Inside&) noexcept;
void move_broadcast(const Inside&) noexcept;
void move_all_to_all_v(const Inside&) noexcept;
void move_scatter_v(const Inside&) noexcept;
void move_nothing(const Inside&) noexcept;

}  // namespace sherd::local
