// What a user may ask of the MPI backend.
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
  /// Names the world's keys in the store: one per world made from one store.
  std::string name = "world";
};

}  // namespace sherd
