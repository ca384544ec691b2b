// Options of the MPI backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <sherd/comm/core/flight_options.h>

namespace sherd {

/// Equal on all processes.
struct MpiOptions {
  /// Time after which a call that waits for a peer fails. launch() puts LaunchOptions::timeout here.
  std::chrono::milliseconds timeout{300'000};
  /// launch() puts LaunchOptions::flight_recorder here.
  FlightRecorderOptions flight_recorder = {};
  /// Interval between polls of a process for other ranks' failures, and of MPI when it waits for nothing.
  std::chrono::milliseconds poll{100};
  /// Maximum message in bytes; longer ones are split. MPI counts with an int: at most 2^31 - 1.
  int64_t max_message = int64_t{1} << 30;
  /// Bytes that a reduction receives from each other rank at a time, twice (one piece arrives while the one
  /// before it is summed). Its memory is at most 2 * (size - 1) * reduction_piece.
  int64_t reduction_piece = int64_t{4} << 20;
  /// Computes f32 and f64 sums of all_reduce and reduce_scatter in MPI's own order (MPI_Iallreduce,
  /// MPI_Ireduce_scatter_block, on MPI communicators for each group). At best they are the same on every run
  /// of one MPI and one number of ranks; the bits differ from backend = local. The error is that of any order
  /// of summation: at most (size - 1) * 2^-24 (2^-53 for f64) times the sum of magnitudes. Calls are still
  /// compared and late ranks named before data is transferred. Every rank needs a process of its own, and MPI
  /// must provide MPI_THREAD_MULTIPLE. If making a group exceeds the timeout, its processes end: MPI's call
  /// for it cannot be cancelled.
  bool library_order = false;
  /// Prefix of the world's keys in the store: one name per world made from one store.
  std::string name = "world";
};

}  // namespace sherd
