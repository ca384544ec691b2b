// Options of the flight recorder of a rank's collectives.
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Options of the flight recorder. Each rank records its last operations: call, purpose, and the times of
/// queueing, arrival at its peers and completion. Messages about a missing rank include its last operation.
/// When a launch fails, every rank can write its records to a file; `sherd trace FILE...` compares them.
///
/// A record takes at most 256 bytes and allocates nothing, so a rank holds operations * 256 bytes, plus names
/// and ranks of communicators that are alive or in a record.
struct FlightRecorderOptions {
  /// Number of last operations that a rank keeps; 0: none. At most kMostOperations.
  int64_t operations = 256;
  static constexpr int64_t kMostOperations = int64_t{1} << 20;
  /// Folder where each rank writes flight_rank_00003.json when its launch fails: after a CommError, or when a
  /// rank ended by an exception. Made at the start if it is absent. "": nothing is written. Files of earlier
  /// runs stay until a failure overwrites them; `sherd trace` distinguishes them by `launch`.
  std::string folder = {};
  /// Id in the files of all ranks of one launch, unique to it. launch() draws one where it is "".
  std::string launch = {};
};

}  // namespace sherd
