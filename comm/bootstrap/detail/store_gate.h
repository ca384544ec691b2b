// Admission of connections to rank 0's store. Private to comm/.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <sherd/comm/bootstrap/bootstrap.h>

namespace sherd {

struct StoreGate {
  std::string secret = {};  // empty: every client is accepted
  StoreLog log = {};
  /// Maximum number of connections that are not proven ranks. A further one replaces the oldest from the
  /// address that has the most.
  size_t strangers = 64;
  /// Time that each of them has to prove that it is a rank.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

}  // namespace sherd
