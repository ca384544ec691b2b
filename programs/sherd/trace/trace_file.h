// The file that a rank's flight recorder leaves when its launch fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sherd::tools {

/// A communicator as one rank knew it.
struct FlightGroup {
  std::string name;
  std::vector<int> ranks;  // of the world, ascending by their number in the group
  int64_t epoch = 0;       // recoveries of the launch before the counts that follow
  int64_t calls = 0, splits = 0;
};

/// One operation of a rank.
struct FlightEntry {
  int64_t number = 0;  // among the rank's, from 1
  size_t group = 0;    // index in FlightFile::groups
  int64_t epoch = 0, sequence = 0;
  std::string op, purpose, dtype, reduce, counts, state;
  int64_t elements = 0, bytes = 0;
  int root = -1, peer = -1;  // numbers in the group
  int64_t issued_ns = 0, started_ns = 0, finished_ns = 0;

  bool message() const { return op == "send" || op == "recv"; }
  /// It has reached its peers and is not complete, as far as the host knows.
  bool waits() const { return state == "running" || state == "failed" || state == "handed"; }
};

struct FlightFile {
  std::string path;
  int rank = 0, size = 1;
  std::string launch;  // the same in the files of one launch alone; "": of a version that did not say
  std::string cause;
  int64_t recorded = 0;  // operations of the rank; the last of them are `entries`
  int64_t written_ns = 0, written_wall_ns = 0;
  std::vector<FlightGroup> groups;
  std::vector<FlightEntry> entries;

  /// Returns whether operations are missing at the front.
  bool truncated() const { return recorded > std::ssize(entries); }
  /// A time of an entry as nanoseconds since 1970.
  int64_t wall(int64_t time_ns) const { return written_wall_ns - (written_ns - time_ns); }
  const FlightGroup* find_group(const std::string& name) const;
};

/// @throws IoError for what cannot be read; InvalidArgument that names the place in the file for what no recorder has
/// written.
FlightFile read_flight_file(const std::filesystem::path& path);

struct FlightFiles {
  std::vector<FlightFile> files;  // of one launch, by rank
  /// Paths. A run that is started again in the same folder leaves those of ranks that wrote none in its last
  /// launch.
  std::vector<std::string> of_earlier_launches;
};

/// The files of these paths; of a folder all that are called as recorders call them. Where they are of
/// several launches, those of the one that wrote last.
/// @throws as read_flight_file(); InvalidArgument for a folder without any, and in one launch for two files
/// of one rank and for files of worlds of different sizes.
FlightFiles read_flight_files(const std::vector<std::string>& paths);

}  // namespace sherd::tools
