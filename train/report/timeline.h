// Timeline: the records of all ranks' streams as a picture, or for a trace viewer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/kernels/device/trace.h>

namespace sherd {

/// Beginning of a step.
struct Mark {
  std::string name;
  double at = 0;
};

struct Timeline {
  std::string title;
  std::vector<TraceRecord> records;  // `device` is the rank; ranks in order
  std::vector<Mark> marks;
  int64_t left_out = 0;  // operations that are not among the records
};

/// Name of a kind in traces and pictures.
const char* name_of(WorkKind kind);

/// One stream of one rank.
struct Lane {
  std::string rank, stream;
  std::vector<TraceRecord> records;  // by time
};
/// Returns the streams by rank, in the order in which ranks appear; first those that compute, gather and
/// reduce.
[[nodiscard]] std::vector<Lane> lanes_of(const Timeline& timeline);

/// Milliseconds of a timeline, summed over ranks.
struct Overlap {
  /// At least one collective is in flight on a stream that does not compute, waits for peers included.
  double collectives = 0;
  /// Part of these in which the same rank's compute stream is busy.
  double hidden = 0;
};
[[nodiscard]] Overlap overlap_of(const Timeline& timeline);

/// Part of the compute streams' time. "other kernels" are bound by memory, mostly; "libtorch" is
/// what libtorch computes between calls of sherd, on CPUs; listed if there is any. "waiting" is time without an operation.
struct StepPart {
  const char* name;
  double ms = 0;     // of a step, mean over ranks
  double share = 0;  // of the step
};
/// Returns all parts; their times sum to a step, from mark to mark. Empty without marks.
[[nodiscard]] std::vector<StepPart> parts_of(const Timeline& timeline);
/// Formats them as aligned lines under a title.
[[nodiscard]] std::vector<std::string> format_parts(const std::vector<StepPart>& parts);

/// Returns the Chrome trace format (a JSON object; chrome://tracing and ui.perfetto.dev open it): one process
/// per rank, one thread per stream, microseconds since the first record or mark.
[[nodiscard]] std::string chrome_trace(const Timeline& timeline);

/// Draws an SVG picture, 1600 pixels wide: a lane per stream, grouped by rank, coloured by kind of operation.
/// Operations less than a pixel apart are drawn as one.
[[nodiscard]] std::string draw_timeline(const Timeline& timeline);

}  // namespace sherd
