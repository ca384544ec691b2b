// Options of the flight recorder of a rank's collectives.
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Each rank keeps a record of its last operations: what it called, for what, when it was queued, came to its
/// peers and was done. Messages about a rank that did not come tell from it what that rank did last, and when a
/// launch fails the records of every rank can go to files, which `sherd trace FILE...` compares.
///
/// A record takes at most 256 bytes and nothing is allocated for one, so a rank holds operations * 256 bytes,
/// beside names and ranks of communicators that are alive or in a record.
struct FlightRecorderOptions {
  /// How many of a rank's last operations are kept; 0: none. At most kMostOperations.
  int64_t operations = 256;
  static constexpr int64_t kMostOperations = int64_t{1} << 20;
  /// Where each rank writes flight_rank_00003.json when its launch fails: after a CommError, or when a rank
  /// has ended by an exception. Made at the start when it is not there. "": nothing is written. What another
  /// run has left there stays until a failure overwrites it; `sherd trace` tells such files by `launch`.
  std::string folder = {};
  /// Stands in the files of all ranks of one launch, and of no other. launch() draws one where it is "".
  std::string launch = {};
};

}  // namespace sherd
