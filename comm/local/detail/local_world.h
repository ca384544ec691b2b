// State that all ranks of a launch share.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <sherd/comm/local/detail/recovery.h>
#include <sherd/comm/watch/arrival_board.h>
#include <sherd/comm/watch/watch.h>

namespace sherd::local {

/// Launch whose ranks are threads of this process, and read each other's records.
struct LocalWorld {
  /// `recorders` by world rank.
  explicit LocalWorld(std::vector<std::shared_ptr<comm::FlightRecorder>> recorders)
      : watch(std::move(recorders)),
        recovery(watch.domain(), static_cast<int>(watch.recorders().size())),
        arrivals(static_cast<int>(watch.recorders().size())) {}

  comm::Watch watch;
  Recovery recovery;
  comm::ArrivalBoard arrivals;
};

}  // namespace sherd::local
