// Admission of connections to rank 0's store. Private to comm/.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

struct StoreGate {
  std::string secret = {};  // empty: everybody is believed
  StoreLog log = {};
  /// Connections besides those of the job's ranks, which have not said who they are. One more takes the place
  /// of the oldest from the address that has the most.
  size_t strangers = 64;
  /// How long each of them may take.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

}  // namespace sherd
