// Log of a launch's ranks, for reports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/watch/arrival_board.h>
#include <sherd/comm/watch/flight_recorder.h>

namespace sherd::local {

/// Records of all ranks. Thread-safe: the ranks are threads of one process and may read each other's.
struct WorldLog {
  explicit WorldLog(int ranks) : arrivals(ranks) {}

  std::vector<std::shared_ptr<comm::FlightRecorder>> recorders;  // by world rank; complete before ranks run
  comm::ArrivalBoard arrivals;

  std::string last_call(int world_rank) const { return recorders[static_cast<size_t>(world_rank)]->last(); }
};

}  // namespace sherd::local
