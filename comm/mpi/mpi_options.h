// Options of the MPI backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <sherd/comm/core/flight_options.h>

namespace sherd {

/// Equal on all processes.
struct MpiOptions {
  /// A call that waits longer for a peer fails. launch() puts LaunchOptions::timeout here.
  std::chrono::milliseconds timeout{300'000};
  /// launch() puts LaunchOptions::flight_recorder here.
  FlightRecorderOptions flight_recorder = {};
  /// How often a process looks for other ranks' failures, and at MPI when it waits for nothing.
  std::chrono::milliseconds poll{100};
  /// Longest message in bytes; longer ones go in pieces. MPI counts with an int: at most 2^31 - 1.
  int64_t max_message = int64_t{1} << 30;
  /// A reduction receives so many bytes of every other rank at a time, twice (one piece arrives while the one
  /// before it is summed up): its memory is at most 2 * (size - 1) * reduction_piece.
  int64_t reduction_piece = int64_t{4} << 20;
  /// f32 and f64 sums of all_reduce and reduce_scatter in MPI's own order (MPI_Iallreduce, MPI_Ireduce_scatter_block,
  /// on communicators of MPI's for each group): the same on every run of one MPI and one number of ranks at best, and
  /// other bits than backend = local has. The error is that of any order of summation: at most (size - 1) * 2^-24
  /// (2^-53 for f64) times the sum of magnitudes. Calls are still compared and late ranks named before data moves.
  /// Every rank needs a process of its own, and MPI has to allow all threads at once (MPI_THREAD_MULTIPLE). A group
  /// whose making is not done within the timeout ends its processes: MPI's call for it cannot be left.
  bool library_order = false;
  /// Names the world's keys in the store: one per world made from one store.
  std::string name = "world";
};

}  // namespace sherd
